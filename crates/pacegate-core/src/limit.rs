//! Limits: their numbers, validated once, with every constant that a check needs computed in
//! advance.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::divisor::Divisor;
use crate::limit_builder::LimitBuilder;
use crate::named;
use crate::named::Named as _;
use crate::time::EXACT_MAX;

/// How a limit counts. The crate documentation lists the guarantee of each algorithm.
///
/// ```
/// use pacegate_core::Algorithm;
///
/// assert_eq!("sliding_log".parse(), Ok(Algorithm::SlidingLog));
/// assert_eq!(Algorithm::SlidingLog.to_string(), "sliding_log");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Tokens refill at the quota's rate up to the burst; starts full.
    TokenBucket,
    /// Requests queue and drain at a constant rate; the answer includes how long to wait in the
    /// queue.
    LeakyBucket,
    /// One count per window aligned to the epoch.
    FixedWindow,
    /// Every admitted request of the last window is recorded: exact.
    SlidingLog,
    /// The previous window's count, weighted by how much of it still overlaps, plus this window's.
    SlidingCounter,
    /// The generic cell rate algorithm: makes the same decisions as a token bucket.
    Gcra,
}

named!(Algorithm {
    TokenBucket => "token_bucket",
    LeakyBucket => "leaky_bucket",
    FixedWindow => "fixed_window",
    SlidingLog => "sliding_log",
    SlidingCounter => "sliding_counter",
    Gcra => "gcra",
});

impl Algorithm {
    /// The algorithm's number in stored states; it never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::TokenBucket => 1,
            Self::LeakyBucket => 2,
            Self::FixedWindow => 3,
            Self::SlidingLog => 4,
            Self::SlidingCounter => 5,
            Self::Gcra => 6,
        }
    }

    /// Whether the algorithm has a capacity apart from its quota (`burst`).
    pub const fn takes_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket | Self::Gcra)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    /// Accepts the six names in lower or upper case, and `sliding_window` for `sliding_log`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.to_ascii_lowercase();
        if lower == "sliding_window" {
            return Ok(Self::SlidingLog);
        }
        Self::parse(&lower).ok_or(UnknownAlgorithm)
    }
}

/// The error of parsing a name that is none of the six algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown algorithm; expected {}", Algorithm::expected())]
pub struct UnknownAlgorithm;

/// The numbers of a limit: algorithm, quota, window and burst. A limit has no name and no key.
///
/// ```
/// use std::time::Duration;
/// use pacegate_core::{Algorithm, Limit};
///
/// let bursty = Limit::per_second(10).burst(100).build()?;
/// assert_eq!(bursty.capacity(), 100);
/// let exact = Limit::try_new(Algorithm::SlidingLog, 100, Duration::from_secs(60))?;
/// assert_eq!(exact.capacity(), 100);
/// # Ok::<(), pacegate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    algorithm: Algorithm,
    quota: u32,
    burst: u32,
    /// In microseconds.
    window: u64,
    scale: Scale,
}

impl Limit {
    /// The largest quota and burst.
    pub const QUOTA_MAX: u64 = 1_000_000_000;
    /// The largest quota of a sliding log, which records every admitted request.
    pub const SLIDING_LOG_QUOTA_MAX: u64 = 1_000_000;
    /// The shortest window.
    pub const WINDOW_MIN: Duration = Duration::from_millis(1);
    /// The longest window: 366 days.
    pub const WINDOW_MAX: Duration = Duration::from_secs(366 * 86_400);

    /// Returns a limit of `quota` per `window`; the burst equals the quota.
    ///
    /// # Errors
    /// [`InvalidLimit`] when a number is out of range.
    pub fn try_new(algorithm: Algorithm, quota: u64, window: Duration) -> Result<Self, InvalidLimit> {
        let quota_max = match algorithm {
            Algorithm::SlidingLog => Self::SLIDING_LOG_QUOTA_MAX,
            _ => Self::QUOTA_MAX,
        };
        let quota =
            in_range(quota, quota_max).ok_or(InvalidLimit::QuotaOutOfRange { quota, max: quota_max })?;
        if !(Self::WINDOW_MIN..=Self::WINDOW_MAX).contains(&window) {
            return Err(InvalidLimit::WindowOutOfRange { window });
        }
        if !window.subsec_nanos().is_multiple_of(1_000) {
            return Err(InvalidLimit::WindowTooFine { window });
        }
        let window = window.as_secs() * 1_000_000 + u64::from(window.subsec_micros());
        let scale = Scale::choose(algorithm, quota, quota, window);
        Ok(Self { algorithm, quota, burst: quota, window, scale })
    }

    /// The same limit with another burst.
    ///
    /// # Errors
    /// [`InvalidLimit`] when `burst` is out of range, or differs from the quota of an algorithm
    /// without a burst.
    pub fn with_burst(self, burst: u64) -> Result<Self, InvalidLimit> {
        let value = in_range(burst, Self::QUOTA_MAX)
            .ok_or(InvalidLimit::BurstOutOfRange { burst, max: Self::QUOTA_MAX })?;
        if !self.algorithm.takes_burst() && value != self.quota {
            return Err(InvalidLimit::BurstNotSupported { algorithm: self.algorithm });
        }
        let scale = Scale::choose(self.algorithm, self.quota, value, self.window);
        Ok(Self { burst: value, scale, ..self })
    }

    /// A builder for a token bucket of `quota` per second.
    pub const fn per_second(quota: u64) -> LimitBuilder {
        Self::per(quota, Duration::from_secs(1))
    }

    /// A builder for a token bucket of `quota` per minute.
    pub const fn per_minute(quota: u64) -> LimitBuilder {
        Self::per(quota, Duration::from_secs(60))
    }

    /// A builder for a token bucket of `quota` per hour.
    pub const fn per_hour(quota: u64) -> LimitBuilder {
        Self::per(quota, Duration::from_secs(3_600))
    }

    /// A builder for a token bucket of `quota` per day of 24 hours.
    pub const fn per_day(quota: u64) -> LimitBuilder {
        Self::per(quota, Duration::from_secs(86_400))
    }

    /// A builder for a token bucket of `quota` per `window`.
    pub const fn per(quota: u64, window: Duration) -> LimitBuilder {
        LimitBuilder::new(quota, window)
    }

    /// The largest limit, for callers that are not limited where a limit is required.
    pub fn largest() -> Self {
        let (algorithm, quota, window) = (Algorithm::TokenBucket, Self::QUOTA_MAX as u32, 1_000_000);
        Self { algorithm, quota, burst: quota, window, scale: Scale::choose(algorithm, quota, quota, window) }
    }

    /// The algorithm.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How much is allowed per window in the long run.
    pub const fn quota(&self) -> u32 {
        self.quota
    }

    /// The window that the quota is counted over.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window)
    }

    /// The largest cost that a fresh counter allows at once: the burst, or the quota without a
    /// burst.
    #[inline]
    pub const fn capacity(&self) -> u32 {
        self.burst
    }

    /// How long an exhausted counter takes to recover fully at the quota's rate, in seconds,
    /// rounded up.
    pub const fn refill_secs_ceil(&self) -> u64 {
        let micros = (self.burst as u128 * self.window as u128).div_ceil(self.quota as u128);
        micros.div_ceil(1_000_000) as u64
    }

    #[inline]
    pub(crate) const fn window_micros(&self) -> u64 {
        self.window
    }

    /// The constants that decisions are computed with, for stores that decide outside this process.
    #[inline]
    pub const fn scale(&self) -> &Scale {
        &self.scale
    }
}

const fn in_range(number: u64, max: u64) -> Option<u32> {
    if number >= 1 && number <= max { Some(number as u32) } else { None }
}

/// The error of a limit with an invalid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", self.field(), self.reason())]
#[non_exhaustive]
pub enum InvalidLimit {
    /// The quota is zero or too large.
    QuotaOutOfRange {
        /// The value that was passed.
        quota: u64,
        /// The largest quota of this algorithm.
        max: u64,
    },
    /// The burst is zero or too large.
    BurstOutOfRange {
        /// The value that was passed.
        burst: u64,
        /// The largest burst.
        max: u64,
    },
    /// A burst was set for an algorithm that counts by windows.
    BurstNotSupported {
        /// The algorithm without a burst.
        algorithm: Algorithm,
    },
    /// The window is too short or too long.
    WindowOutOfRange {
        /// The value that was passed.
        window: Duration,
    },
    /// The window is not a whole number of microseconds.
    WindowTooFine {
        /// The value that was passed.
        window: Duration,
    },
}

impl InvalidLimit {
    /// The name of the invalid field, as in configuration files.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::QuotaOutOfRange { .. } => "limit",
            Self::BurstOutOfRange { .. } | Self::BurstNotSupported { .. } => "burst",
            Self::WindowOutOfRange { .. } | Self::WindowTooFine { .. } => "window",
        }
    }

    /// What is wrong with the field, without its name.
    pub fn reason(&self) -> String {
        match self {
            Self::QuotaOutOfRange { quota: number, max } | Self::BurstOutOfRange { burst: number, max } => {
                format!("must be between 1 and {max}, got {number}")
            }
            Self::BurstNotSupported { algorithm } => {
                format!("not supported by {algorithm}; only token_bucket, leaky_bucket and gcra have a burst")
            }
            Self::WindowOutOfRange { window } => {
                format!("must be between 1ms and 366 days, got {window:?}")
            }
            Self::WindowTooFine { window } => {
                format!("must be a whole number of microseconds, got {window:?}")
            }
        }
    }
}

/// The integers that a limit computes with, all below 2^53 so that Lua's doubles agree to the bit.
///
/// A token is `unit` units and `rate` units come back per tick. A tick is a microsecond unless the
/// capacity in units would reach 2^53; then it is 10, 100, … µs, and the window is rounded up to
/// whole ticks, against the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale {
    /// What a state must have been written under, apart from the quota, to be read without
    /// conversion.
    pub(crate) shape: Shape,
    /// Microseconds per tick.
    pub(crate) tick: u64,
    pub(crate) window_ticks: u64,
    pub(crate) unit: u64,
    pub(crate) rate: u64,
    pub(crate) by_unit: Divisor,
    by_rate: Divisor,
    /// The burst in units.
    pub(crate) capacity: u64,
    /// If more than this remains, the standing is normal whatever it was before: 30 % of the
    /// capacity.
    pub(crate) normal_above: u32,
}

impl Scale {
    /// Microseconds per tick: 10 to the power of [`tick_exponent`](Self::tick_exponent).
    pub const fn tick(&self) -> u64 {
        self.tick
    }

    /// The power of ten of a tick: 0 for microseconds.
    pub const fn tick_exponent(&self) -> u8 {
        self.shape.tick_exponent()
    }

    /// The window in ticks, rounded up.
    pub const fn window_ticks(&self) -> u64 {
        self.window_ticks
    }

    /// Units per token.
    pub const fn unit(&self) -> u64 {
        self.unit
    }

    /// Units that come back per tick.
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// The capacity in units; 0 for algorithms that do not count in units.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    fn choose(algorithm: Algorithm, quota: u32, burst: u32, window: u64) -> Self {
        // Window algorithms compare counts × ticks without the gcd, because both counts are
        // arbitrary.
        let reduce = algorithm.takes_burst();
        let needs_ticks = reduce || algorithm == Algorithm::SlidingCounter;
        let mut tick_exponent = 0;
        loop {
            let mut scale = Self::new(algorithm, quota, window, tick_exponent);
            scale.normal_above = (u64::from(burst) * 30 / 100) as u32;
            let unit = if reduce { scale.unit } else { scale.window_ticks };
            match unit.checked_mul(u64::from(burst)) {
                Some(capacity) if capacity <= EXACT_MAX => {
                    scale.capacity = capacity;
                    return scale;
                }
                _ if needs_ticks => tick_exponent += 1,
                _ => return scale,
            }
        }
    }

    /// The constants of a quota at a given tick, for reading state that was written under another
    /// limit.
    pub(crate) fn new(algorithm: Algorithm, quota: u32, window: u64, tick_exponent: u8) -> Self {
        let tick = 10u64.pow(u32::from(tick_exponent));
        let window_ticks = window.div_ceil(tick);
        let divisor = greatest_common_divisor(u64::from(quota), window_ticks);
        let (unit, rate) = (window_ticks / divisor, u64::from(quota) / divisor);
        Self {
            shape: Shape::new(algorithm, window, tick_exponent),
            tick,
            window_ticks,
            unit,
            rate,
            by_unit: Divisor::new(unit),
            by_rate: Divisor::new(rate),
            capacity: 0,
            normal_above: 0,
        }
    }

    /// The tick that contains `micros`.
    #[inline]
    pub(crate) const fn tick_of(&self, micros: u64) -> u64 {
        // The test is far cheaper than the division, and almost every limit counts in microseconds.
        if self.tick == 1 { micros } else { micros / self.tick }
    }

    /// The number of ticks until `units` (at most 2^53 - 1) have come back, rounded up.
    #[inline(always)]
    pub(crate) const fn ticks_to_drain(&self, units: u64) -> u64 {
        self.by_rate.divide_up(units)
    }

    /// The start of `tick` in microseconds, saturating like every time.
    #[inline]
    pub(crate) fn micros_of(&self, tick: u64) -> u64 {
        if self.tick == 1 { tick.min(EXACT_MAX) } else { tick.saturating_mul(self.tick).min(EXACT_MAX) }
    }
}

/// Algorithm, window and tick in one word: compared at once and stored compactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape(u64);

impl Shape {
    // 366 days are 45 bits of microseconds; the tick's exponent is at most 13.
    const WINDOW_BITS: u32 = 48;
    const TICK_BITS: u32 = 8;

    pub(crate) const fn new(algorithm: Algorithm, window: u64, tick_exponent: u8) -> Self {
        let tick = (tick_exponent as u64) << Self::WINDOW_BITS;
        Self(window | tick | (algorithm as u64) << (Self::WINDOW_BITS + Self::TICK_BITS))
    }

    pub(crate) const fn window(self) -> u64 {
        self.0 & ((1 << Self::WINDOW_BITS) - 1)
    }

    pub(crate) const fn tick_exponent(self) -> u8 {
        (self.0 >> Self::WINDOW_BITS) as u8
    }

    /// Whether algorithm and window are the same, whatever the tick.
    pub(crate) const fn counts_like(self, other: Self) -> bool {
        let tick = ((1 << Self::TICK_BITS) - 1) << Self::WINDOW_BITS;
        (self.0 ^ other.0) & !tick == 0
    }
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_stays_exact_at_the_extremes() {
        let windows = [1_000, 1_001, 999_983, 60_000_000, 31_622_399_999_999, 31_622_400_000_000];
        for window in windows {
            for quota in [1, 2, 3, 7, 1_000, 999_999_937, 1_000_000_000] {
                for burst in [1, 9, 1_000, 999_999_937, 1_000_000_000] {
                    let window = Duration::from_micros(window);
                    let limit = Limit::try_new(Algorithm::TokenBucket, quota, window)
                        .and_then(|limit| limit.with_burst(burst))
                        .unwrap();
                    let scale = limit.scale();
                    assert!(scale.capacity <= EXACT_MAX);
                    assert_eq!(scale.capacity, scale.unit * burst);
                    assert!(scale.window_ticks * scale.tick >= limit.window_micros());
                }
            }
        }
    }

    #[test]
    fn ticks_are_microseconds_until_the_capacity_would_reach_2_to_the_53() {
        let day = Duration::from_secs(86_400);
        let fine = Limit::try_new(Algorithm::SlidingCounter, 100_000, day).unwrap();
        assert_eq!(fine.scale().tick, 1);
        let coarse = Limit::try_new(Algorithm::SlidingCounter, 1_000_000, day).unwrap();
        assert_eq!(coarse.scale().tick, 10);
        // The common divisor keeps a bucket with the same numbers on microseconds.
        let bucket = Limit::try_new(Algorithm::TokenBucket, 1_000_000, day).unwrap();
        assert_eq!(bucket.scale().tick, 1);
    }
}
