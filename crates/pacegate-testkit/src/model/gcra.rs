//! Generic cell rate algorithm. The state is a theoretical arrival time, and the tick of the last
//! charge, before which time does not go back.
//!
//! Times are in units of one tick divided by the quota. One token is then exactly as long as the
//! window has ticks, so nothing is ever rounded.

use std::sync::Arc;

use super::ModelLimit;
use super::key::{Counter, SharedCounter};
use super::search::first_from;
use super::ticks::{LAST_TIME, Ticks, available_with_debt, carried_over, divide_up, later_tick};

#[derive(Clone, Debug)]
pub(super) struct Gcra {
    limit: ModelLimit,
    ticks: Ticks,
    /// The tick of this value, never before one it was charged at.
    tick: i128,
    /// The theoretical arrival time; none for a fresh counter.
    arrival: Option<i128>,
}

impl Gcra {
    pub(super) fn fresh(limit: &ModelLimit, now: i128) -> Gcra {
        let ticks = Ticks::of_bucket(limit);
        Gcra { limit: *limit, ticks, tick: ticks.at(now), arrival: None }
    }

    fn scaled(&self, tick: i128) -> i128 {
        tick * i128::from(self.limit.quota)
    }

    /// How far the arrival time is ahead of `tick`, at least zero.
    fn ahead_at(&self, tick: i128) -> i128 {
        let start = self.scaled(tick);
        self.arrival.map_or(0, |arrival| arrival.max(start) - start)
    }

    fn admits_at(&self, tick: i128, cost: i128) -> bool {
        let tolerance = i128::from(self.limit.burst) * self.ticks.window;
        self.ahead_at(tick) + cost * self.ticks.window <= tolerance
    }

    fn with_arrival(&self, arrival: Option<i128>) -> SharedCounter {
        Arc::new(Gcra { arrival, ..self.clone() })
    }
}

impl Counter for Gcra {
    fn seen(&self) -> i128 {
        self.tick * self.ticks.length
    }

    fn taken_at(&self, now: i128) -> SharedCounter {
        let moved = Gcra { tick: self.ticks.at(now), ..self.clone() };
        moved.with_arrival(Some(moved.scaled(moved.tick) + self.ahead_at(self.tick)))
    }

    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter {
        let new = Gcra::fresh(limit, now);
        let tick = self.ticks.at(now).max(self.tick);
        if self.limit.quota == limit.quota && self.ticks.length == new.ticks.length {
            return Arc::new(Gcra { tick, arrival: self.arrival, ..new });
        }
        let used = divide_up(self.ahead_at(tick), self.ticks.window);
        let ahead = carried_over(used, limit.quota, &new.ticks);
        let last_seen = divide_up((self.tick * self.ticks.length).min(LAST_TIME), new.ticks.length);
        let new = Gcra { tick: later_tick(&new.ticks, limit, now, last_seen), ..new };
        new.with_arrival(Some(new.scaled(new.tick) + ahead))
    }

    fn admits(&self, cost: i128) -> bool {
        self.admits_at(self.tick, cost)
    }

    fn remaining(&self) -> i128 {
        let tolerance = i128::from(self.limit.burst) * self.ticks.window;
        (tolerance - self.ahead_at(self.tick)).max(0) / self.ticks.window
    }

    fn available_with_debt(&self) -> i128 {
        available_with_debt(self.ahead_at(self.tick), &self.limit, &self.ticks)
    }

    fn reset_at(&self) -> Option<i128> {
        let caught_up = first_from(self.tick, |tick| self.ahead_at(tick) == 0);
        (self.ahead_at(self.tick) > 0).then_some(caught_up * self.ticks.length)
    }

    fn retry_at(&self, cost: i128) -> i128 {
        first_from(self.tick, |tick| self.admits_at(tick, cost)) * self.ticks.length
    }

    fn charged(&self, cost: i128) -> SharedCounter {
        let start = self.scaled(self.tick) + self.ahead_at(self.tick);
        self.with_arrival(Some(start + cost * self.ticks.window))
    }

    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter> {
        let before = self.ahead_at(self.tick);
        let since = taken_at.map_or(0, |at| (self.tick - self.ticks.at(at)).max(0));
        let given = (cost * self.ticks.window - since * i128::from(self.limit.quota)).max(0);
        if before == 0 || given == 0 {
            return None;
        }
        let after = before - given;
        Some(self.with_arrival((after > 0).then(|| self.scaled(self.tick) + after)))
    }
}
