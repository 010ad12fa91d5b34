//! Reproducible randomness.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// The seed of everything random in a test run. It is printed on failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// A generator of values that depends only on this seed.
    pub fn runner(self) -> TestRunner {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng)
    }
}
