//! Token bucket and leaky bucket: a level that drains linearly.
//!
//! The level is in units of one token divided by the number of ticks in the window. One tick then
//! drains exactly `quota` units, so nothing is ever rounded. The largest products (2^53 ticks times
//! a quota of 10^9, a cost of 10^9 times 2^45 ticks) stay far below the range of `i128`.

use std::sync::Arc;

use super::key::{Counter, SharedCounter};
use super::search::first_from;
use super::ticks::{LAST_TIME, Ticks, available_with_debt, carried_over, divide_up, later_tick};
use super::{ModelAlgorithm, ModelLimit};

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    limit: ModelLimit,
    ticks: Ticks,
    level: i128,
    tick: i128,
}

impl Bucket {
    pub(super) fn fresh(limit: &ModelLimit, now: i128) -> Bucket {
        let ticks = Ticks::of_bucket(limit);
        Bucket { limit: *limit, ticks, level: 0, tick: ticks.at(now) }
    }

    /// The level at `tick`; a tick before the last one seen drains nothing.
    fn level_at(&self, tick: i128) -> i128 {
        let elapsed = (tick - self.tick).max(0);
        (self.level - elapsed * i128::from(self.limit.quota)).max(0)
    }

    fn admits_at(&self, tick: i128, cost: i128) -> bool {
        let burst = i128::from(self.limit.burst);
        self.level_at(tick) + cost * self.ticks.window <= burst * self.ticks.window
    }

    fn with_level(&self, level: i128) -> SharedCounter {
        Arc::new(Bucket { level, ..self.clone() })
    }
}

impl Counter for Bucket {
    fn seen(&self) -> i128 {
        self.tick * self.ticks.length
    }

    fn taken_at(&self, now: i128) -> SharedCounter {
        Arc::new(Bucket { tick: self.ticks.at(now), ..self.clone() })
    }

    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter {
        let new = Bucket::fresh(limit, now);
        let now_in_old_ticks = self.ticks.at(now).max(self.tick);
        let level = self.level_at(now_in_old_ticks);
        if self.limit.quota == limit.quota && self.ticks.length == new.ticks.length {
            return Arc::new(Bucket { level, tick: now_in_old_ticks, ..new });
        }
        let used = divide_up(level, self.ticks.window);
        let last_seen = divide_up((self.tick * self.ticks.length).min(LAST_TIME), new.ticks.length);
        Arc::new(Bucket {
            level: carried_over(used, limit.quota, &new.ticks),
            tick: later_tick(&new.ticks, limit, now, last_seen),
            ..new
        })
    }

    fn admits(&self, cost: i128) -> bool {
        self.admits_at(self.tick, cost)
    }

    fn remaining(&self) -> i128 {
        let available = i128::from(self.limit.burst) * self.ticks.window - self.level;
        available.max(0) / self.ticks.window
    }

    fn available_with_debt(&self) -> i128 {
        available_with_debt(self.level, &self.limit, &self.ticks)
    }

    fn reset_at(&self) -> Option<i128> {
        let empty = first_from(self.tick, |tick| self.level_at(tick) == 0);
        (self.level > 0).then_some(empty * self.ticks.length)
    }

    fn retry_at(&self, cost: i128) -> i128 {
        first_from(self.tick, |tick| self.admits_at(tick, cost)) * self.ticks.length
    }

    fn charged(&self, cost: i128) -> SharedCounter {
        self.with_level(self.level + cost * self.ticks.window)
    }

    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter> {
        let since = taken_at.map_or(0, |at| (self.tick - self.ticks.at(at)).max(0));
        let given = (cost * self.ticks.window - since * i128::from(self.limit.quota)).max(0);
        let level = (self.level - given).max(0);
        (level != self.level).then(|| self.with_level(level))
    }

    fn queue(&self, cost: i128) -> Option<(i128, i128)> {
        if self.limit.algorithm != ModelAlgorithm::LeakyBucket {
            return None;
        }
        let wait = first_from(0, |ticks| self.level_at(self.tick + ticks) == 0);
        let position = divide_up(self.level + cost * self.ticks.window, self.ticks.window);
        Some((wait * self.ticks.length, position))
    }
}
