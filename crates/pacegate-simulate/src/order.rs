//! Sorts requests by time: servers write a line when a request ends, which is not the order in
//! which requests start.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use pacegate::Timestamp;

use crate::log::record::{Place, Record};

/// Maximum number of requests that wait to be sorted. Beyond it, the oldest is released.
const WAITING_MAX: usize = 200_000;
const SECOND: u64 = 1_000_000;
/// Number of following lines that decide whether a jump ahead is one of the log or of a single
/// line.
const FOLLOWERS: usize = 16;
/// Maximum time that a line can be ahead without being ignored as odd.
const EARLY_MAX: Duration = Duration::from_secs(60);
const ODD_SHOWN: usize = 10;

/// Delays requests until no earlier one is expected.
#[derive(Debug)]
pub(crate) struct Order {
    /// Maximum delay of a request, compared with its time.
    max_delay: Duration,
    /// Whether requests of one second are spread over it if times have no fraction.
    spread: bool,
    /// Lines that follow the current one.
    followers: VecDeque<Record>,
    /// Times, positions in the log, and slots, which are cheaper to move than requests.
    waiting: BinaryHeap<Reverse<(Timestamp, u64, u32)>>,
    slots: Vec<Option<Record>>,
    free: Vec<u32>,
    /// The requests of one time.
    group: Vec<Record>,
    count: u64,
    /// The first and the latest time, without times of single lines far ahead.
    first: Timestamp,
    latest: Option<Timestamp>,
    /// The latest time that was released.
    released: Timestamp,
    late: Late,
    odd: Odd,
}

/// Requests that are ignored because their times are far ahead of all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Odd {
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) shown: Vec<(Place, Timestamp)>,
}

/// Requests that were too late to be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) count: u64,
    /// The maximum by which they were late.
    pub(crate) most: Duration,
}

impl Order {
    pub(crate) fn new(max_delay: Duration, spread: bool) -> Self {
        Self {
            max_delay,
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

    /// Adds a request, and releases those that no other request can precede.
    pub(crate) fn push(&mut self, record: Record, mut release: impl FnMut(Record)) {
        self.followers.push_back(record);
        if self.followers.len() > FOLLOWERS {
            self.take_in(&mut release);
        }
    }

    /// Adds the oldest of the following lines.
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
            let settled = self.latest.is_some_and(|latest| oldest.saturating_add(self.max_delay) < latest);
            if !settled && self.waiting.len() <= WAITING_MAX {
                return;
            }
            self.release_group(release);
        }
    }

    /// Whether a time is far ahead of most of the following lines. Such a request waits until the
    /// log reaches its time.
    fn is_alone(&self, at: Timestamp) -> bool {
        if self.latest.is_some_and(|latest| at <= latest.saturating_add(self.max_delay)) {
            return false;
        }
        let agrees = |record: &&Record| record.time.at.saturating_add(self.max_delay) >= at;
        let agreeing = self.followers.iter().filter(agrees).count();
        if self.followers.len() == FOLLOWERS {
            return agreeing * 2 < FOLLOWERS;
        }
        // At the end there are too few following lines. A jump that is longer than the whole log
        // before it is ignored. If no time was accepted so far, because the log is in reverse
        // order, the last ones are ignored too.
        if self.count <= FOLLOWERS as u64 {
            return false;
        }
        let Some(latest) = self.latest else { return true };
        let jump = at.saturating_since(latest);
        agreeing * 2 <= self.followers.len() && jump > latest.saturating_since(self.first)
    }

    /// Releases the rest, without requests whose times the log never reached.
    pub(crate) fn finish(&mut self, mut release: impl FnMut(Record)) {
        while !self.followers.is_empty() {
            self.take_in(&mut release);
        }
        let end = self.latest.map(|latest| latest.saturating_add(self.max_delay.max(EARLY_MAX)));
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

    /// Releases the requests of the oldest time, in the order of the log.
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
    fn slightly_late_requests_are_sorted() {
        let mut order = Order::new(Duration::from_secs(5), true);
        let times = [(3_000_000, "c"), (1_000_000, "a"), (2_000_000, "b"), (3_000_000, "d")];
        let out = run(&mut order, times.map(|(at, name)| record(at, name, false)).to_vec());
        assert_eq!(out, pairs(&[(1_000_000, "a"), (2_000_000, "b"), (3_000_000, "c"), (3_000_000, "d")]));
        assert_eq!(order.late(), Late::default());
    }

    #[test]
    fn late_request_gets_the_latest_time_and_is_counted() {
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
    fn number_of_waiting_requests_is_bounded() {
        let mut order = Order::new(Duration::from_secs(3_600), false);
        let mut out = 0;
        for at in 0..=(WAITING_MAX + FOLLOWERS) as u64 {
            order.push(record(at, "a", false), |_| out += 1);
        }
        assert_eq!(out, 1);
    }

    /// One request per second, with a stray one before each of `places`.
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
    fn odd_time_of_one_line_does_not_affect_others() {
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
    fn early_line_waits_for_its_time() {
        let mut order = Order::new(Duration::from_secs(5), true);
        let out = run(&mut order, with_strays(200, &[20], 1_100));
        assert!(out.is_sorted_by_key(|(at, _)| *at) && out.len() == 201, "{out:?}");
        assert_eq!((order.late(), order.odd().count), (Late::default(), 0));
        assert_eq!(out.iter().position(|(_, name)| name == "stray"), Some(120));
    }

    #[test]
    fn log_in_reverse_order_is_sorted() {
        for step in [1, 100, 10_000] {
            let mut order = Order::new(Duration::from_secs(5), true);
            let out =
                run(&mut order, (0..500).rev().map(|at| record(at * step * SECOND, "a", false)).collect());
            assert!(out.is_sorted() && out.len() == 500, "{step}: {}", out.len());
            assert_eq!((order.late(), order.odd().count), (Late::default(), 0), "{step}");
        }
    }

    #[test]
    fn gap_in_the_log_is_not_an_odd_time() {
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
