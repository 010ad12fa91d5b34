//! Customers: the number of their requests, and of those that any rule would have blocked. Each
//! request has one customer.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use compact_str::CompactString;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pacegate::Timestamp;
use smallvec::SmallVec;

use super::SETS_MAX;
use super::rules::Culprit;

/// Length of a period. A regular customer sends requests in several periods.
pub(crate) const PERIOD: Duration = Duration::from_secs(600);
/// Maximum number of culprits that are tracked per customer.
const CULPRITS_MAX: usize = 4;

/// A customer: one identity of the log.
#[derive(Debug)]
pub(crate) struct Customer {
    /// The index of its dimension.
    pub(crate) dimension: u8,
    pub(crate) identifier: CompactString,
    pub(crate) requests: u64,
    /// Number of periods with requests.
    pub(crate) periods: u32,
    last_period: u32,
    /// Blocked requests by set of rules. Most customers are never blocked.
    hurt: Option<Box<[Hurt; SETS_MAX]>>,
}

/// The blocked requests of a customer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hurt {
    pub(crate) blocked: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// Start of the current run of blocked requests.
    stretch: Option<Timestamp>,
    /// The longest run of blocked requests, from the first to the last.
    pub(crate) longest: Duration,
    /// Culprits and their counts. Beyond the maximum, a new culprit replaces the least frequent one
    /// and inherits its count, so the most frequent one is kept (space-saving algorithm).
    culprits: SmallVec<[(Culprit, u64); CULPRITS_MAX]>,
}

impl Hurt {
    pub(crate) fn culprit(&self) -> Option<Culprit> {
        // The first of equals.
        self.culprits.iter().rev().max_by_key(|(_, count)| *count).map(|(culprit, _)| *culprit)
    }

    fn add(&mut self, at: Timestamp, culprit: Culprit) {
        if self.blocked == 0 {
            self.first = at;
        }
        self.blocked += 1;
        self.last = at;
        let start = *self.stretch.get_or_insert(at);
        self.longest = self.longest.max(at.saturating_since(start));
        if let Some((_, count)) = self.culprits.iter_mut().find(|(known, _)| *known == culprit) {
            *count += 1;
        } else if self.culprits.len() < CULPRITS_MAX {
            self.culprits.push((culprit, 1));
        } else if let Some(least) = self.culprits.iter_mut().min_by_key(|(_, count)| *count) {
            *least = (culprit, least.1 + 1);
        }
    }
}

impl Customer {
    /// Returns the requests that a set of rules blocked, or `None` if there are none.
    pub(crate) fn hurt(&self, set: usize) -> Option<&Hurt> {
        self.hurt.as_ref().map(|hurt| &hurt[set]).filter(|hurt| hurt.blocked > 0)
    }
}

/// All customers, up to a bound.
#[derive(Debug)]
pub(crate) struct Customers {
    index: HashTable<u32>,
    all: Vec<Customer>,
    hasher: RandomState,
    max: usize,
    /// Number of requests of customers beyond the bound.
    pub(crate) untracked: u64,
}

impl Customers {
    pub(crate) fn new(max: usize) -> Self {
        Self { index: HashTable::new(), all: Vec::new(), hasher: RandomState::default(), max, untracked: 0 }
    }

    pub(crate) fn all(&self) -> &[Customer] {
        &self.all
    }

    /// Counts a request of a customer. `blocked` is the culprit of each set of rules that blocked
    /// it.
    pub(crate) fn count(
        &mut self,
        dimension: u8,
        identifier: &str,
        at: Timestamp,
        blocked: &[Option<Culprit>; SETS_MAX],
    ) {
        let Some(place) = self.place(dimension, identifier) else {
            self.untracked += 1;
            return;
        };
        let customer = &mut self.all[place];
        customer.requests += 1;
        let period = (at.as_micros() / PERIOD.as_micros() as u64) as u32;
        if customer.periods == 0 || customer.last_period != period {
            customer.periods += 1;
            customer.last_period = period;
        }
        if customer.hurt.is_none() && blocked.iter().all(Option::is_none) {
            return;
        }
        for (hurt, culprit) in customer.hurt.get_or_insert_default().iter_mut().zip(blocked) {
            match culprit {
                Some(culprit) => hurt.add(at, *culprit),
                None => hurt.stretch = None,
            }
        }
    }

    fn place(&mut self, dimension: u8, identifier: &str) -> Option<usize> {
        let hash_of = |customer: &Customer| hash(&self.hasher, customer.dimension, &customer.identifier);
        let hash = hash(&self.hasher, dimension, identifier);
        let is_it = |place: &u32| {
            let customer = &self.all[*place as usize];
            customer.dimension == dimension && customer.identifier == identifier
        };
        if let Some(place) = self.index.find(hash, is_it) {
            return Some(*place as usize);
        }
        if self.all.len() >= self.max {
            return None;
        }
        let place = self.all.len();
        let identifier = CompactString::new(identifier);
        self.all.push(Customer {
            dimension,
            identifier,
            requests: 0,
            periods: 0,
            last_period: 0,
            hurt: None,
        });
        let all = &self.all;
        self.index.insert_unique(hash, place as u32, |place| hash_of(&all[*place as usize]));
        Some(place)
    }
}

fn hash(hasher: &RandomState, dimension: u8, identifier: &str) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u8(dimension);
    state.write(identifier.as_bytes());
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_blocked_requests_ends_with_an_allowed_one() {
        let mut customers = Customers::new(1);
        let culprit = |rule| Some(Culprit { rule, key: 0 });
        let history = [
            (0, None),
            (1, culprit(1)),
            (4, culprit(2)),
            (5, None),
            (10, culprit(2)),
            (700, None),
            (701, culprit(2)),
            (702, culprit(2)),
        ];
        for (seconds, blocked) in history {
            customers.count(0, "a", Timestamp::from_micros(seconds * 1_000_000), &[blocked, None]);
        }
        customers.count(0, "b", Timestamp::default(), &[None, None]);
        let customer = &customers.all()[0];
        let hurt = customer.hurt(0).unwrap();
        assert_eq!((customer.requests, customer.periods, hurt.blocked), (8, 2, 5));
        assert_eq!((hurt.first.as_micros(), hurt.last.as_micros()), (1_000_000, 702_000_000));
        assert_eq!(hurt.longest, Duration::from_secs(3));
        assert_eq!(hurt.culprit().map(|culprit| culprit.rule), Some(2));
        assert!(customer.hurt(1).is_none());
        assert_eq!(customers.untracked, 1);
    }

    #[test]
    fn most_frequent_culprit_is_reported() {
        let blamed = |rules: &[(u32, usize)]| {
            let mut hurt = Hurt::default();
            for (rule, times) in rules {
                (0..*times).for_each(|_| hurt.add(Timestamp::default(), Culprit { rule: *rule, key: 0 }));
            }
            hurt.culprit().map(|culprit| culprit.rule)
        };
        assert_eq!(blamed(&[]), None);
        assert_eq!(blamed(&[(1, 100), (2, 100), (3, 1)]), Some(1));
        assert_eq!(blamed(&[(1, 100), (2, 101), (3, 1)]), Some(2));
        assert_eq!(blamed(&[(1, 5), (2, 50), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (1, 5)]), Some(2));
    }
}
