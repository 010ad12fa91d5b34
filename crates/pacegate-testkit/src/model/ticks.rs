//! The resolution of time for the algorithms with fractions.

use super::ModelLimit;

/// The tick is chosen so that every scaled quantity stays below this.
const EXACT: i128 = 1 << 53;

/// The last valid microsecond; later times saturate.
pub(super) const LAST_TIME: i128 = EXACT - 1;

/// A tick length and the window measured in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    /// Microseconds per tick, a power of ten.
    pub(super) length: i128,
    /// Ticks per window, rounded up.
    pub(super) window: i128,
}

impl Ticks {
    /// The ticks of a bucket-like limit.
    pub(super) fn of_bucket(limit: &ModelLimit) -> Ticks {
        Ticks::finest(limit.window, |window| {
            i128::from(limit.burst) * window / common_divisor(limit.quota.into(), window)
        })
    }

    /// The ticks of a sliding counter.
    pub(super) fn of_counter(limit: &ModelLimit) -> Ticks {
        Ticks::finest(limit.window, |window| i128::from(limit.quota) * window)
    }

    fn finest(window: u64, largest_quantity: impl Fn(i128) -> i128) -> Ticks {
        let mut length = 1;
        loop {
            let ticks = Ticks { length, window: divide_up(window.into(), length) };
            if largest_quantity(ticks.window) < EXACT {
                return ticks;
            }
            length *= 10;
        }
    }

    /// The tick that contains `now`, in microseconds.
    pub(super) fn at(&self, now: i128) -> i128 {
        now / self.length
    }
}

/// The level of `used` whole tokens of an older limit under a new one, in units of one token
/// divided by the number of ticks in the window.
///
/// The cap is part of the semantics: it is applied in the coarser unit of one token divided by
/// `window / divisor`, and then scaled back up.
pub(super) fn carried_over(used: i128, quota: u64, ticks: &Ticks) -> i128 {
    let divisor = common_divisor(quota.into(), ticks.window);
    let unit = ticks.window / divisor;
    (used * unit).min(EXACT - 1) * divisor
}

/// Number of whole tokens that a charge with debt may add to `level`, until twice the burst is in
/// use. Levels stay below 2^53 in the coarser unit, which leaves less for the largest limits.
pub(super) fn available_with_debt(level: i128, limit: &ModelLimit, ticks: &Ticks) -> i128 {
    let divisor = common_divisor(limit.quota.into(), ticks.window);
    let most = (2 * i128::from(limit.burst) * ticks.window).min((EXACT - 1) * divisor);
    (most - level).max(0) / ticks.window
}

/// The tick at which a count under an older limit continues: that of `now`, or `last_seen` unless
/// it begins more than a window later.
pub(super) fn later_tick(ticks: &Ticks, limit: &ModelLimit, now: i128, last_seen: i128) -> i128 {
    if last_seen * ticks.length - now > i128::from(limit.window) {
        ticks.at(now)
    } else {
        last_seen.max(ticks.at(now))
    }
}

/// The quotient rounded up, for a `dividend` that is not negative.
pub(super) fn divide_up(dividend: i128, divisor: i128) -> i128 {
    (dividend + divisor - 1) / divisor
}

fn common_divisor(mut left: i128, mut right: i128) -> i128 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
