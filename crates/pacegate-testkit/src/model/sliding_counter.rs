//! Sliding counter: the count of this window plus a decreasing share of the previous one.

use std::sync::Arc;

use super::ModelLimit;
use super::key::{Counter, SharedCounter};
use super::search::first_within;
use super::ticks::Ticks;

/// The largest quota of any limit.
const LARGEST_QUOTA: i128 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct SlidingCounter {
    limit: ModelLimit,
    ticks: Ticks,
    number: i128,
    /// Whole ticks since the window began. It is not stored: moving to another time, even an
    /// earlier one, replaces it.
    offset: i128,
    current: i128,
    previous: i128,
}

impl SlidingCounter {
    pub(super) fn fresh(limit: &ModelLimit, now: i128) -> SlidingCounter {
        let ticks = Ticks::of_counter(limit);
        let window = i128::from(limit.window);
        SlidingCounter {
            limit: *limit,
            ticks,
            number: now / window,
            offset: ticks.at(now % window),
            current: 0,
            previous: 0,
        }
    }

    fn moved(&self, limit: &ModelLimit, now: i128) -> SlidingCounter {
        let new = SlidingCounter::fresh(limit, now);
        let (number, offset, current, previous) = match new.number - self.number {
            0 => (new.number, new.offset, self.current, self.previous),
            1 => (new.number, new.offset, 0, self.current),
            passed if passed > 1 => (new.number, new.offset, 0, 0),
            _ => (self.number, 0, self.current, self.previous),
        };
        SlidingCounter { number, offset, current, previous, ..new }
    }

    /// What is available under the quota, in units of one token divided by the ticks per window.
    fn available(&self) -> i128 {
        let fading = self.previous * (self.ticks.window - self.offset);
        (i128::from(self.limit.quota) - self.current) * self.ticks.window - fading
    }

    fn with_counts(&self, current: i128, previous: i128) -> SharedCounter {
        Arc::new(SlidingCounter { current, previous, ..self.clone() })
    }
}

impl Counter for SlidingCounter {
    fn seen(&self) -> i128 {
        self.number * i128::from(self.limit.window)
    }

    fn taken_at(&self, now: i128) -> SharedCounter {
        // A count above the largest quota is as full as that quota.
        let current = (self.current + self.previous).min(LARGEST_QUOTA);
        Arc::new(SlidingCounter { current, ..SlidingCounter::fresh(&self.limit, now) })
    }

    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter {
        Arc::new(self.moved(limit, now))
    }

    fn admits(&self, cost: i128) -> bool {
        cost * self.ticks.window <= self.available()
    }

    fn remaining(&self) -> i128 {
        self.available().max(0) / self.ticks.window
    }

    fn available_with_debt(&self) -> i128 {
        (2 * i128::from(self.limit.quota) - self.current - self.previous).max(self.remaining())
    }

    fn reset_at(&self) -> Option<i128> {
        let window = i128::from(self.limit.window);
        if self.current > 0 {
            Some((self.number + 2) * window)
        } else if self.previous > 0 {
            Some((self.number + 1) * window)
        } else {
            None
        }
    }

    fn retry_at(&self, cost: i128) -> i128 {
        let window = i128::from(self.limit.window);
        let mut number = self.number;
        // Availability grows within a window but jumps where the next one begins, so each window is
        // searched separately.
        loop {
            let time = |offset| number * window + offset * self.ticks.length;
            let earliest = if number == self.number { self.offset } else { 0 };
            let found = first_within(earliest, self.ticks.window, |offset| {
                self.moved(&self.limit, time(offset)).admits(cost)
            });
            if let Some(offset) = found {
                return time(offset);
            }
            number += 1;
        }
    }

    fn charged(&self, cost: i128) -> SharedCounter {
        self.with_counts(self.current + cost, self.previous)
    }

    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter> {
        let taken_in = taken_at.map(|time| time / i128::from(self.limit.window));
        let from_current = match taken_in {
            Some(number) if number != self.number => 0,
            _ => cost.min(self.current),
        };
        let from_previous = match taken_in {
            Some(number) if number != self.number - 1 => 0,
            _ => (cost - from_current).min(self.previous),
        };
        (from_current + from_previous > 0)
            .then(|| self.with_counts(self.current - from_current, self.previous - from_previous))
    }
}
