//! Keys of rules: their requests, those over the limit, and the limit that would be sufficient.

use std::hash::{BuildHasher as _, Hasher as _};

use compact_str::CompactString;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pacegate::{Algorithm, Limit, Timestamp};

/// The limit or burst that a key needs for all its requests to be allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Need {
    /// Time of the last request, or index of its window.
    at: u64,
    current: f64,
    previous: f64,
    /// The maximum so far.
    pub(crate) peak: f64,
}

/// The setting that a need is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeedOf {
    /// The limit: requests of one window.
    Limit,
    /// The burst, at the rate of the rule.
    Burst,
}

impl NeedOf {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Burst => "burst",
        }
    }
}

impl Need {
    /// Returns the setting of the limit that the need is about.
    pub(crate) fn of(limit: &Limit) -> NeedOf {
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => NeedOf::Burst,
            _ => NeedOf::Limit,
        }
    }

    /// Whether the number is exact. For a sliding log it is estimated with a sliding counter.
    pub(crate) fn is_exact(limit: &Limit) -> bool {
        limit.algorithm() != Algorithm::SlidingLog
    }

    /// Counts a request as the algorithm does without a limit.
    pub(crate) fn add(&mut self, limit: &Limit, at: Timestamp, cost: u32) {
        let (now, cost) = (at.as_micros(), f64::from(cost));
        let window = limit.window().as_micros() as u64;
        let level = match Self::of(limit) {
            NeedOf::Burst => {
                let drained = now.saturating_sub(self.at) as f64 * f64::from(limit.quota()) / window as f64;
                self.at = now;
                self.current = (self.current - drained).max(0.0) + cost;
                self.current
            }
            NeedOf::Limit => {
                let number = now / window;
                if number != self.at {
                    self.previous = if number == self.at + 1 { self.current } else { 0.0 };
                    (self.at, self.current) = (number, 0.0);
                }
                self.current += cost;
                if limit.algorithm() == Algorithm::FixedWindow {
                    self.current
                } else {
                    let left = (window - now % window) as f64 / window as f64;
                    self.previous * left + self.current
                }
            }
        };
        self.peak = self.peak.max(level);
    }

    /// Returns the smallest sufficient number. A millionth is the tolerance for rounding errors.
    pub(crate) fn enough(&self) -> u64 {
        (self.peak - 1e-6).ceil() as u64
    }
}

/// A key of a rule.
#[derive(Debug)]
pub(crate) struct KeyEntry {
    pub(crate) rule: u32,
    /// The identifier. With a counter per endpoint, a line break and the endpoint follow:
    /// identifiers contain no line breaks.
    pub(crate) name: CompactString,
    pub(crate) requests: u32,
    /// Number of requests over the limit of this rule.
    pub(crate) blocked: u32,
    pub(crate) need: Need,
}

/// All keys of a set of rules, up to a bound.
#[derive(Debug)]
pub(crate) struct KeyTable {
    index: HashTable<u32>,
    entries: Vec<KeyEntry>,
    hasher: RandomState,
    max: usize,
    scratch: CompactString,
}

impl KeyTable {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            hasher: RandomState::default(),
            max,
            scratch: CompactString::default(),
        }
    }

    /// Returns the index of a key, which is added unless the table is full.
    pub(crate) fn place(&mut self, rule: u32, identifier: &str, endpoint: Option<&str>) -> Option<u32> {
        let name = match endpoint {
            None => identifier,
            Some(endpoint) => {
                self.scratch.clear();
                self.scratch.push_str(identifier);
                self.scratch.push('\n');
                self.scratch.push_str(endpoint);
                &self.scratch
            }
        };
        let hash = hash(&self.hasher, rule, name);
        let is_it = |place: &u32| {
            let entry = &self.entries[*place as usize];
            entry.rule == rule && entry.name == name
        };
        if let Some(place) = self.index.find(hash, is_it) {
            return Some(*place);
        }
        if self.entries.len() >= self.max {
            return None;
        }
        let place = self.entries.len() as u32;
        let (need, name) = (Need::default(), CompactString::new(name));
        self.entries.push(KeyEntry { rule, name, requests: 0, blocked: 0, need });
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash_of = |place: &u32| {
            let entry = &entries[*place as usize];
            self::hash(hasher, entry.rule, &entry.name)
        };
        self.index.insert_unique(hash, place, hash_of);
        Some(place)
    }

    pub(crate) fn entry_mut(&mut self, place: u32) -> &mut KeyEntry {
        &mut self.entries[place as usize]
    }

    pub(crate) fn get(&self, place: u32) -> Option<&KeyEntry> {
        self.entries.get(place as usize)
    }

    pub(crate) fn entries(&self) -> &[KeyEntry] {
        &self.entries
    }
}

fn hash(hasher: &RandomState, number: u32, text: &str) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u32(number);
    state.write(text.as_bytes());
    state.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peak(algorithm: Algorithm, times: &[u64]) -> f64 {
        let limit = Limit::try_new(algorithm, 10, Duration::from_secs(10)).unwrap();
        let mut need = Need::default();
        for seconds in times {
            need.add(&limit, Timestamp::from_micros(1_000_000_000 + seconds * 1_000_000), 1);
        }
        need.peak
    }

    #[test]
    fn need_is_the_peak_without_a_limit() {
        // Windows of ten seconds start at multiples of ten seconds. The rate is one request per
        // second.
        assert_eq!(peak(Algorithm::FixedWindow, &[8, 9, 9, 10, 10]), 3.0);
        assert_eq!(peak(Algorithm::SlidingCounter, &[8, 9, 9, 10, 10]), 5.0);
        assert_eq!(peak(Algorithm::SlidingCounter, &[9, 9, 15, 25]), 2.0);
        assert_eq!(peak(Algorithm::TokenBucket, &[0, 0, 0, 1, 1]), 4.0);
        assert_eq!(peak(Algorithm::Gcra, &[0, 1, 2, 3, 50]), 1.0);
    }

    #[test]
    fn keys_are_distinct_and_bounded() {
        let mut table = KeyTable::new(3);
        let first = table.place(0, "a", None);
        assert_eq!(table.place(0, "a", None), first);
        assert_ne!(table.place(1, "a", None), first);
        assert_ne!(table.place(0, "a", Some("/")), first);
        assert_eq!(table.place(0, "b", None), None);
        assert_eq!(table.place(0, "a", None), first);
    }
}
