//! Puts requests in the order of their times: servers write a line when a request ends, which is not the order in which they began.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tollgate::Timestamp;

use crate::log::record::Record;

/// How many requests wait to be put in order; beyond that the oldest goes first, whatever may still come.
const WAITING_MAX: usize = 200_000;
const SECOND: u64 = 1_000_000;

/// Holds requests back until no earlier one is expected.
#[derive(Debug)]
pub(crate) struct Order {
    /// How much later than its time a request may come.
    patience: Duration,
    /// Whether requests of a log that only says the second are spread over it.
    spread: bool,
    /// Times, places in the log, and slots, which are smaller to move than requests.
    waiting: BinaryHeap<Reverse<(Timestamp, u64, u32)>>,
    slots: Vec<Option<Record>>,
    free: Vec<u32>,
    /// The requests of one time.
    group: Vec<Record>,
    count: u64,
    /// The latest time that came in, and the latest that went out.
    latest: Timestamp,
    released: Timestamp,
    late: Late,
}

/// What came too late to be put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) count: u64,
    /// By how much they went back at most.
    pub(crate) most: Duration,
}

impl Order {
    pub(crate) fn new(patience: Duration, spread: bool) -> Self {
        Self {
            patience,
            spread,
            waiting: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            group: Vec::new(),
            count: 0,
            latest: Timestamp::default(),
            released: Timestamp::default(),
            late: Late::default(),
        }
    }

    pub(crate) fn late(&self) -> Late {
        self.late
    }

    /// Takes a request in, and hands those out that nothing can come before any more.
    pub(crate) fn push(&mut self, record: Record, mut release: impl FnMut(Record)) {
        let at = record.time.at;
        self.latest = self.latest.max(at);
        self.count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(record);
        self.waiting.push(Reverse((at, self.count, slot)));
        loop {
            let Some(Reverse((oldest, ..))) = self.waiting.peek() else { return };
            let settled = oldest.saturating_add(self.patience) < self.latest;
            if !settled && self.waiting.len() <= WAITING_MAX {
                return;
            }
            self.release_group(&mut release);
        }
    }

    /// Hands out the rest.
    pub(crate) fn finish(&mut self, mut release: impl FnMut(Record)) {
        while !self.waiting.is_empty() {
            self.release_group(&mut release);
        }
    }

    /// Hands out the requests of the oldest time, in the order of the log.
    fn release_group(&mut self, release: &mut impl FnMut(Record)) {
        let Some(Reverse((time, ..))) = self.waiting.peek().copied() else { return };
        while let Some(Reverse((at, _, slot))) = self.waiting.peek().copied() {
            if at != time {
                break;
            }
            self.waiting.pop();
            self.free.push(slot);
            self.group.extend(self.slots[slot as usize].take());
        }
        let spread = self.spread && self.group.iter().all(|record| record.time.whole_second);
        let count = self.group.len() as u64;
        for (place, mut record) in self.group.drain(..).enumerate() {
            let offset = if spread { place as u64 * SECOND / count } else { 0 };
            let at = Timestamp::from_micros(time.as_micros() + offset);
            if at < self.released {
                self.late.count += 1;
                self.late.most = self.late.most.max(self.released.saturating_since(at));
            }
            record.time.at = at.max(self.released);
            self.released = record.time.at;
            release(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Cost;

    use super::*;
    use crate::time::LogTime;

    fn record(micros: u64, name: &str, whole_second: bool) -> Record {
        Record {
            time: LogTime { at: Timestamp::from_micros(micros), whole_second },
            identities: smallvec::smallvec![(0, name.into())],
            endpoint: "/".into(),
            method: "".into(),
            tier: "".into(),
            status: None,
            cost: Cost::ONE,
        }
    }

    fn run(order: &mut Order, records: Vec<Record>) -> Vec<(u64, String)> {
        let mut out = Vec::new();
        let mut release =
            |record: Record| out.push((record.time.at.as_micros(), record.identities[0].1.to_string()));
        for record in records {
            order.push(record, &mut release);
        }
        order.finish(&mut release);
        out
    }

    fn pairs(pairs: &[(u64, &str)]) -> Vec<(u64, String)> {
        pairs.iter().map(|(at, name)| (*at, (*name).to_owned())).collect()
    }

    #[test]
    fn what_is_a_little_late_is_put_in_order() {
        let mut order = Order::new(Duration::from_secs(5), true);
        let times = [(3_000_000, "c"), (1_000_000, "a"), (2_000_000, "b"), (3_000_000, "d")];
        let out = run(&mut order, times.map(|(at, name)| record(at, name, false)).to_vec());
        assert_eq!(out, pairs(&[(1_000_000, "a"), (2_000_000, "b"), (3_000_000, "c"), (3_000_000, "d")]));
        assert_eq!(order.late(), Late::default());
    }

    #[test]
    fn what_is_too_late_gets_the_latest_time_and_is_counted() {
        let mut order = Order::new(Duration::from_secs(1), true);
        let times =
            [(10_000_000, "a"), (20_000_000, "b"), (20_000_001, "c"), (2_000_000, "late"), (30_000_000, "d")];
        let out = run(&mut order, times.map(|(at, name)| record(at, name, false)).to_vec());
        let expected = [
            (10_000_000, "a"),
            (10_000_000, "late"),
            (20_000_000, "b"),
            (20_000_001, "c"),
            (30_000_000, "d"),
        ];
        assert_eq!(out, pairs(&expected));
        assert_eq!(order.late(), Late { count: 1, most: Duration::from_secs(8) });
    }

    #[test]
    fn whole_seconds_are_spread_in_the_order_of_the_lines() {
        let records = || ["a", "b", "c", "d"].map(|name| record(7_000_000, name, true)).to_vec();
        let out = run(&mut Order::new(Duration::ZERO, true), records());
        assert_eq!(out, pairs(&[(7_000_000, "a"), (7_250_000, "b"), (7_500_000, "c"), (7_750_000, "d")]));
        let out = run(&mut Order::new(Duration::ZERO, false), records());
        assert!(out.iter().all(|(at, _)| *at == 7_000_000), "{out:?}");
    }

    #[test]
    fn no_more_wait_than_the_bound() {
        let mut order = Order::new(Duration::from_secs(3_600), false);
        let mut out = 0;
        for at in 0..=WAITING_MAX as u64 {
            order.push(record(at, "a", false), |_| out += 1);
        }
        assert_eq!(out, 1);
    }
}
