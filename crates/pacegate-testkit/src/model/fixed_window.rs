//! Fixed window: one count per window number.

use std::sync::Arc;

use super::ModelLimit;
use super::key::{Counter, SharedCounter};

#[derive(Clone, Debug)]
pub(super) struct FixedWindow {
    limit: ModelLimit,
    number: i128,
    count: i128,
}

impl FixedWindow {
    pub(super) fn fresh(limit: &ModelLimit, now: i128) -> FixedWindow {
        FixedWindow { limit: *limit, number: now / i128::from(limit.window), count: 0 }
    }

    fn count_in(&self, number: i128) -> i128 {
        if number > self.number { 0 } else { self.count }
    }

    fn admits_in(&self, number: i128, cost: i128) -> bool {
        self.count_in(number) + cost <= i128::from(self.limit.quota)
    }

    fn with_count(&self, count: i128) -> SharedCounter {
        Arc::new(FixedWindow { count, ..self.clone() })
    }
}

impl Counter for FixedWindow {
    fn seen(&self) -> i128 {
        self.number * i128::from(self.limit.window)
    }

    fn taken_at(&self, now: i128) -> SharedCounter {
        Arc::new(FixedWindow { count: self.count, ..FixedWindow::fresh(&self.limit, now) })
    }

    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter {
        let new = FixedWindow::fresh(limit, now);
        Arc::new(FixedWindow {
            limit: *limit,
            number: new.number.max(self.number),
            count: self.count_in(new.number),
        })
    }

    fn admits(&self, cost: i128) -> bool {
        self.admits_in(self.number, cost)
    }

    fn remaining(&self) -> i128 {
        (i128::from(self.limit.quota) - self.count).max(0)
    }

    fn available_with_debt(&self) -> i128 {
        (2 * i128::from(self.limit.quota) - self.count).max(0)
    }

    fn reset_at(&self) -> Option<i128> {
        (self.count > 0).then_some((self.number + 1) * i128::from(self.limit.window))
    }

    fn retry_at(&self, cost: i128) -> i128 {
        let mut number = self.number;
        while !self.admits_in(number, cost) {
            number += 1;
        }
        number * i128::from(self.limit.window)
    }

    fn charged(&self, cost: i128) -> SharedCounter {
        self.with_count(self.count + cost)
    }

    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter> {
        let other_window = taken_at.is_some_and(|time| time / i128::from(self.limit.window) != self.number);
        let given_back = if other_window { 0 } else { cost.min(self.count) };
        (given_back > 0).then(|| self.with_count(self.count - given_back))
    }
}
