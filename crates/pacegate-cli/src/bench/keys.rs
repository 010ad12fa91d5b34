//! The key of each request. Runs with the same seed use the same keys in the same order.

use clap::ValueEnum;
use fastrand::Rng;

/// How requests are distributed over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Distribution {
    /// All keys are equally frequent.
    Uniform,
    /// The n-th key is used 1/n as often as the first, so a few keys are hot.
    Zipf,
}

impl Distribution {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// Chooses keys.
#[derive(Debug)]
pub(super) struct Keys {
    count: u64,
    /// The seed of the first request, far from those of other seeds.
    base: u64,
    /// The cumulative weight of each key. Empty if all weights are equal.
    weights: Vec<f64>,
}

impl Keys {
    pub(super) fn new(count: u64, distribution: Distribution, seed: u64) -> Self {
        let mut total = 0.0;
        let weights = match distribution {
            Distribution::Uniform => Vec::new(),
            Distribution::Zipf => (1..=count)
                .map(|rank| {
                    total += 1.0 / rank as f64;
                    total
                })
                .collect(),
        };
        Self { count, base: Rng::with_seed(seed).u64(..), weights }
    }

    /// Returns the key of the request with this number, regardless of which caller sends it.
    pub(super) fn of(&self, request: u64) -> u64 {
        let mut random = Rng::with_seed(self.base.wrapping_add(request));
        let Some(total) = self.weights.last() else { return random.u64(0..self.count) };
        let point = random.f64() * total;
        // Rounding must not select a key after the last one.
        (self.weights.partition_point(|end| *end <= point) as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution) -> Vec<u32> {
        let keys = Keys::new(10, distribution, 7);
        let mut counts = vec![0; 10];
        for request in 0..100_000 {
            counts[usize::try_from(keys.of(request)).unwrap_or(usize::MAX)] += 1;
        }
        counts
    }

    #[test]
    fn uniform_keys_are_equally_frequent() {
        let counts = counts(Distribution::Uniform);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn nth_zipf_key_is_an_nth_as_frequent() {
        let counts = counts(Distribution::Zipf);
        for (index, count) in counts.iter().enumerate() {
            let expected = f64::from(counts[0]) / (index + 1) as f64;
            assert!((f64::from(*count) / expected - 1.0).abs() < 0.1, "{counts:?}");
        }
    }

    #[test]
    fn seed_determines_the_keys() {
        let first = |seed| {
            let keys = Keys::new(1_000, Distribution::Zipf, seed);
            (0..20).map(|request| keys.of(request)).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1)[1..], first(2)[..19], "another seed is not the same sequence shifted by one");
    }
}
