//! Time as an integer number of microseconds, bounded so that every store can hold it exactly.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// The largest integer below which doubles, and so Lua numbers, represent every integer: 2^53 − 1.
pub(crate) const EXACT_MAX: u64 = (1 << 53) - 1;

/// A point in time: microseconds since the Unix epoch, saturating at [`Timestamp::MAX`] (the year
/// 2255).
///
/// ```
/// use std::time::Duration;
/// use pacegate_core::Timestamp;
///
/// let noon = Timestamp::from_micros(43_200_000_000);
/// assert_eq!(noon.saturating_add(Duration::from_millis(1)).as_micros(), 43_200_001_000);
/// assert_eq!(noon.saturating_since(Timestamp::MAX), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// One more than the microseconds, so that `Option<Timestamp>` is no larger than `Timestamp`.
    successor: NonZeroU64,
}

impl Timestamp {
    /// The latest representable time; arithmetic saturates here.
    pub const MAX: Self = Self::from_micros(EXACT_MAX);

    /// The time `micros` microseconds after the epoch, at most [`Timestamp::MAX`].
    #[inline(always)]
    pub const fn from_micros(micros: u64) -> Self {
        let micros = if micros < EXACT_MAX { micros } else { EXACT_MAX };
        Self { successor: NonZeroU64::MIN.saturating_add(micros) }
    }

    /// Microseconds since the epoch.
    #[inline(always)]
    pub const fn as_micros(self) -> u64 {
        self.successor.get() - 1
    }

    /// Whole seconds since the epoch, rounded up: the form sent to clients, which is never too
    /// early.
    #[inline]
    pub const fn as_secs_ceil(self) -> u64 {
        self.as_micros().div_ceil(1_000_000)
    }

    /// This time plus `duration`, at most [`Timestamp::MAX`].
    pub fn saturating_add(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self::from_micros(self.as_micros().saturating_add(micros))
    }

    /// The time from `earlier` to this one; zero if this one is not later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.as_micros().saturating_sub(earlier.as_micros()))
    }
}

impl Default for Timestamp {
    /// The epoch.
    fn default() -> Self {
        Self::from_micros(0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Timestamp({})", self.as_micros())
    }
}
