//! Limits that requests bring along, completed from the default limit where they say only a part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::{Algorithm, InvalidLimit, Limit};
use pacegate_config::AdHocConfig;

use pacegate_http::server::PerSecond;

/// What the default limit is where the configuration has none: a bucket of 100 that gets 10 a second.
const QUOTA: u64 = 10;
const BURST: u64 = 100;
/// The window that a bucket's capacity is counted over when a request asks for a window.
const WINDOW: Duration = Duration::from_secs(60);

/// The most that a sliding log of a request counts: each of its entries takes memory.
const LOG_QUOTA_MAX: u64 = 10_000;

/// What is wrong with a limit that a request brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidAdHoc {
    /// It cannot be counted with.
    Limit(InvalidLimit),
    /// Its window is longer than this.
    Window(Duration),
    /// Its burst takes longer than this to come back.
    Burst(Duration),
}

impl From<InvalidLimit> for InvalidAdHoc {
    fn from(error: InvalidLimit) -> Self {
        Self::Limit(error)
    }
}

/// Why the window of a request is too long.
pub(crate) fn window_reason(max: Duration) -> String {
    format!("must be at most {max:?} (ad_hoc.max_window)")
}

/// Why the burst of a request is too large.
pub(crate) fn burst_reason(max: Duration) -> String {
    format!("must come back within {max:?} at the limit's rate (ad_hoc.max_window)")
}

/// Limits in Envoy's requests that were ignored: an error would let those requests pass.
#[derive(Debug)]
pub(crate) struct IgnoredLimits {
    count: AtomicU64,
    lines: PerSecond,
}

impl Default for IgnoredLimits {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), lines: PerSecond::new(1) }
    }
}

impl IgnoredLimits {
    pub(crate) fn note(&self, limits: u64, request_id: &str) {
        self.count.fetch_add(limits, Ordering::Relaxed);
        if self.lines.admit() {
            tracing::warn!(
                request_id,
                limits,
                "limits of a request ignored; see ad_hoc in the configuration"
            );
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How many log lines were too many.
    pub(crate) fn held_back(&self) -> u64 {
        self.lines.held_back()
    }
}

/// What a request says about its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdHoc {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) quota: Option<u64>,
    pub(crate) window: Option<Duration>,
    pub(crate) burst: Option<u64>,
}

impl AdHoc {
    /// The limit within `bounds`, if the request says anything about one. What is missing is the
    /// default's, in numbers of the algorithm's shape.
    pub(crate) fn limit(
        self,
        default: Option<Limit>,
        bounds: &AdHocConfig,
    ) -> Result<Option<Limit>, InvalidAdHoc> {
        let limit = self.completed(default)?;
        if let Some(limit) = &limit {
            // What the operator chose for the default limit is not too long.
            let usual = default.map_or(Duration::ZERO, |default| default.window());
            let max = bounds.max_window.max(usual);
            if limit.window() > max {
                return Err(InvalidAdHoc::Window(max));
            }
            // A counter is kept until all of its burst is back.
            let usual = default.map_or(0, |default| default.refill_secs_ceil());
            let max = max.max(Duration::from_secs(usual));
            if Duration::from_secs(limit.refill_secs_ceil()) > max.max(Duration::from_secs(1)) {
                return Err(InvalidAdHoc::Burst(max));
            }
            let quota = u64::from(limit.quota());
            if limit.algorithm() == Algorithm::SlidingLog && quota > LOG_QUOTA_MAX {
                return Err(InvalidLimit::QuotaOutOfRange { quota, max: LOG_QUOTA_MAX }.into());
            }
        }
        Ok(limit)
    }

    fn completed(self, default: Option<Limit>) -> Result<Option<Limit>, InvalidLimit> {
        let Self { algorithm, quota, window, burst } = self;
        if self == Self::default() {
            return Ok(None);
        }
        let default = match default {
            Some(default) => default,
            None => Limit::per_second(QUOTA).burst(BURST).build()?,
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
    use pacegate_config::AdHocCallers;

    use super::*;

    const BOUNDS: AdHocConfig =
        AdHocConfig { allow: AdHocCallers::Always, max_window: Duration::from_secs(86_400), max_keys: None };

    fn bucket() -> Option<Limit> {
        Some(Limit::per_second(10).burst(100).build().unwrap())
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
            assert_eq!(ad_hoc.limit(default, &BOUNDS).unwrap(), expected, "{ad_hoc:?} beside {default:?}");
        }
        let large = limit(TokenBucket, 10, 1, 2_000_000);
        let whole = AdHoc {
            algorithm: Some(SlidingLog),
            quota: Some(5),
            window: Some(Duration::from_secs(1)),
            burst: None,
        };
        assert_eq!(whole.limit(large, &BOUNDS).unwrap(), limit(SlidingLog, 5, 1, 5));
        let unsaid = AdHoc { quota: None, window: None, ..whole };
        assert!(unsaid.limit(large, &BOUNDS).is_err(), "too many to remember");
    }

    #[test]
    fn windows_and_logs_of_requests_are_bounded() {
        let bounds = AdHocConfig { max_window: Duration::from_secs(3_600), ..BOUNDS };
        let ad_hoc = |algorithm, quota, seconds| AdHoc {
            algorithm: Some(algorithm),
            quota: Some(quota),
            window: Some(Duration::from_secs(seconds)),
            burst: None,
        };
        let refused = |ad_hoc: AdHoc| ad_hoc.limit(None, &bounds).unwrap_err();
        assert!(ad_hoc(Algorithm::Gcra, 1_000_000, 3_600).limit(None, &bounds).is_ok());
        let hour = Duration::from_secs(3_600);
        assert_eq!(refused(ad_hoc(Algorithm::Gcra, 5, 3_601)), InvalidAdHoc::Window(hour));
        assert!(ad_hoc(Algorithm::SlidingLog, 10_000, 60).limit(None, &bounds).is_ok());
        let burst = AdHoc { burst: Some(1_000_000), ..ad_hoc(Algorithm::TokenBucket, 1, 60) };
        assert_eq!(refused(burst), InvalidAdHoc::Burst(hour));
        assert!(AdHoc { burst: Some(60), ..burst }.limit(None, &bounds).is_ok());
        let too_many = InvalidLimit::QuotaOutOfRange { quota: 10_001, max: 10_000 };
        assert_eq!(refused(ad_hoc(Algorithm::SlidingLog, 10_001, 60)), InvalidAdHoc::Limit(too_many));
        // The default's window is the operator's choice, and stays.
        let daily = limit(Algorithm::FixedWindow, 500, 86_400, 500);
        let lower = AdHoc { quota: Some(5), ..AdHoc::default() };
        assert_eq!(lower.limit(daily, &bounds).unwrap(), limit(Algorithm::FixedWindow, 5, 86_400, 5));
    }
}
