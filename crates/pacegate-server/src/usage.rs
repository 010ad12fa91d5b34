//! How often each identifier passed and did not, until that is written to the catalog.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use hashbrown::{Equivalent, HashMap};
use pacegate::Timestamp;
use pacegate_catalog::UsageRecord;
use parking_lot::Mutex;

/// Checks on different threads rarely meet.
const SHARDS: usize = 16;
/// How many identifiers a shard remembers between two writes.
const IDENTIFIERS_MAX: usize = 4_096;
/// How many of those who did most are remembered for another while.
const KEPT: usize = 50;
/// What the others are counted as: made-up identifiers must not fill the catalog.
pub(crate) const OTHERS: &str = "(others)";

/// Counts by identifier.
#[derive(Debug)]
pub(crate) struct Usage {
    shards: [Mutex<HashMap<Name, Counts, RandomState>>; SHARDS],
    hasher: RandomState,
    /// Who did most in the time before this one, as that is shorter than it seems just after it began.
    before: Mutex<Vec<UsageRecord>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Name {
    dimension: Box<str>,
    identifier: Box<str>,
}

#[derive(Debug, Default)]
struct Counts {
    allowed: u64,
    blocked: u64,
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&*self.dimension, &*self.identifier).hash(state);
    }
}

/// A name that nobody had to allocate.
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
            shards: std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hasher.clone()))),
            hasher,
            before: Mutex::default(),
        }
    }
}

impl Usage {
    pub(crate) fn count(&self, dimension: &str, identifier: &str, allowed: bool) {
        let name = Borrowed(dimension, identifier);
        let shard = (self.hasher.hash_one(&name) >> 32) as usize % SHARDS;
        let mut counts = self.shards[shard].lock();
        let is_full = counts.len() >= IDENTIFIERS_MAX;
        let counts = match counts.get_mut(&name) {
            Some(known) => known,
            None => {
                let identifier = if is_full { OTHERS } else { identifier };
                let name = Name { dimension: dimension.into(), identifier: identifier.into() };
                counts.entry(name).or_default()
            }
        };
        if allowed {
            counts.allowed += 1;
        } else {
            counts.blocked += 1;
        }
    }

    /// What was counted since the last time.
    pub(crate) fn take(&self, at: Timestamp) -> Vec<UsageRecord> {
        let taken = self.shards.iter().flat_map(|shard| {
            std::mem::replace(&mut *shard.lock(), HashMap::with_hasher(self.hasher.clone()))
        });
        let record = |(name, counts): (Name, Counts)| UsageRecord {
            start: at,
            dimension: name.dimension.into(),
            identifier: name.identifier.into(),
            allowed: counts.allowed,
            blocked: counts.blocked,
        };
        let records: Vec<UsageRecord> = taken.map(record).collect();
        let mut before: Vec<UsageRecord> = heaviest(&records, KEPT, total).into_iter().cloned().collect();
        before.extend(heaviest(&records, KEPT, |record| record.blocked).into_iter().cloned());
        before.sort_by(|a, b| (&a.dimension, &a.identifier).cmp(&(&b.dimension, &b.identifier)));
        before.dedup_by(|a, b| (&a.dimension, &a.identifier) == (&b.dimension, &b.identifier));
        *self.before.lock() = before;
        records
    }

    /// Who did most in the last minute or two, and who was blocked most, `count` of each.
    pub(crate) fn top(&self, count: usize) -> (Vec<UsageRecord>, Vec<UsageRecord>) {
        let mut all: HashMap<(String, String), UsageRecord, RandomState> =
            HashMap::with_hasher(self.hasher.clone());
        let name = |record: &UsageRecord| (record.dimension.clone(), record.identifier.clone());
        for record in self.before.lock().iter() {
            all.insert(name(record), record.clone());
        }
        for shard in &self.shards {
            for (own, counts) in shard.lock().iter() {
                let (dimension, identifier) = (own.dimension.to_string(), own.identifier.to_string());
                let sum = all.entry((dimension, identifier)).or_insert_with_key(|(dimension, identifier)| {
                    let (dimension, identifier) = (dimension.clone(), identifier.clone());
                    UsageRecord { start: Timestamp::default(), dimension, identifier, allowed: 0, blocked: 0 }
                });
                sum.allowed += counts.allowed;
                sum.blocked += counts.blocked;
            }
        }
        let all: Vec<UsageRecord> = all.into_values().collect();
        let by = |measure: fn(&UsageRecord) -> u64| {
            heaviest(&all, count, measure).into_iter().filter(|record| measure(record) > 0).cloned().collect()
        };
        (by(total), by(|record| record.blocked))
    }
}

fn total(record: &UsageRecord) -> u64 {
    record.allowed + record.blocked
}

/// The `count` records with the most, the most first.
fn heaviest(
    records: &[UsageRecord],
    count: usize,
    measure: impl Fn(&UsageRecord) -> u64,
) -> Vec<&UsageRecord> {
    let mut all: Vec<&UsageRecord> = records.iter().collect();
    all.sort_by(|a, b| {
        measure(b)
            .cmp(&measure(a))
            .then_with(|| (&a.dimension, &a.identifier).cmp(&(&b.dimension, &b.identifier)))
    });
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_counted_apart_and_bounded() {
        let usage = Usage::default();
        for _ in 0..3 {
            usage.count("user", "u1", true);
        }
        usage.count("user", "u1", false);
        usage.count("ip", "u1", true);
        let mut taken = usage.take(Timestamp::default());
        taken.sort_by(|a, b| a.dimension.cmp(&b.dimension));
        let shown: Vec<_> =
            taken.iter().map(|record| (&*record.dimension, record.allowed, record.blocked)).collect();
        assert_eq!(shown, [("ip", 1, 0), ("user", 3, 1)]);
        assert!(usage.take(Timestamp::default()).is_empty());
        for number in 0..200_000 {
            usage.count("user", &number.to_string(), true);
        }
        let taken = usage.take(Timestamp::default());
        assert!(taken.len() <= SHARDS * (IDENTIFIERS_MAX + 1), "{}", taken.len());
        assert_eq!(taken.iter().map(|record| record.allowed).sum::<u64>(), 200_000, "nothing is lost");
    }

    #[test]
    fn those_who_did_most_are_found_also_just_after_a_write() {
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
        assert!(usage.top(9).0.is_empty(), "only for another while");
    }
}
