//! Time as an integer number of microseconds, bounded so that every store can hold it exactly.

use std::time::Duration;

/// The largest integer that a double (and so a Lua number) still counts one by one from: 2^53 − 1.
pub(crate) const EXACT_MAX: u64 = (1 << 53) - 1;

/// A point in time: microseconds since the Unix epoch, saturating at [`Timestamp::MAX`] (the year 2255).
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::Timestamp;
///
/// let noon = Timestamp::from_micros(43_200_000_000);
/// assert_eq!(noon.saturating_add(Duration::from_millis(1)).as_micros(), 43_200_001_000);
/// assert_eq!(noon.saturating_since(Timestamp::MAX), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The latest representable time; arithmetic stops here instead of wrapping.
    pub const MAX: Self = Self(EXACT_MAX);

    /// The time `micros` microseconds after the epoch, at most [`Timestamp::MAX`].
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < EXACT_MAX { micros } else { EXACT_MAX })
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded up: the form sent to clients, never earlier than the truth.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// This time and `duration` more, at most [`Timestamp::MAX`].
    pub fn saturating_add(self, duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
