//! The machine's clock, cheap enough to be read on every check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::Timestamp;
use tollgate_store::Clock;

/// How often the machine's wall clock is looked at.
const COMPARE_EVERY_MICROS: u64 = 1_000_000;
/// How far one comparison may move our time: 500 ppm, the rate at which NTP slews.
const SLEW_MICROS_MAX: u64 = 500;
/// A wall clock this far ahead was set, or the machine slept: follow at once.
const STEP_MICROS: u64 = 1_000_000;

/// Wall-clock time counted by the processor's time-stamp counter.
///
/// It never goes back: when the wall clock is set back, it keeps its pace and nears it at 500 ppm, so that nobody is locked out.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    start: u64,
    /// Microseconds from our start to the epoch; moved by the comparisons.
    offset: AtomicU64,
    /// When the wall clock was last looked at, in microseconds since our start.
    compared: AtomicU64,
}

impl SystemClock {
    /// Reads the wall clock once and counts from there. The first one in a process calibrates for a few milliseconds.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        Self { counter, start, offset: AtomicU64::new(wall_micros()), compared: AtomicU64::new(0) }
    }

    #[cold]
    fn compare(&self, elapsed: u64) {
        let compared = self.compared.load(Ordering::Relaxed);
        // One thread compares; the others go on with the offset there is.
        if self.compared.compare_exchange(compared, elapsed, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let offset = self.offset.load(Ordering::Relaxed);
        self.offset.store(corrected(offset, wall_micros().saturating_sub(elapsed)), Ordering::Relaxed);
    }
}

/// The offset to use when the wall clock suggests `wanted`.
fn corrected(offset: u64, wanted: u64) -> u64 {
    if wanted >= offset + STEP_MICROS {
        wanted
    } else if wanted >= offset {
        offset + (wanted - offset).min(SLEW_MICROS_MAX)
    } else {
        offset - (offset - wanted).min(SLEW_MICROS_MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall_micros() -> u64 {
    // A machine set before 1970 counts from 1970.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.counter.delta_as_nanos(self.start, self.counter.raw()) / 1_000;
        if elapsed.saturating_sub(self.compared.load(Ordering::Relaxed)) >= COMPARE_EVERY_MICROS {
            self.compare(elapsed);
        }
        Timestamp::from_micros(self.offset.load(Ordering::Relaxed).saturating_add(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_wall_clock_without_going_back() {
        let offset = 1_000_000_000;
        assert_eq!(corrected(offset, offset + 3_600_000_000), offset + 3_600_000_000, "set forward");
        assert_eq!(corrected(offset, offset + 2_000), offset + 500, "a little slow");
        assert_eq!(corrected(offset, offset - 200), offset - 200, "a little fast");
        assert_eq!(corrected(offset, offset - 3_600_000_000 / 4), offset - 500, "set back");
    }

    #[test]
    fn tells_the_wall_clock_time() {
        let clock = SystemClock::new();
        let before = wall_micros();
        let now = clock.now().as_micros();
        assert!(now.abs_diff(before) < 1_000_000, "{now} is far from {before}");
        assert!(clock.now().as_micros() >= now);
    }
}
