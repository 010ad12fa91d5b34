//! A clock that moves only when a test moves it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate_core::Timestamp;
use pacegate_store::Clock;

/// A clock that stands still until it is moved; it can also be set back.
///
/// ```
/// use std::time::Duration;
/// use pacegate_core::Timestamp;
/// use pacegate_store::Clock;
/// use pacegate_testkit::SimulatedClock;
///
/// let clock = SimulatedClock::at(Timestamp::from_micros(1_000));
/// clock.advance(Duration::from_micros(5));
/// assert_eq!(clock.now(), Timestamp::from_micros(1_005));
/// ```
#[derive(Debug)]
pub struct SimulatedClock(AtomicU64);

impl SimulatedClock {
    /// A clock that shows `time`.
    pub fn at(time: Timestamp) -> Self {
        Self(AtomicU64::new(time.as_micros()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let now = self.now().saturating_add(by);
        self.set(now);
    }

    /// Sets the clock to `time`, earlier or later.
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }
}

impl Default for SimulatedClock {
    /// A clock in 2026, so that windows are not at their very start.
    fn default() -> Self {
        Self::at(Timestamp::from_micros(1_790_000_000_123_456))
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}
