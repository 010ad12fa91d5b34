//! Sliding log: every charge is stored until it is one window old.

use std::sync::Arc;

use super::ModelLimit;
use super::key::{Counter, SharedCounter};

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: i128,
    cost: i128,
}

#[derive(Clone, Debug)]
pub(super) struct SlidingLog {
    limit: ModelLimit,
    /// The time of this value. It is not stored: only the entries are.
    moment: i128,
    /// Oldest first, at most one per time, all live at `moment`.
    entries: Vec<Entry>,
}

impl SlidingLog {
    pub(super) fn fresh(limit: &ModelLimit, now: i128) -> SlidingLog {
        SlidingLog { limit: *limit, moment: now, entries: Vec::new() }
    }

    fn expiry(&self, entry: &Entry) -> i128 {
        entry.time + i128::from(self.limit.window)
    }

    fn live_at(&self, time: i128) -> Vec<Entry> {
        let live = |entry: &&Entry| self.expiry(entry) > time;
        self.entries.iter().filter(live).copied().collect()
    }

    fn used_at(&self, time: i128) -> i128 {
        self.live_at(time).iter().map(|entry| entry.cost).sum()
    }

    fn admits_at(&self, time: i128, cost: i128) -> bool {
        self.used_at(time) + cost <= i128::from(self.limit.quota)
    }

    fn with_entries(&self, entries: Vec<Entry>) -> SharedCounter {
        Arc::new(SlidingLog { entries, ..self.clone() })
    }
}

impl Counter for SlidingLog {
    fn seen(&self) -> i128 {
        self.entries.last().map_or(0, |newest| newest.time)
    }

    fn taken_at(&self, now: i128) -> SharedCounter {
        let used = self.used_at(self.seen());
        Arc::new(SlidingLog { moment: now, entries: vec![Entry { time: now, cost: used }], ..self.clone() })
    }

    fn at(&self, limit: &ModelLimit, now: i128) -> SharedCounter {
        let newest = self.entries.last().map_or(now, |entry| entry.time);
        let moment = now.max(newest);
        Arc::new(SlidingLog { limit: *limit, moment, entries: self.live_at(moment) })
    }

    fn admits(&self, cost: i128) -> bool {
        self.admits_at(self.moment, cost)
    }

    fn remaining(&self) -> i128 {
        (i128::from(self.limit.quota) - self.used_at(self.moment)).max(0)
    }

    fn available_with_debt(&self) -> i128 {
        (2 * i128::from(self.limit.quota) - self.used_at(self.moment)).max(0)
    }

    fn reset_at(&self) -> Option<i128> {
        self.entries.last().map(|newest| self.expiry(newest))
    }

    fn retry_at(&self, cost: i128) -> i128 {
        self.entries
            .iter()
            .map(|entry| self.expiry(entry))
            .find(|expiry| self.admits_at(*expiry, cost))
            .unwrap_or(self.moment)
    }

    fn charged(&self, cost: i128) -> SharedCounter {
        let mut entries = self.entries.clone();
        match entries.last_mut() {
            // One entry per time, so that a refund can identify its entry by time.
            Some(newest) if newest.time == self.moment => newest.cost += cost,
            _ => entries.push(Entry { time: self.moment, cost }),
        }
        self.with_entries(entries)
    }

    fn refunded(&self, cost: i128, taken_at: Option<i128>) -> Option<SharedCounter> {
        let mut entries = self.entries.clone();
        let mut left = cost;
        for entry in entries.iter_mut().rev() {
            if taken_at.is_none_or(|time| time == entry.time) {
                let given_back = left.min(entry.cost);
                entry.cost -= given_back;
                left -= given_back;
            }
        }
        entries.retain(|entry| entry.cost > 0);
        (left < cost).then(|| self.with_entries(entries))
    }
}
