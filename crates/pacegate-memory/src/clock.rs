//! The machine's clocks, cheap enough to read on every check.
//!
//! Time is counted by the processor's time-stamp counter. Once a second it is compared with the
//! operating system's monotonic clock, because the counter may jump when the machine is suspended
//! or restored on another host, and with the wall clock, which may be set.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pacegate_core::Timestamp;
use pacegate_store::Clock;
use parking_lot::Mutex;

/// Interval between comparisons with the machine's other clocks.
const COMPARE_EVERY_MICROS: u64 = 1_000_000;
/// Maximum correction per comparison: 500 ppm, the rate at which NTP slews.
const SLEW_MICROS_MAX: u64 = 500;
/// A wall clock this far ahead was set, or the machine was suspended: follow it at once.
const STEP_MICROS: u64 = 1_000_000;
/// Maximum deviation from the monotonic clock: a thousandth of the elapsed time, plus this for
/// reading one after the other. Beyond it, the counter jumped.
const READING_MICROS_MAX: u64 = 10_000;

/// The clock of counters in memory. It never goes back.
///
/// When the wall clock is set back, this clock continues and approaches it at 500 ppm, so that no
/// caller is locked out or admitted early. Until then it is [ahead](Self::ahead). Once a second,
/// two threads may see it half a millisecond apart; this never moves a key's time back.
#[derive(Debug)]
pub struct SystemClock(Counted<Machine>);

/// The machine's time of day. It follows the wall clock within a second, also backwards.
#[derive(Debug)]
pub struct WallClock(Counted<Machine>);

impl SystemClock {
    /// Reads the wall clock once and counts from there. The first clock in a process calibrates for
    /// a few milliseconds.
    pub fn new() -> Self {
        Self(Counted::new(Machine::new()))
    }

    /// How many microseconds it is ahead of the wall clock, as of the last comparison, because the
    /// wall clock was set back.
    pub fn ahead(&self) -> u64 {
        self.0.ahead.load(Ordering::Relaxed)
    }
}

impl WallClock {
    /// Reads the wall clock once and counts from there until the next comparison.
    pub fn new() -> Self {
        Self(Counted::new(Machine::new()))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        self.0.now(approach)
    }
}

impl Clock for WallClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        self.0.now(|_, wall| wall)
    }
}

/// The next value of the counters' clock, which is at `time` while the wall clock shows `wall`.
fn approach(time: u64, wall: u64) -> u64 {
    if wall >= time.saturating_add(STEP_MICROS) {
        wall
    } else if wall >= time {
        time + (wall - time).min(SLEW_MICROS_MAX)
    } else {
        time - (time - wall).min(SLEW_MICROS_MAX)
    }
}

/// The machine's sources of time.
trait Source: fmt::Debug {
    /// The processor's counter.
    fn count(&self) -> u64;
    /// The duration of 2^64 counts in microseconds.
    fn micros_per_2_64_counts(&self) -> u64;
    /// Time that passes while the machine runs, from an arbitrary start.
    fn monotonic_micros(&self) -> u64;
    /// Time since the epoch by the wall clock.
    fn wall_micros(&self) -> u64;
}

#[derive(Debug)]
struct Machine {
    counter: quanta::Clock,
    started: Instant,
}

impl Machine {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn new() -> Self {
        Self { counter: quanta::Clock::new(), started: Instant::now() }
    }
}

impl Source for Machine {
    #[inline(always)]
    fn count(&self) -> u64 {
        self.counter.raw()
    }

    fn micros_per_2_64_counts(&self) -> u64 {
        const COUNTS: u64 = 1 << 40;
        let nanos = u128::from(self.counter.delta_as_nanos(0, COUNTS));
        u64::try_from((nanos << (64 - 40)) / 1_000).unwrap_or(u64::MAX)
    }

    fn monotonic_micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn wall_micros(&self) -> u64 {
        // A machine set before 1970 counts from 1970.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).map_or(Timestamp::MAX, Timestamp::from_micros).as_micros()
    }
}

/// A clock that counts by a counter and compares itself with the other clocks once a second.
#[derive(Debug)]
struct Counted<S> {
    source: S,
    /// Converts counts to microseconds directly, without nanoseconds and a division.
    micros_per_2_64_counts: u64,
    /// The counter at the last comparison.
    compared_at: AtomicU64,
    /// The time then, in microseconds since the epoch.
    time: AtomicU64,
    /// How far the time was ahead of the wall clock then.
    ahead: AtomicU64,
    /// The monotonic clock then. Locked by the thread that compares.
    monotonic: Mutex<u64>,
}

impl<S: Source> Counted<S> {
    fn new(source: S) -> Self {
        let (monotonic, wall, count) = (source.monotonic_micros(), source.wall_micros(), source.count());
        Self {
            micros_per_2_64_counts: source.micros_per_2_64_counts(),
            compared_at: AtomicU64::new(count),
            time: AtomicU64::new(wall),
            ahead: AtomicU64::new(0),
            monotonic: Mutex::new(monotonic),
            source,
        }
    }

    /// `follow` returns the new time at a comparison, from the uncorrected time and the wall clock.
    #[inline(always)]
    fn now(&self, follow: fn(u64, u64) -> u64) -> Timestamp {
        let compared_at = self.compared_at.load(Ordering::Acquire);
        let time = self.time.load(Ordering::Acquire);
        // Read last: a count from before a jump must not be combined with the time after it.
        let elapsed = self.micros(self.source.count().wrapping_sub(compared_at));
        let now = if elapsed < COMPARE_EVERY_MICROS { time + elapsed } else { self.compare(follow) };
        Timestamp::from_micros(now)
    }

    /// Converts counts to microseconds. A counter that went back appears to have counted for
    /// centuries.
    #[inline(always)]
    fn micros(&self, counts: u64) -> u64 {
        ((u128::from(counts) * u128::from(self.micros_per_2_64_counts)) >> 64) as u64
    }

    /// Compares with the other clocks and returns the time.
    #[cold]
    fn compare(&self, follow: fn(u64, u64) -> u64) -> u64 {
        let mut monotonic = self.monotonic.lock();
        let count = self.source.count();
        let elapsed = self.micros(count.wrapping_sub(self.compared_at.load(Ordering::Relaxed)));
        let time = self.time.load(Ordering::Relaxed);
        if elapsed < COMPARE_EVERY_MICROS {
            // Another thread has just compared.
            return time + elapsed;
        }
        let (present, wall) = (self.source.monotonic_micros(), self.source.wall_micros());
        let passed = present.saturating_sub(*monotonic);
        let jumped = elapsed.abs_diff(passed) > READING_MICROS_MAX + passed / 1_000;
        let next = follow(time.saturating_add(if jumped { passed } else { elapsed }), wall);
        *monotonic = present;
        self.ahead.store(next.saturating_sub(wall), Ordering::Relaxed);
        // In this order: a thread that sees the new count sees the new time.
        self.time.store(next, Ordering::Release);
        self.compared_at.store(count, Ordering::Release);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3_600 * SECOND;
    const START: u64 = 1_790_000_000 * SECOND;
    const COUNTS_PER_MICRO: u64 = 3_000;

    /// A machine whose clocks are set by the test.
    #[derive(Debug)]
    struct Moved {
        count: AtomicU64,
        monotonic: AtomicU64,
        wall: AtomicU64,
    }

    impl Source for Moved {
        fn count(&self) -> u64 {
            self.count.load(Ordering::Relaxed)
        }

        fn micros_per_2_64_counts(&self) -> u64 {
            u64::MAX.div_ceil(COUNTS_PER_MICRO)
        }

        fn monotonic_micros(&self) -> u64 {
            self.monotonic.load(Ordering::Relaxed)
        }

        fn wall_micros(&self) -> u64 {
            self.wall.load(Ordering::Relaxed)
        }
    }

    impl Moved {
        fn clock() -> Counted<Self> {
            let count = AtomicU64::new(1 << 50);
            Counted::new(Self { count, monotonic: AtomicU64::new(77), wall: AtomicU64::new(START) })
        }

        fn pass(&self, micros: u64) {
            self.count.fetch_add(micros * COUNTS_PER_MICRO, Ordering::Relaxed);
            self.monotonic.fetch_add(micros, Ordering::Relaxed);
            self.wall.fetch_add(micros, Ordering::Relaxed);
        }

        fn set_wall(&self, by: i64) {
            self.wall.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    fn counters(clock: &Counted<Moved>) -> u64 {
        clock.now(approach).as_micros()
    }

    fn wall(clock: &Counted<Moved>) -> u64 {
        clock.now(|_, wall| wall).as_micros()
    }

    fn assert_shows(time: u64, expected: u64) {
        assert!(time.abs_diff(expected) <= 1_000, "expected {expected}, got {time}");
    }

    #[test]
    fn time_is_counted_between_comparisons_and_after_idle_periods() {
        let clock = Moved::clock();
        let mut passed = 0;
        for step in [0, 1, 999_998, 1, 1, 700_000, 700_000, HOUR, 3, 90 * 24 * HOUR] {
            clock.source.pass(step);
            passed += step;
            assert_shows(counters(&clock), START + passed);
        }
    }

    #[test]
    fn counter_jump_does_not_change_the_time() {
        // Back before its start (suspend), back by a little, and ahead (restored on another
        // machine).
        for (from, to) in [(1 << 50, 5), (1 << 50, (1 << 50) - 1_000_000_000), (1 << 50, 1 << 62)] {
            let clock = Moved::clock();
            clock.source.pass(10 * SECOND);
            assert_shows(counters(&clock), START + 10 * SECOND);
            clock.source.count.fetch_add(to, Ordering::Relaxed);
            clock.source.count.fetch_sub(from, Ordering::Relaxed);
            clock.source.pass(20);
            assert_shows(counters(&clock), START + 10 * SECOND);
            // It continues from there, also past the count that it had before.
            for second in 11..1_000 {
                clock.source.pass(SECOND);
                assert_shows(counters(&clock), START + second * SECOND);
            }
        }
    }

    #[test]
    fn system_clock_follows_a_step_forward_at_once_and_never_goes_back() {
        let clock = Moved::clock();
        clock.source.pass(SECOND);
        clock.source.set_wall(HOUR as i64);
        assert_shows(counters(&clock), START + SECOND + HOUR);
        assert_eq!(clock.ahead.load(Ordering::Relaxed), 0);
        clock.source.set_wall(-(HOUR as i64));
        let mut last = counters(&clock);
        for second in 2..100 {
            clock.source.pass(SECOND);
            let time = counters(&clock);
            assert!(time > last, "{time} after {last}");
            assert_shows(time, START + HOUR + second * SECOND - (second - 1) * SLEW_MICROS_MAX);
            assert_shows(clock.ahead.load(Ordering::Relaxed), HOUR - (second - 1) * SLEW_MICROS_MAX);
            last = time;
        }
    }

    #[test]
    fn system_clock_approaches_a_drifting_wall_clock() {
        for drift in [2_000, -2_000, 200, -200] {
            let clock = Moved::clock();
            clock.source.set_wall(drift);
            for slews in 1..=6 {
                clock.source.pass(SECOND);
                let neared = (slews * SLEW_MICROS_MAX as i64).min(drift.abs()) * drift.signum();
                let passed = START + slews as u64 * SECOND;
                let time = counters(&clock);
                let expected = passed.saturating_add_signed(neared);
                assert!(time.abs_diff(expected) < 100, "expected {expected} after {slews} slews, got {time}");
            }
        }
    }

    #[test]
    fn wall_clock_follows_in_both_directions() {
        let clock = Moved::clock();
        for step in [HOUR as i64, -(HOUR as i64), -(24 * HOUR as i64), 3] {
            clock.source.set_wall(step);
            clock.source.pass(SECOND);
            assert_eq!(wall(&clock), clock.source.wall_micros());
            clock.source.pass(SECOND / 2);
            assert_shows(wall(&clock), clock.source.wall_micros());
        }
    }

    #[test]
    fn processor_counter_agrees_with_the_monotonic_clock() {
        let clock = SystemClock::new().0;
        let source = &clock.source;
        let before = (source.monotonic_micros(), source.count(), source.monotonic_micros());
        while source.monotonic_micros() < before.2 + 20_000 {
            std::hint::spin_loop();
        }
        let after = (source.monotonic_micros(), source.count(), source.monotonic_micros());
        let counted = clock.micros(after.1 - before.1);
        let (least, most) = (after.0 - before.2, after.2 - before.0);
        // Each count was read between the two times around it; the calibration may be off by one
        // percent.
        let allowed = least - least / 100..=most + most / 100;
        assert!(allowed.contains(&counted), "expected {least} to {most} µs, counted {counted}");
    }

    #[test]
    fn clocks_return_the_time_of_day() {
        let (counters, wall) = (SystemClock::new(), WallClock::new());
        let before = counters.0.source.wall_micros();
        let times = [counters.now().as_micros(), wall.now().as_micros()];
        let after = counters.0.source.wall_micros();
        for time in times {
            assert!(
                (before - SECOND..=after + SECOND).contains(&time),
                "expected {before} to {after}, got {time}"
            );
        }
        assert!(counters.now().as_micros() >= times[0]);
        counters.0.ahead.store(7, Ordering::Relaxed);
        assert_eq!(counters.ahead(), 7);
    }
}
