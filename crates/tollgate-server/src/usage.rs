//! How often each identifier passed and did not, until that is written to the catalog.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use hashbrown::{Equivalent, HashMap};
use parking_lot::Mutex;
use tollgate::Timestamp;
use tollgate_catalog::UsageRecord;

/// Checks on different threads rarely meet.
const SHARDS: usize = 16;
/// How many identifiers a shard remembers between two writes.
const IDENTIFIERS_MAX: usize = 4_096;
/// What the others are counted as: made-up identifiers must not fill the catalog.
const OTHERS: &str = "(others)";

/// Counts by identifier.
#[derive(Debug)]
pub(crate) struct Usage {
    shards: [Mutex<HashMap<Name, Counts, RandomState>>; SHARDS],
    hasher: RandomState,
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
        let hasher = RandomState::new();
        Self { shards: std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hasher.clone()))), hasher }
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
        taken.map(record).collect()
    }
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
}
