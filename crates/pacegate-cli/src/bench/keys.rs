//! Whom the requests are for: the same request has the same key in every run with the same seed.

use clap::ValueEnum;
use fastrand::Rng;

/// How requests are spread over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Distribution {
    /// All keys alike.
    Uniform,
    /// The second key half as often as the first, the third a third as often, and so on: a few keys are hot, as in life.
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
    /// Where the requests' own seeds begin: far from those of every other seed.
    base: u64,
    /// For each key, the weights of it and all before it; empty when all weigh the same.
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

    /// The key of a request, by its place among all requests. Not by who sends it, which no run repeats.
    pub(super) fn of(&self, request: u64) -> u64 {
        let mut random = Rng::with_seed(self.base.wrapping_add(request));
        let Some(total) = self.weights.last() else { return random.u64(0..self.count) };
        let point = random.f64() * total;
        // A key is hit when the point lies before the end of its weight; rounding must not lead past the last.
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
    fn uniform_keys_come_alike() {
        let counts = counts(Distribution::Uniform);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_nth_key_of_zipf_comes_an_nth_as_often() {
        let counts = counts(Distribution::Zipf);
        for (place, count) in counts.iter().enumerate() {
            let expected = f64::from(counts[0]) / (place + 1) as f64;
            assert!((f64::from(*count) / expected - 1.0).abs() < 0.1, "{counts:?}");
        }
    }

    #[test]
    fn the_seed_decides_which_keys_come() {
        let first = |seed| {
            let keys = Keys::new(1_000, Distribution::Zipf, seed);
            (0..20).map(|request| keys.of(request)).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1)[1..], first(2)[..19], "not the same ones one later");
    }
}
