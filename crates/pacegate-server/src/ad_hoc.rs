//! Ad-hoc limits in requests, completed from the default limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::{Algorithm, InvalidLimit, Limit};
use pacegate_config::AdHocConfig;

use pacegate_http::server::PerSecond;

/// The default limit without configuration: a bucket of 100 tokens that regains 10 per second.
const QUOTA: u64 = 10;
const BURST: u64 = 100;
/// The window over which a bucket's capacity is counted if a request selects a window algorithm.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum quota of an ad-hoc sliding log: each of its entries takes memory.
const LOG_QUOTA_MAX: u64 = 10_000;

/// Why an ad-hoc limit is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidAdHoc {
    /// The limit itself is invalid.
    Limit(InvalidLimit),
    /// The window exceeds this maximum.
    Window(Duration),
    /// The burst takes longer than this to refill.
    Burst(Duration),
}

impl From<InvalidLimit> for InvalidAdHoc {
    fn from(error: InvalidLimit) -> Self {
        Self::Limit(error)
    }
}

/// The reason for a window that is too long.
pub(crate) fn window_reason(max: Duration) -> String {
    format!("must be at most {max:?} (ad_hoc.max_window)")
}

/// The reason for a burst that is too large.
pub(crate) fn burst_reason(max: Duration) -> String {
    format!("must refill within {max:?} at the limit's rate (ad_hoc.max_window)")
}

/// Ignored limits in Envoy's requests. Envoy lets a request pass on errors, so these are not
/// errors.
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
                "ad-hoc limits of a request ignored; see ad_hoc in the configuration"
            );
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of suppressed log lines.
    pub(crate) fn suppressed(&self) -> u64 {
        self.lines.suppressed()
    }
}

/// The fields of an ad-hoc limit in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdHoc {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) quota: Option<u64>,
    pub(crate) window: Option<Duration>,
    pub(crate) burst: Option<u64>,
}

impl AdHoc {
    /// Returns the limit if the request has one and it is within `bounds`. Missing fields come from
    /// the default limit, converted to the algorithm.
    pub(crate) fn limit(
        self,
        default: Option<Limit>,
        bounds: &AdHocConfig,
    ) -> Result<Option<Limit>, InvalidAdHoc> {
        let limit = self.completed(default)?;
        if let Some(limit) = &limit {
            // The window of the operator's default limit is always accepted.
            let usual = default.map_or(Duration::ZERO, |default| default.window());
            let max = bounds.max_window.max(usual);
            if limit.window() > max {
                return Err(InvalidAdHoc::Window(max));
            }
            // A counter is stored until its burst has refilled.
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
        // A limit with quota and window needs nothing from the default, which may be out of range
        // for its algorithm.
        if let (Some(quota), Some(window)) = (quota, window) {
            return with_burst(Limit::try_new(algorithm, quota, window)?, burst).map(Some);
        }
        let shaped = shaped(&default, algorithm)?;
        let limit = Limit::try_new(
            algorithm,
            quota.unwrap_or(shaped.quota().into()),
            window.unwrap_or(shaped.window()),
        )?;
        // The default's burst applies only with the default's quota.
        let own = (quota.is_none() && algorithm.takes_burst()).then(|| shaped.capacity().into());
        with_burst(limit, burst.or(own)).map(Some)
    }
}

fn with_burst(limit: Limit, burst: Option<u64>) -> Result<Limit, InvalidLimit> {
    burst.map_or(Ok(limit), |burst| limit.with_burst(burst))
}

/// Converts the default limit to another algorithm: a window allows a bucket's capacity per minute,
/// and a bucket regains what a window allows.
fn shaped(default: &Limit, algorithm: Algorithm) -> Result<Limit, InvalidLimit> {
    match (default.algorithm().takes_burst(), algorithm.takes_burst()) {
        (true, false) => Limit::try_new(algorithm, default.capacity().into(), WINDOW),
        (_, has_burst) => {
            let limit = Limit::try_new(algorithm, default.quota().into(), default.window())?;
            with_burst(limit, has_burst.then(|| default.capacity().into()))
        }
    }
}

/// An alias of the sliding log that some clients use.
pub(crate) const SLIDING_WINDOW: &str = "sliding_window";

/// Returns whether a client used that alias; responses to it use the alias as well.
pub(crate) fn is_sliding_window(name: &str) -> bool {
    name.eq_ignore_ascii_case(SLIDING_WINDOW)
}

/// Returns the name of an algorithm for a client that calls the sliding log `sliding_window`, or
/// does not.
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
            // The default, then algorithm, quota, window in seconds and burst of the request, then
            // the limit.
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
            assert_eq!(
                ad_hoc.limit(default, &BOUNDS).unwrap(),
                expected,
                "{ad_hoc:?} with default {default:?}"
            );
        }
        let large = limit(TokenBucket, 10, 1, 2_000_000);
        let whole = AdHoc {
            algorithm: Some(SlidingLog),
            quota: Some(5),
            window: Some(Duration::from_secs(1)),
            burst: None,
        };
        assert_eq!(whole.limit(large, &BOUNDS).unwrap(), limit(SlidingLog, 5, 1, 5));
        let without_numbers = AdHoc { quota: None, window: None, ..whole };
        assert!(without_numbers.limit(large, &BOUNDS).is_err(), "quota too large for a sliding log");
    }

    #[test]
    fn ad_hoc_windows_and_logs_are_bounded() {
        let bounds = AdHocConfig { max_window: Duration::from_secs(3_600), ..BOUNDS };
        let ad_hoc = |algorithm, quota, seconds| AdHoc {
            algorithm: Some(algorithm),
            quota: Some(quota),
            window: Some(Duration::from_secs(seconds)),
            burst: None,
        };
        let rejected = |ad_hoc: AdHoc| ad_hoc.limit(None, &bounds).unwrap_err();
        assert!(ad_hoc(Algorithm::Gcra, 1_000_000, 3_600).limit(None, &bounds).is_ok());
        let hour = Duration::from_secs(3_600);
        assert_eq!(rejected(ad_hoc(Algorithm::Gcra, 5, 3_601)), InvalidAdHoc::Window(hour));
        assert!(ad_hoc(Algorithm::SlidingLog, 10_000, 60).limit(None, &bounds).is_ok());
        let burst = AdHoc { burst: Some(1_000_000), ..ad_hoc(Algorithm::TokenBucket, 1, 60) };
        assert_eq!(rejected(burst), InvalidAdHoc::Burst(hour));
        assert!(AdHoc { burst: Some(60), ..burst }.limit(None, &bounds).is_ok());
        let too_many = InvalidLimit::QuotaOutOfRange { quota: 10_001, max: 10_000 };
        assert_eq!(rejected(ad_hoc(Algorithm::SlidingLog, 10_001, 60)), InvalidAdHoc::Limit(too_many));
        // The window of the default limit is accepted even above the bound.
        let daily = limit(Algorithm::FixedWindow, 500, 86_400, 500);
        let lower = AdHoc { quota: Some(5), ..AdHoc::default() };
        assert_eq!(lower.limit(daily, &bounds).unwrap(), limit(Algorithm::FixedWindow, 5, 86_400, 5));
    }
}
