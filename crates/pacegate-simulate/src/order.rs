//! Puts requests in the order of their times: servers write a line when a request ends, which is not the order in which they began.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use pacegate::Timestamp;

use crate::log::record::{Place, Record};

/// How many requests wait to be put in order; beyond that the oldest goes first, whatever may still come.
const WAITING_MAX: usize = 200_000;
const SECOND: u64 = 1_000_000;
/// How many of the following lines are asked whether a jump ahead is one of the log or just of one line.
const FOLLOWERS: usize = 16;
/// A line that is no further ahead than this is a little early, not odd.
const EARLY_MAX: Duration = Duration::from_secs(60);
const ODD_SHOWN: usize = 10;

/// Holds requests back until no earlier one is expected.
#[derive(Debug)]
pub(crate) struct Order {
    /// How much later than its time a request may come.
    patience: Duration,
    /// Whether requests of a log that only says the second are spread over it.
    spread: bool,
    /// Lines that were not looked at yet: those that follow the one that is.
    followers: VecDeque<Record>,
    /// Times, places in the log, and slots, which are smaller to move than requests.
    waiting: BinaryHeap<Reverse<(Timestamp, u64, u32)>>,
    slots: Vec<Option<Record>>,
    free: Vec<u32>,
    /// The requests of one time.
    group: Vec<Record>,
    count: u64,
    /// The first and the latest time that came in, without those that only one line claims.
    first: Timestamp,
    latest: Option<Timestamp>,
    /// The latest time that went out.
    released: Timestamp,
    late: Late,
    odd: Odd,
}

/// Requests that the log never came to: their times are far ahead of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Odd {
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) shown: Vec<(Place, Timestamp)>,
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
            followers: VecDeque::with_capacity(FOLLOWERS + 1),
            waiting: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            group: Vec::new(),
            count: 0,
            first: Timestamp::default(),
            latest: None,
            released: Timestamp::default(),
            late: Late::default(),
            odd: Odd::default(),
        }
    }

    pub(crate) fn late(&self) -> Late {
        self.late
    }

    pub(crate) fn odd(&self) -> &Odd {
        &self.odd
    }

    /// Takes a request in, and hands those out that nothing can come before any more.
    pub(crate) fn push(&mut self, record: Record, mut release: impl FnMut(Record)) {
        self.followers.push_back(record);
        if self.followers.len() > FOLLOWERS {
            self.take_in(&mut release);
        }
    }

    /// Takes the oldest of the lines that were not looked at.
    fn take_in(&mut self, release: &mut impl FnMut(Record)) {
        let Some(record) = self.followers.pop_front() else { return };
        let at = record.time.at;
        if !self.is_alone(at) {
            self.first = if self.latest.is_none() { at } else { self.first.min(at) };
            self.latest = self.latest.max(Some(at));
        }
        self.count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(record);
        self.waiting.push(Reverse((at, self.count, slot)));
        loop {
            let Some(Reverse((oldest, ..))) = self.waiting.peek() else { return };
            let settled = self.latest.is_some_and(|latest| oldest.saturating_add(self.patience) < latest);
            if !settled && self.waiting.len() <= WAITING_MAX {
                return;
            }
            self.release_group(release);
        }
    }

    /// Whether a time is one that the log does not go on from: most of the lines that follow are before it. It waits for its turn, and moves
    /// nothing else.
    fn is_alone(&self, at: Timestamp) -> bool {
        if self.latest.is_some_and(|latest| at <= latest.saturating_add(self.patience)) {
            return false;
        }
        let agrees = |record: &&Record| record.time.at.saturating_add(self.patience) >= at;
        let agreeing = self.followers.iter().filter(agrees).count();
        if self.followers.len() == FOLLOWERS {
            return agreeing * 2 < FOLLOWERS;
        }
        // At the end there are too few to ask: a jump that is longer than the whole log before it is not believed, and where no time was believed
        // so far, as the log is written backwards, the last ones are not either.
        if self.count <= FOLLOWERS as u64 {
            return false;
        }
        let Some(latest) = self.latest else { return true };
        let jump = at.saturating_since(latest);
        agreeing * 2 <= self.followers.len() && jump > latest.saturating_since(self.first)
    }

    /// Hands out the rest, without what the log never came to.
    pub(crate) fn finish(&mut self, mut release: impl FnMut(Record)) {
        while !self.followers.is_empty() {
            self.take_in(&mut release);
        }
        let end = self.latest.map(|latest| latest.saturating_add(self.patience.max(EARLY_MAX)));
        while let Some(Reverse((oldest, ..))) = self.waiting.peek() {
            if end.is_some_and(|end| *oldest > end) {
                break;
            }
            self.release_group(&mut release);
        }
        let mut odd: Vec<Record> = self.slots.iter_mut().filter_map(Option::take).collect();
        odd.sort_by_key(|record| record.place);
        self.waiting.clear();
        self.odd.count = odd.len() as u64;
        self.odd.shown = odd.iter().map(|record| (record.place, record.time.at)).take(ODD_SHOWN).collect();
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

    use super::*;
    use crate::time::LogTime;

    fn record(micros: u64, name: &str, whole_second: bool) -> Record {
        Record::of(name, LogTime { at: Timestamp::from_micros(micros), whole_second }, Place::default())
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
        for at in 0..=(WAITING_MAX + FOLLOWERS) as u64 {
            order.push(record(at, "a", false), |_| out += 1);
        }
        assert_eq!(out, 1);
    }

    /// A request a second, with a stray one in front of each of `places`.
    fn with_strays(count: u64, places: &[u64], ahead: u64) -> Vec<Record> {
        let mut records = Vec::new();
        for second in 0..count {
            if places.contains(&second) {
                records.push(record((second + ahead) * SECOND, "stray", false));
            }
            records.push(record((1_000 + second) * SECOND, "a", false));
        }
        for (line, record) in records.iter_mut().enumerate() {
            record.place.line = line as u64 + 1;
        }
        records
    }

    #[test]
    fn one_line_with_an_odd_time_changes_nothing_for_the_others() {
        let year = 365 * 86_400;
        for places in [&[0_u64][..], &[50], &[99], &[0, 1, 50, 51, 52, 99]] {
            let mut order = Order::new(Duration::from_secs(5), true);
            let out = run(&mut order, with_strays(100, places, year));
            let expected: Vec<_> = (0..100).map(|second| ((1_000 + second) * SECOND, "a")).collect();
            assert_eq!(out, pairs(&expected), "{places:?}");
            assert_eq!((order.late(), order.odd().count), (Late::default(), places.len() as u64));
            let lines: Vec<u64> = order.odd().shown.iter().map(|(place, _)| place.line).collect();
            let expected: Vec<u64> = (1..).zip(places).map(|(line, place)| line + place).collect();
            assert_eq!(lines, expected);
        }
    }

    #[test]
    fn a_line_ahead_of_its_turn_waits_for_it() {
        let mut order = Order::new(Duration::from_secs(5), true);
        let out = run(&mut order, with_strays(200, &[20], 1_100));
        assert!(out.is_sorted_by_key(|(at, _)| *at) && out.len() == 201, "{out:?}");
        assert_eq!((order.late(), order.odd().count), (Late::default(), 0));
        assert_eq!(out.iter().position(|(_, name)| name == "stray"), Some(120));
    }

    #[test]
    fn a_log_with_the_newest_line_first_is_turned_around() {
        for step in [1, 100, 10_000] {
            let mut order = Order::new(Duration::from_secs(5), true);
            let out =
                run(&mut order, (0..500).rev().map(|at| record(at * step * SECOND, "a", false)).collect());
            assert!(out.is_sorted() && out.len() == 500, "{step}: {}", out.len());
            assert_eq!((order.late(), order.odd().count), (Late::default(), 0), "{step}");
        }
    }

    #[test]
    fn a_gap_in_the_log_is_no_odd_time() {
        let gaps = [10, 70, 3_600, 86_400, 40 * 86_400];
        for gap in gaps {
            let mut order = Order::new(Duration::from_secs(5), true);
            let jump = (0..40).map(|second| record((second + second / 20 * gap) * SECOND, "a", false));
            let sparse = (0..40).map(|place| record((100 * gap + place * gap) * SECOND, "b", false));
            let out = run(&mut order, jump.chain(sparse).collect());
            assert!(out.is_sorted() && out.len() == 80, "{gap}: {out:?}");
            assert_eq!((order.late(), order.odd().count), (Late::default(), 0), "{gap}");
        }
    }
}
