//! Limits that requests bring along, completed from the default limit where they say only a part.

use std::time::Duration;

use pacegate::{Algorithm, InvalidLimit, Limit};

/// What the default limit is where the configuration has none: a bucket of 100 that gets 10 a second.
const QUOTA: u64 = 10;
const BURST: u64 = 100;
/// The window that a bucket's capacity is counted over when a request asks for a window.
const WINDOW: Duration = Duration::from_secs(60);

/// What a request says about its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdHoc {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) quota: Option<u64>,
    pub(crate) window: Option<Duration>,
    pub(crate) burst: Option<u64>,
}

impl AdHoc {
    /// The limit, if the request says anything about one. What is missing is the default's, in numbers of the algorithm's shape.
    pub(crate) fn limit(self, default: Option<Limit>) -> Result<Option<Limit>, InvalidLimit> {
        let Self { algorithm, quota, window, burst } = self;
        if self == Self::default() {
            return Ok(None);
        }
        let default = match default {
            Some(default) => default,
            None => Limit::per_second(QUOTA)?.with_burst(BURST)?,
        };
        let usual =
            if quota.is_some() && window.is_some() { Algorithm::TokenBucket } else { default.algorithm() };
        let algorithm = algorithm.unwrap_or(usual);
        // A limit that says quota and window needs nothing of the default's, which may be out of range for its algorithm.
        if let (Some(quota), Some(window)) = (quota, window) {
            return with_burst(Limit::try_new(algorithm, quota, window)?, burst).map(Some);
        }
        let shaped = shaped(&default, algorithm)?;
        let limit = Limit::try_new(
            algorithm,
            quota.unwrap_or(shaped.quota().into()),
            window.unwrap_or(shaped.window()),
        )?;
        // The default's burst goes with its quota.
        let own = (quota.is_none() && algorithm.takes_burst()).then(|| shaped.capacity().into());
        with_burst(limit, burst.or(own)).map(Some)
    }
}

fn with_burst(limit: Limit, burst: Option<u64>) -> Result<Limit, InvalidLimit> {
    burst.map_or(Ok(limit), |burst| limit.with_burst(burst))
}

/// The default limit in the numbers of another algorithm: a window allows a bucket's capacity per minute, a bucket gets back what a window allows.
fn shaped(default: &Limit, algorithm: Algorithm) -> Result<Limit, InvalidLimit> {
    match (default.algorithm().takes_burst(), algorithm.takes_burst()) {
        (true, false) => Limit::try_new(algorithm, default.capacity().into(), WINDOW),
        (_, has_burst) => {
            let limit = Limit::try_new(algorithm, default.quota().into(), default.window())?;
            with_burst(limit, has_burst.then(|| default.capacity().into()))
        }
    }
}

/// The other name of the sliding log, which some clients know it by.
pub(crate) const SLIDING_WINDOW: &str = "sliding_window";

/// Whether an algorithm was asked for by that name; then it is answered by that name.
pub(crate) fn is_sliding_window(name: &str) -> bool {
    name.eq_ignore_ascii_case(SLIDING_WINDOW)
}

/// The name of an algorithm in an answer to a client that calls the sliding log `sliding_window`, or does not.
pub(crate) fn name_for(algorithm: Algorithm, sliding_window: bool) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog if sliding_window => SLIDING_WINDOW,
        _ => algorithm.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Option<Limit> {
        Some(Limit::per_second(10).unwrap().with_burst(100).unwrap())
    }

    fn limit(algorithm: Algorithm, quota: u64, seconds: u64, burst: u64) -> Option<Limit> {
        let limit = Limit::try_new(algorithm, quota, Duration::from_secs(seconds)).unwrap();
        Some(limit.with_burst(burst).unwrap())
    }

    #[test]
    fn missing_numbers_are_those_of_the_default_limit() {
        use Algorithm::{FixedWindow, Gcra, SlidingLog, TokenBucket};
        let hourly = limit(FixedWindow, 500, 3_600, 500);
        let rows = [
            // The default, then algorithm, quota, window in seconds and burst of the request, then the limit.
            (bucket(), (None, None, None, None), None),
            (bucket(), (Some(Gcra), None, None, None), limit(Gcra, 10, 1, 100)),
            (bucket(), (Some(FixedWindow), None, None, None), limit(FixedWindow, 100, 60, 100)),
            (bucket(), (None, Some(5), None, None), limit(TokenBucket, 5, 1, 5)),
            (bucket(), (None, Some(5), None, Some(7)), limit(TokenBucket, 5, 1, 7)),
            (bucket(), (None, None, Some(9), None), limit(TokenBucket, 10, 9, 100)),
            (bucket(), (None, None, None, Some(7)), limit(TokenBucket, 10, 1, 7)),
            (bucket(), (Some(SlidingLog), Some(5), None, None), limit(SlidingLog, 5, 60, 5)),
            (bucket(), (Some(SlidingLog), None, Some(9), None), limit(SlidingLog, 100, 9, 100)),
            (hourly, (Some(SlidingLog), None, None, None), limit(SlidingLog, 500, 3_600, 500)),
            (hourly, (Some(TokenBucket), None, None, None), limit(TokenBucket, 500, 3_600, 500)),
            (hourly, (None, Some(5), None, None), limit(FixedWindow, 5, 3_600, 5)),
            (hourly, (None, Some(5), Some(9), None), limit(TokenBucket, 5, 9, 5)),
            (None, (Some(FixedWindow), None, None, None), limit(FixedWindow, 100, 60, 100)),
            (None, (None, Some(5), None, None), limit(TokenBucket, 5, 1, 5)),
        ];
        for (default, (algorithm, quota, window, burst), expected) in rows {
            let ad_hoc = AdHoc { algorithm, quota, window: window.map(Duration::from_secs), burst };
            assert_eq!(ad_hoc.limit(default).unwrap(), expected, "{ad_hoc:?} beside {default:?}");
        }
        let large = limit(TokenBucket, 10, 1, 2_000_000);
        let whole = AdHoc {
            algorithm: Some(SlidingLog),
            quota: Some(5),
            window: Some(Duration::from_secs(1)),
            burst: None,
        };
        assert_eq!(whole.limit(large).unwrap(), limit(SlidingLog, 5, 1, 5));
        assert!(AdHoc { quota: None, window: None, ..whole }.limit(large).is_err(), "too many to remember");
    }
}
