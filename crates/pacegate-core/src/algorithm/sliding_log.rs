//! Sliding log: the time and cost of every request admitted in the last window. Exact, at the cost
//! of memory.
//!
//! Entries carry a running total, so that a check finds both the live sum and the retry time by
//! binary search.

use std::collections::VecDeque;

use super::Counting;
use crate::cost::Cost;
use crate::limit::Limit;
use crate::time::Timestamp;

/// The admitted requests, oldest first.
#[derive(Clone, Debug, Default, Eq)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// The running total before the first entry.
    base: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    time: u64,
    /// The sum of all costs up to and including this entry.
    total: u64,
}

/// The log at an instant: the amount in use and the number of expired entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    used: u64,
    expired: usize,
    now: u64,
    /// When the newest live entry expires.
    empty_at: Option<u64>,
}

impl PartialEq for Log {
    /// Compares the requests; the base of the running total does not matter.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Log {
    pub(crate) fn read(&self, limit: &Limit, now: Timestamp) -> SlidingLog {
        let newest = self.newest();
        // If the clock went back, nothing expires.
        let now = now.as_micros().max(newest);
        let window = limit.window_micros();
        let expired = self.entries.partition_point(|entry| entry.time.saturating_add(window) <= now);
        let used = self.total() - self.total_before(expired);
        let empty_at = (used > 0).then_some(newest.saturating_add(window));
        SlidingLog { used, expired, now, empty_at }
    }

    /// When the newest request was admitted; 0 for an empty log.
    pub(crate) fn newest(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.time)
    }

    /// What was in use at the newest entry, as one request admitted at `now`.
    pub(crate) fn moved_to(&self, limit_window: u64, now: u64) -> Self {
        let newest = self.newest();
        let expired = self.entries.partition_point(|entry| entry.time.saturating_add(limit_window) <= newest);
        let used = self.total() - self.total_before(expired);
        Self { entries: VecDeque::from([Entry { time: now, total: used }]), base: 0 }
    }

    /// Drops expired entries and appends the charge.
    pub(crate) fn append(&mut self, reading: &SlidingLog, cost: Cost) {
        self.drop_expired(reading);
        let total = self.total() + u64::from(cost.get());
        match self.entries.back_mut() {
            // Requests of the same microsecond expire together, so they share an entry.
            Some(last) if last.time == reading.now => last.total = total,
            _ => self.entries.push_back(Entry { time: reading.now, total }),
        }
    }

    /// Refunds up to `cost` from the entry made at `taken_at`, or from the newest entries; returns
    /// how much that was.
    pub(crate) fn refund(&mut self, reading: &SlidingLog, cost: Cost, taken_at: Option<Timestamp>) -> u64 {
        let cost = u64::from(cost.get());
        let mut left = cost;
        if let Some(at) = taken_at {
            let found = self.entries.binary_search_by_key(&at.as_micros(), |entry| entry.time);
            left -= found
                .ok()
                .filter(|index| *index >= reading.expired)
                .map_or(0, |index| self.reduce(index, cost));
        } else {
            while left > 0 && self.entries.len() > reading.expired {
                left -= self.reduce(self.entries.len() - 1, left);
            }
        }
        if left < cost {
            self.drop_expired(reading);
        }
        cost - left
    }

    /// Takes at most `cost` off the entry at `index`; returns how much that was.
    fn reduce(&mut self, index: usize, cost: u64) -> u64 {
        let own = self.entries[index].total - self.total_before(index);
        let taken = own.min(cost);
        for entry in self.entries.range_mut(index..) {
            entry.total -= taken;
        }
        if taken == own {
            self.entries.remove(index);
        }
        taken
    }

    fn drop_expired(&mut self, reading: &SlidingLog) {
        self.base = self.total_before(reading.expired);
        self.entries.drain(..reading.expired);
        if self.entries.is_empty() {
            self.base = 0;
        }
        // Shrinks the list after a busy window.
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    fn total(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.total)
    }

    fn total_before(&self, index: usize) -> u64 {
        if index == 0 { self.base } else { self.entries[index - 1].total }
    }

    /// The entries as (time, cost), oldest first.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        let mut before = self.base;
        self.entries.iter().map(move |entry| {
            let cost = entry.total - before;
            before = entry.total;
            (entry.time, cost)
        })
    }

    /// Builds a log from (time, cost) pairs, oldest first; `None` when they are out of order or a
    /// cost is zero.
    pub(crate) fn from_entries(entries: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut log = Self::default();
        for (time, cost) in entries {
            if cost == 0 || log.entries.back().is_some_and(|last| last.time >= time) {
                return None;
            }
            let total = log.total().checked_add(cost)?;
            log.entries.push_back(Entry { time, total });
        }
        Some(log)
    }
}

impl SlidingLog {
    pub(crate) fn fresh(now: Timestamp) -> Self {
        Self { used: 0, expired: 0, now: now.as_micros(), empty_at: None }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn retry_at(&self, limit: &Limit, log: &Log, cost: Cost) -> u64 {
        let excess = (self.used + u64::from(cost.get())).saturating_sub(u64::from(limit.quota()));
        let enough = log.total_before(self.expired) + excess;
        let index = log.entries.partition_point(|entry| entry.total < enough);
        log.entries.get(index).map_or(self.now, |entry| entry.time.saturating_add(limit.window_micros()))
    }
}

impl Counting for SlidingLog {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        // At most the quota, which is 32 bits wide.
        u64::from(limit.quota()).saturating_sub(self.used) as u32
    }

    fn remaining_with_debt(&self, limit: &Limit) -> u32 {
        (2 * u64::from(limit.quota())).saturating_sub(self.used) as u32
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        self.used + u64::from(cost.get()) <= u64::from(limit.quota())
    }

    #[inline(always)]
    fn charged(&self, limit: &Limit, cost: Cost) -> Self {
        Self {
            used: self.used + u64::from(cost.get()),
            empty_at: Some(self.now.saturating_add(limit.window_micros())),
            ..*self
        }
    }

    #[inline(always)]
    fn reset_at(&self, _: &Limit) -> Option<u64> {
        self.empty_at
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::Algorithm;

    #[test]
    fn memory_of_a_busy_window_is_released() {
        let limit = Limit::try_new(Algorithm::SlidingLog, 100_000, Duration::from_secs(1)).unwrap();
        let mut log = Log::default();
        let append = |log: &mut Log, now: u64| {
            let reading = log.read(&limit, Timestamp::from_micros(now));
            log.append(&reading, Cost::ONE);
        };
        for request in 0..10_000 {
            append(&mut log, request);
        }
        assert_eq!(log.iter().len(), 10_000);
        // Expired entries are dropped, and the list shrinks once three quarters of it are unused.
        for request in 0..10 {
            append(&mut log, 5_000_000 + request);
        }
        assert_eq!(log.iter().len(), 10);
        assert!(log.entries.capacity() <= 64, "capacity for {} entries", log.entries.capacity());
    }
}
