//! Usage: allowed and denied requests per identifier, until they are written to the catalog.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use hashbrown::{Equivalent, HashMap, HashSet};
use pacegate::{Timestamp, identity};
use pacegate_catalog::{Period, UsageRecord, shorten_identifier};
use parking_lot::Mutex;

/// Number of shards, so that checks on different threads rarely contend.
const SHARDS: usize = 16;
/// Maximum number of identifiers that a shard counts individually between two writes.
const NAMES_MAX: usize = 1_024;
/// Maximum number of dimensions with a row for their other identifiers, besides the common ones.
const DIMENSIONS_MAX: usize = 32;
/// Number of the heaviest identifiers that are kept after a write.
const KEPT: usize = 50;
/// The name under which the others are counted, so that made-up identifiers and dimensions do not
/// fill the catalog.
pub(crate) const OTHERS: &str = "(others)";
/// Maximum number of identifiers with their own row per minute, and per hour.
const MINUTE_ROWS: usize = 500;
const HOUR_ROWS: usize = 20_000;

/// Usage by identifier.
#[derive(Debug)]
pub(crate) struct Usage {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// The heaviest identifiers of the previous period, because the current one may have just
    /// begun.
    before: Mutex<HashMap<Name, Counts, RandomState>>,
    /// The rows of the current minute and of the current hour.
    rows: Mutex<[Rows; 2]>,
}

#[derive(Debug)]
struct Shard {
    names: HashMap<Name, Counts, RandomState>,
    /// The usage of identifiers that are not counted individually, by dimension.
    others: HashMap<Box<str>, Counts, RandomState>,
    /// The highest count of an identifier that was evicted.
    lost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    dimension: Box<str>,
    identifier: Box<str>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    allowed: u64,
    blocked: u64,
}

impl Counts {
    fn total(&self) -> u64 {
        self.allowed + self.blocked
    }

    fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.blocked += other.blocked;
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&*self.dimension, &*self.identifier).hash(state);
    }
}

/// A borrowed name, which needs no allocation.
#[derive(Hash)]
struct Borrowed<'a>(&'a str, &'a str);

impl Equivalent<Name> for Borrowed<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        self.0 == &*name.dimension && self.1 == &*name.identifier
    }
}

impl Default for Usage {
    fn default() -> Self {
        let hasher = RandomState::default();
        Self {
            shards: std::array::from_fn(|_| Mutex::new(Shard::new(&hasher))),
            before: Mutex::new(HashMap::with_hasher(hasher.clone())),
            rows: Mutex::new(
                [(Period::Minute, MINUTE_ROWS), (Period::Hour, HOUR_ROWS)]
                    .map(|(period, max)| Rows::new(period, max, &hasher)),
            ),
            hasher,
        }
    }
}

impl Usage {
    pub(crate) fn count(&self, dimension: &str, identifier: &str, allowed: bool) {
        let identifier = &*shorten_identifier(identifier);
        let name = Borrowed(dimension, identifier);
        let shard = (self.hasher.hash_one(&name) >> 32) as usize % SHARDS;
        let mut shard = self.shards[shard].lock();
        let counts = match shard.names.get_mut(&name) {
            Some(known) => known,
            None => {
                if shard.names.len() >= NAMES_MAX {
                    shard.evict();
                }
                let name = Name { dimension: dimension.into(), identifier: identifier.into() };
                shard.names.entry(name).or_default()
            }
        };
        if allowed {
            counts.allowed += 1;
        } else {
            counts.blocked += 1;
        }
    }

    /// Returns the usage since the last call, as rows of minutes and of hours.
    pub(crate) fn take(&self, at: Timestamp) -> [(Period, Vec<UsageRecord>); 2] {
        let mut others: HashMap<Box<str>, Counts, RandomState> = HashMap::with_hasher(self.hasher.clone());
        let mut names: Vec<(Name, Counts)> = Vec::new();
        for shard in &self.shards {
            let mut shard = std::mem::replace(&mut *shard.lock(), Shard::new(&self.hasher));
            // An identifier with no more than an evicted one has no better claim to a row.
            shard.drop_up_to(shard.lost);
            names.extend(shard.names);
            for (dimension, counts) in shard.others {
                others.entry(dimension).or_default().add(counts);
            }
        }
        names.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.total().cmp(&of_a.total()).then_with(|| a.cmp(b)));
        let mut before = HashMap::with_hasher(self.hasher.clone());
        before.extend(names.iter().take(KEPT).cloned());
        let mut blocked: Vec<&(Name, Counts)> = names.iter().filter(|(_, of)| of.blocked > 0).collect();
        blocked.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.blocked));
        before.extend(blocked.into_iter().take(KEPT).cloned());
        *self.before.lock() = before;
        let mut others: Vec<(Box<str>, Counts)> = others.into_iter().collect();
        others
            .sort_unstable_by(|(a, of_a), (b, of_b)| of_b.total().cmp(&of_a.total()).then_with(|| a.cmp(b)));
        self.rows.lock().each_mut().map(|rows| (rows.period, rows.share_out(at, &names, &others)))
    }

    /// Returns the `count` identifiers with the most recent requests, and with the most denials.
    pub(crate) fn top(&self, count: usize) -> (Vec<UsageRecord>, Vec<UsageRecord>) {
        let before = self.before.lock().clone();
        let mut heaviest = Heaviest::new(count, Counts::total);
        let mut most_blocked = Heaviest::new(count, |counts| counts.blocked);
        let mut is_counted: HashSet<&Name, RandomState> = HashSet::with_hasher(self.hasher.clone());
        for shard in &self.shards {
            let shard = shard.lock();
            for (name, counts) in &shard.names {
                let mut counts = *counts;
                if let Some((name, earlier)) = before.get_key_value(name) {
                    is_counted.insert(name);
                    counts.add(*earlier);
                }
                heaviest.offer(name, counts);
                most_blocked.offer(name, counts);
            }
        }
        for (name, counts) in before.iter().filter(|(name, _)| !is_counted.contains(name)) {
            heaviest.offer(name, *counts);
            most_blocked.offer(name, *counts);
        }
        (heaviest.records(), most_blocked.records())
    }
}

impl Shard {
    fn new(hasher: &RandomState) -> Self {
        Self {
            names: HashMap::with_hasher(hasher.clone()),
            others: HashMap::with_hasher(hasher.clone()),
            lost: 0,
        }
    }

    /// Evicts at least the lighter half.
    fn evict(&mut self) {
        let mut totals: Vec<u64> = self.names.values().map(Counts::total).collect();
        let middle = totals.len() / 2;
        let (_, median, _) = totals.select_nth_unstable(middle);
        self.lost = self.lost.max(*median);
        self.drop_up_to(*median);
    }

    /// Moves identifiers with at most `total` requests to the others of their dimension.
    fn drop_up_to(&mut self, total: u64) {
        for (name, counts) in self.names.extract_if(|_, counts| counts.total() <= total) {
            let has_place = self.others.contains_key(&name.dimension)
                || is_common(&name.dimension)
                || self.others.len() < DIMENSIONS_MAX;
            let dimension = if has_place { name.dimension } else { OTHERS.into() };
            self.others.entry(dimension).or_default().add(counts);
        }
    }
}

/// Returns whether a dimension is one of the common ones, which made-up dimensions cannot evict.
fn is_common(dimension: &str) -> bool {
    [identity::USER, identity::IP, identity::API_KEY, identity::KEY, OTHERS].contains(&dimension)
}

/// The rows of one period on this node.
#[derive(Debug)]
struct Rows {
    period: Period,
    max: usize,
    start: Timestamp,
    /// The hashes of identifiers with a row.
    names: HashSet<u64>,
    /// The dimensions with a row for their others.
    dimensions: HashSet<Box<str>>,
    hasher: RandomState,
}

impl Rows {
    fn new(period: Period, max: usize, hasher: &RandomState) -> Self {
        let (start, names, dimensions) = Default::default();
        Self { period, max, start, names, dimensions, hasher: hasher.clone() }
    }

    /// Returns the rows to write for `names` and `others`, which are sorted heaviest first.
    fn share_out(
        &mut self,
        at: Timestamp,
        names: &[(Name, Counts)],
        others: &[(Box<str>, Counts)],
    ) -> Vec<UsageRecord> {
        let start = self.period.start_of(at);
        if start != self.start {
            self.start = start;
            self.names.clear();
            self.dimensions.clear();
        }
        // Half of the rows are available immediately, the rest as the period passes, so that an
        // identifier that becomes heavy late gets one.
        let passed = at.saturating_since(start).as_micros() * (self.max / 2) as u128
            / self.period.length().as_micros().max(1);
        let places = self.max / 2 + usize::try_from(passed).unwrap_or(0);
        let record = |dimension: &str, identifier: &str, counts: Counts| UsageRecord {
            start,
            dimension: dimension.into(),
            identifier: identifier.into(),
            allowed: counts.allowed,
            blocked: counts.blocked,
        };
        let mut records = Vec::new();
        let mut sums: HashMap<&str, Counts, RandomState> = HashMap::with_hasher(self.hasher.clone());
        for (name, counts) in names {
            let hash = self.hasher.hash_one(name);
            let has_row =
                self.names.contains(&hash) || (self.names.len() < places && self.names.insert(hash));
            if has_row {
                records.push(record(&name.dimension, &name.identifier, *counts));
            } else {
                sums.entry(self.other(&name.dimension)).or_default().add(*counts);
            }
        }
        for (dimension, counts) in others {
            sums.entry(self.other(dimension)).or_default().add(*counts);
        }
        records.extend(sums.into_iter().map(|(dimension, counts)| record(dimension, OTHERS, counts)));
        records
    }

    /// Returns the dimension under whose others an identifier is counted.
    fn other<'a>(&mut self, dimension: &'a str) -> &'a str {
        if is_common(dimension) || self.dimensions.contains(dimension) {
            return dimension;
        }
        if self.dimensions.len() < DIMENSIONS_MAX {
            self.dimensions.insert(dimension.into());
            return dimension;
        }
        OTHERS
    }
}

/// The identifiers with the highest counts.
struct Heaviest {
    count: usize,
    measure: fn(&Counts) -> u64,
    /// Sorted by count in descending order, then by name.
    names: Vec<(Name, Counts)>,
}

impl Heaviest {
    fn new(count: usize, measure: fn(&Counts) -> u64) -> Self {
        Self { count, measure, names: Vec::with_capacity(count + 1) }
    }

    fn offer(&mut self, name: &Name, counts: Counts) {
        let own = (self.measure)(&counts);
        let is_before = |(other, counts): &(Name, Counts)| {
            let measured = (self.measure)(counts);
            measured > own || (measured == own && other < name)
        };
        let place = self.names.partition_point(is_before);
        if own > 0 && place < self.count {
            self.names.insert(place, (name.clone(), counts));
            self.names.truncate(self.count);
        }
    }

    fn records(self) -> Vec<UsageRecord> {
        let record = |(name, counts): (Name, Counts)| UsageRecord {
            start: Timestamp::default(),
            dimension: name.dimension.into(),
            identifier: name.identifier.into(),
            allowed: counts.allowed,
            blocked: counts.blocked,
        };
        self.names.into_iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    /// Returns the minute rows of a write.
    fn minutes(usage: &Usage, at: Timestamp) -> Vec<UsageRecord> {
        let [(_, minutes), (_, hours)] = usage.take(at);
        let sum = |records: &[UsageRecord]| -> u64 { records.iter().map(|record| record.allowed).sum() };
        assert_eq!(sum(&minutes), sum(&hours), "both periods have all requests");
        minutes
    }

    fn after(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000).saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn identifiers_are_counted_individually() {
        let usage = Usage::default();
        for _ in 0..3 {
            usage.count("user", "u1", true);
        }
        usage.count("user", "u1", false);
        usage.count("ip", "u1", true);
        let taken = minutes(&usage, after(0));
        let shown: Vec<_> =
            taken.iter().map(|record| (&*record.dimension, record.allowed, record.blocked)).collect();
        assert_eq!(shown, [("user", 3, 1), ("ip", 1, 0)]);
        assert!(minutes(&usage, after(1)).is_empty());
    }

    #[test]
    fn made_up_identifiers_are_counted_together_and_heavy_ones_individually() {
        let usage = Usage::default();
        for number in 0..200_000 {
            usage.count("user", &format!("made-up-{number}"), true);
            if number % 100 == 0 {
                usage.count("user", "heavy", true);
            }
        }
        let [(_, minutes), (_, hours)] = usage.take(after(0));
        for records in [minutes, hours] {
            assert!(records.len() < 10, "{} rows", records.len());
            let of = |identifier: &str| {
                records.iter().find(|record| record.identifier == identifier).map(|record| record.allowed)
            };
            // Until the first eviction, it may be among the others.
            assert!(of("heavy").is_some_and(|allowed| allowed >= 1_800), "{:?}", of("heavy"));
            assert_eq!(records.iter().map(|record| record.allowed).sum::<u64>(), 202_000, "nothing is lost");
        }
    }

    #[test]
    fn made_up_dimensions_are_counted_together() {
        let usage = Usage::default();
        let mut rows = BTreeSet::new();
        for round in 0..6 {
            for number in 0..50_000 {
                usage.count(&format!("made-up-{round}-{number}"), "u1", true);
            }
            usage.count("user", "u1", true);
            let names: usize = usage.shards.iter().map(|shard| shard.lock().names.len()).sum();
            let others: usize = usage.shards.iter().map(|shard| shard.lock().others.len()).sum();
            assert!(names <= SHARDS * NAMES_MAX && others <= SHARDS * (DIMENSIONS_MAX + 5));
            let taken = minutes(&usage, after(10 * round));
            assert_eq!(taken.iter().map(|record| record.allowed).sum::<u64>(), 50_001, "nothing is lost");
            rows.extend(taken.into_iter().map(|record| (record.dimension, record.identifier)));
        }
        assert!(rows.len() <= MINUTE_ROWS + DIMENSIONS_MAX + 5, "{} rows in a minute", rows.len());
        assert!(rows.contains(&(OTHERS.to_owned(), OTHERS.to_owned())));
    }

    #[test]
    fn long_identifiers_are_shortened_and_stay_distinct() {
        let usage = Usage::default();
        let long = |last: char| format!("{}{last}", "x".repeat(1_000));
        for last in ['a', 'b', 'b'] {
            usage.count("user", &long(last), true);
        }
        let taken = minutes(&usage, after(0));
        assert_eq!(taken.iter().map(|record| record.allowed).collect::<Vec<_>>(), [2, 1]);
        assert!(taken.iter().all(|record| record.identifier.len() <= 128));
    }

    #[test]
    fn rows_of_a_period_are_bounded_and_late_identifiers_get_rows() {
        let usage = Usage::default();
        let mut rows = BTreeSet::new();
        for write in 0..6 {
            // New identifiers each time, and one that first appears in the second-to-last write.
            for number in 0..2_000 {
                usage.count("user", &format!("u-{write}-{number}"), true);
            }
            if write >= 4 {
                (0..100).for_each(|_| usage.count("user", "late", true));
            }
            let taken = minutes(&usage, after(10 * write));
            rows.extend(taken.into_iter().map(|record| record.identifier));
        }
        assert!(rows.len() <= MINUTE_ROWS + 1, "{} rows", rows.len());
        assert!(rows.contains("late"));
        // The next minute has its own rows.
        usage.count("user", "next", true);
        assert_eq!(minutes(&usage, after(60)).len(), 1);
    }

    #[test]
    fn heaviest_identifiers_are_known_just_after_a_write() {
        let usage = Usage::default();
        for (identifier, allowed, blocked) in [("a", 5, 0), ("b", 1, 3), ("c", 2, 1)] {
            (0..allowed).for_each(|_| usage.count("user", identifier, true));
            (0..blocked).for_each(|_| usage.count("user", identifier, false));
        }
        let names = |records: &[UsageRecord]| -> Vec<String> {
            records.iter().map(|record| record.identifier.clone()).collect()
        };
        let (heaviest, most_blocked) = usage.top(2);
        assert_eq!(
            (names(&heaviest), names(&most_blocked)),
            (vec!["a".into(), "b".into()], vec!["b".into(), "c".into()])
        );
        usage.take(Timestamp::default());
        usage.count("user", "a", false);
        let (heaviest, most_blocked) = usage.top(9);
        assert_eq!(names(&heaviest), ["a", "b", "c"]);
        assert_eq!(names(&most_blocked), ["b", "a", "c"]);
        assert_eq!((heaviest[0].allowed, heaviest[0].blocked), (5, 1));
        usage.take(Timestamp::default());
        usage.take(Timestamp::default());
        assert!(usage.top(9).0.is_empty(), "kept for one more period only");
    }

    /// The figures of the operating guide: 10,000 users, each active in every ten seconds.
    #[test]
    fn ordinary_load_writes_a_tenth_of_a_row_per_user_and_minute() {
        const USERS: usize = 10_000;
        let usage = Usage::default();
        let mut rows: [BTreeSet<(Timestamp, String)>; 2] = Default::default();
        for write in 0..12 {
            for user in 0..USERS {
                usage.count("user", &format!("user-{user:06}"), true);
            }
            for ((_, records), rows) in usage.take(after(10 * write)).into_iter().zip(&mut rows) {
                rows.extend(records.into_iter().map(|record| (record.start, record.identifier)));
            }
        }
        let (per_minute, per_hour) = (rows[0].len() / 2, rows[1].len());
        assert!(per_hour >= USERS, "an hour has every user: {per_hour}");
        let (per_day, one_each) = (per_minute * 1_440 + per_hour * 24, USERS * (1_440 + 24));
        assert!(per_day * 10 <= one_each, "{per_day} rows a day");
    }
}
