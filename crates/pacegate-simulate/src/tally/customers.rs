//! Everyone in the log: how often they came, and how often they would have been blocked, by whatever rule. Each request is one customer's.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use compact_str::CompactString;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pacegate::Timestamp;
use smallvec::SmallVec;

use super::SETS_MAX;
use super::rules::Culprit;

/// Who comes in several of these is there regularly.
pub(crate) const PERIOD: Duration = Duration::from_secs(600);
/// How many of those to blame are told apart for one customer.
const CULPRITS_MAX: usize = 4;

/// One identity of the log.
#[derive(Debug)]
pub(crate) struct Customer {
    /// The place of its dimension.
    pub(crate) dimension: u8,
    pub(crate) identifier: CompactString,
    pub(crate) requests: u64,
    /// In how many periods it came.
    pub(crate) periods: u32,
    last_period: u32,
    /// What each set of rules did to it; most customers are never blocked.
    hurt: Option<Box<[Hurt; SETS_MAX]>>,
}

/// How often and when somebody was blocked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hurt {
    pub(crate) blocked: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// When the blocked requests in a row began, of which the last request was one.
    stretch: Option<Timestamp>,
    /// The longest time with nothing but blocked requests, from the first of them to the last.
    pub(crate) longest: Duration,
    /// Who is to blame, and how often. Where there are more than fit, a new one takes the place of the least and its count, so that whoever is
    /// to blame for most of it stays.
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
    /// What a set of rules did to it; `None` if nothing.
    pub(crate) fn hurt(&self, set: usize) -> Option<&Hurt> {
        self.hurt.as_ref().map(|hurt| &hurt[set]).filter(|hurt| hurt.blocked > 0)
    }
}

/// Everyone, up to a bound.
#[derive(Debug)]
pub(crate) struct Customers {
    index: HashTable<u32>,
    all: Vec<Customer>,
    hasher: RandomState,
    max: usize,
    /// How often somebody beyond the bound was seen.
    pub(crate) untracked: u64,
}

impl Customers {
    pub(crate) fn new(max: usize) -> Self {
        Self { index: HashTable::new(), all: Vec::new(), hasher: RandomState::default(), max, untracked: 0 }
    }

    pub(crate) fn all(&self) -> &[Customer] {
        &self.all
    }

    /// Counts a request of one identity; `blocked` says for each set of rules who blocked it.
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
    fn a_stretch_ends_with_the_next_request_that_passes() {
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
    fn whoever_is_to_blame_most_often_is_named() {
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
