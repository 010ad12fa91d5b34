//! The machine's clock, cheap enough to be read on every check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pacegate_core::Timestamp;
use pacegate_store::Clock;

/// How often the machine's wall clock is looked at.
const COMPARE_EVERY_MICROS: u64 = 1_000_000;
/// How far one comparison may move our time: 500 ppm, the rate at which NTP slews.
const SLEW_MICROS_MAX: u64 = 500;
/// A wall clock this far ahead was set, or the machine slept: follow at once.
const STEP_MICROS: u64 = 1_000_000;

/// Wall-clock time counted by the processor's time-stamp counter.
///
/// When the wall clock is set back, it keeps its pace and nears it at 500 ppm, so that nobody is locked out or let in. Two threads may so see it
/// half a millisecond apart once a second; no key's time goes back by that.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// What the counter showed at our start.
    start: u64,
    /// Microseconds per count, times 2^64.
    micros_per_count: u64,
    /// Microseconds from our start to the epoch; moved by the comparisons.
    offset: AtomicU64,
    /// When the wall clock is looked at again, in microseconds since our start.
    compare_at: AtomicU64,
}

impl SystemClock {
    /// Reads the wall clock once and counts from there. The first one in a process calibrates for a few milliseconds.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        // Counting to microseconds at once saves a check the way over nanoseconds and a division.
        const COUNTS: u64 = 1 << 40;
        let nanos = u128::from(counter.delta_as_nanos(0, COUNTS));
        let micros_per_count = u64::try_from((nanos << (64 - 40)) / 1_000).unwrap_or(u64::MAX);
        Self {
            counter,
            start,
            micros_per_count,
            offset: AtomicU64::new(wall_micros()),
            compare_at: AtomicU64::new(COMPARE_EVERY_MICROS),
        }
    }

    #[cold]
    fn compare(&self, elapsed: u64) {
        let compare_at = self.compare_at.load(Ordering::Relaxed);
        let next = elapsed + COMPARE_EVERY_MICROS;
        // One thread compares; the others go on with the offset there is.
        let won =
            self.compare_at.compare_exchange(compare_at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if compare_at > elapsed || !won {
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
    #[inline(always)]
    fn now(&self) -> Timestamp {
        // Neither difference nor sum can overflow in the lifetime of a machine.
        let counts = self.counter.raw().wrapping_sub(self.start);
        let elapsed = ((u128::from(counts) * u128::from(self.micros_per_count)) >> 64) as u64;
        if elapsed >= self.compare_at.load(Ordering::Relaxed) {
            self.compare(elapsed);
        }
        Timestamp::from_micros(self.offset.load(Ordering::Relaxed).wrapping_add(elapsed))
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
