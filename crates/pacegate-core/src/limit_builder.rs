//! A limit under construction, before its numbers are validated.

use std::time::Duration;

use crate::limit::{Algorithm, InvalidLimit, Limit};

/// Unvalidated numbers of a limit; [`build`](Self::build) validates them.
///
/// Everything that takes a limit also takes a builder, so that a program can handle the errors of
/// all its limits at once. The algorithm is a token bucket unless another one is selected.
///
/// ```
/// use pacegate_core::{Algorithm, Limit};
///
/// let limit = Limit::per_minute(100).sliding_counter().build()?;
/// assert_eq!((limit.algorithm(), limit.quota()), (Algorithm::SlidingCounter, 100));
/// let error = Limit::per_minute(100).sliding_log().burst(200).build().unwrap_err();
/// assert_eq!(error.field(), "burst");
/// # Ok::<(), pacegate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a builder has no effect until it is built or passed to a limiter"]
pub struct LimitBuilder {
    algorithm: Algorithm,
    quota: u64,
    window: Duration,
    burst: Option<u64>,
}

impl LimitBuilder {
    pub(crate) const fn new(quota: u64, window: Duration) -> Self {
        Self { algorithm: Algorithm::TokenBucket, quota, window, burst: None }
    }

    /// Sets how much a fresh counter allows at once; defaults to the quota.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Selects [`Algorithm::TokenBucket`].
    pub const fn token_bucket(self) -> Self {
        self.algorithm(Algorithm::TokenBucket)
    }

    /// Selects [`Algorithm::LeakyBucket`].
    pub const fn leaky_bucket(self) -> Self {
        self.algorithm(Algorithm::LeakyBucket)
    }

    /// Selects [`Algorithm::FixedWindow`].
    pub const fn fixed_window(self) -> Self {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// Selects [`Algorithm::SlidingLog`].
    pub const fn sliding_log(self) -> Self {
        self.algorithm(Algorithm::SlidingLog)
    }

    /// Selects [`Algorithm::SlidingCounter`].
    pub const fn sliding_counter(self) -> Self {
        self.algorithm(Algorithm::SlidingCounter)
    }

    /// Selects [`Algorithm::Gcra`].
    pub const fn gcra(self) -> Self {
        self.algorithm(Algorithm::Gcra)
    }

    const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Validates the numbers and returns the limit.
    ///
    /// # Errors
    /// [`InvalidLimit`] when a number is out of range, or the algorithm does not support a burst.
    pub fn build(self) -> Result<Limit, InvalidLimit> {
        let limit = Limit::try_new(self.algorithm, self.quota, self.window)?;
        self.burst.map_or(Ok(limit), |burst| limit.with_burst(burst))
    }
}

impl From<Limit> for LimitBuilder {
    fn from(limit: Limit) -> Self {
        let (quota, capacity) = (u64::from(limit.quota()), u64::from(limit.capacity()));
        let burst = (capacity != quota).then_some(capacity);
        Self { algorithm: limit.algorithm(), quota, window: limit.window(), burst }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builder_sets_window_and_algorithm() {
        let second = Duration::from_secs(1);
        let windows = [
            (Limit::per_second(5), 1),
            (Limit::per_minute(5), 60),
            (Limit::per_hour(5), 3_600),
            (Limit::per_day(5), 86_400),
            (Limit::per(5, 7 * second), 7),
        ];
        for (builder, seconds) in windows {
            let expected = Limit::try_new(Algorithm::TokenBucket, 5, second * seconds);
            assert_eq!(builder.build(), expected);
        }
        let per_second = Limit::per_second(5);
        let algorithms = [
            (per_second.gcra().token_bucket(), Algorithm::TokenBucket),
            (per_second.leaky_bucket(), Algorithm::LeakyBucket),
            (per_second.fixed_window(), Algorithm::FixedWindow),
            (per_second.sliding_log(), Algorithm::SlidingLog),
            (per_second.sliding_counter(), Algorithm::SlidingCounter),
            (per_second.gcra(), Algorithm::Gcra),
        ];
        for (builder, algorithm) in algorithms {
            assert_eq!(builder.build(), Limit::try_new(algorithm, 5, second));
        }
    }

    #[test]
    fn builder_from_a_limit_builds_the_same_limit() {
        for algorithm in Algorithm::ALL {
            let limit = Limit::try_new(algorithm, 10, Duration::from_millis(1_500)).unwrap();
            assert_eq!(LimitBuilder::from(limit).build(), Ok(limit));
        }
        let bursty = Limit::per_second(10).burst(3).build().unwrap();
        assert_eq!(LimitBuilder::from(bursty).build(), Ok(bursty));
    }

    #[test]
    fn build_error_names_the_invalid_field() {
        let wrong = [
            (Limit::per_second(0), "limit"),
            (Limit::per_second(2_000_000).sliding_log(), "limit"),
            (Limit::per_second(1).burst(0), "burst"),
            (Limit::per_second(1).burst(2).fixed_window(), "burst"),
            (Limit::per(1, Duration::from_nanos(1)), "window"),
        ];
        for (builder, field) in wrong {
            assert_eq!(builder.build().unwrap_err().field(), field);
        }
    }
}
