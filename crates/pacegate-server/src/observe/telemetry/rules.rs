//! Decisions by rule. The names of rules and the keys of policies come from operators; input of
//! callers never becomes a name here.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use pacegate::{Algorithm, Check, Decision, NamedLimit, Reason};
use parking_lot::Mutex;

use super::distinct::Distinct;
use crate::clock::now;

/// Maximum number of rules with their own counters; an operator may have a hundred thousand.
const RULES_MAX: usize = 1_000;
/// The name under which the other rules are counted.
const OTHERS: &str = "(others)";
/// The name under which requests without a limit are counted.
const NO_RULE: &str = "(none)";
/// Length of a period of lowest remaining quotas, in seconds. The current and the previous period
/// are reported.
const LEAST_FOR: u64 = 30;
/// The remaining quota is unknown.
const UNKNOWN: u64 = u64::MAX;

/// Every reason, and none.
pub(crate) const REASONS: [Option<Reason>; 6] = [
    None,
    Some(Reason::LimitExceeded),
    Some(Reason::CostExceedsLimit),
    Some(Reason::FailOpen),
    Some(Reason::FailClosed),
    Some(Reason::LocalFallback),
];

/// All rules that made a decision. Reading takes no lock; a new rule replaces the map.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    known: ArcSwap<HashMap<Name, Arc<Rule>, RandomState>>,
    growing: Mutex<()>,
    /// Secret, so that no caller can choose keys that are counted as one.
    hasher: foldhash::quality::RandomState,
}

/// The identity that a limit counted.
fn key_of<'a>(checks: &'a [Check<'_>], limit: &NamedLimit) -> Option<(&'a str, &'a str)> {
    let identities = checks.iter().flat_map(|check| check.identities());
    let mut identities = identities.map(|(dimension, identifier)| (*dimension, &**identifier));
    identities.find(|(dimension, identifier)| limit.counts(dimension, identifier))
}

/// A rule and its algorithm: variants of one rule may have different algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) rule: Box<str>,
    pub(crate) algorithm: Option<Algorithm>,
}

/// The decisions of one rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) allowed: [AtomicU64; REASONS.len()],
    pub(crate) blocked: [AtomicU64; REASONS.len()],
    /// Requests that it evaluated in shadow mode, and those that it would have denied.
    shadow_checked: AtomicU64,
    shadow_blocked: AtomicU64,
    /// The keys of those requests. Only rules in shadow mode take the memory.
    shadow_keys: OnceLock<ShadowKeys>,
    /// Costs that were not charged, because they exceed the debt bound.
    uncharged: AtomicU64,
    /// The lowest remaining quota in the current and the previous half minute, each with the number
    /// of its period.
    least: [(AtomicU64, AtomicU64); 2],
}

/// The keys that a rule in shadow mode counted, and those that it would have denied.
#[derive(Debug, Default)]
struct ShadowKeys {
    checked: Distinct,
    blocked: Distinct,
}

/// What a rule did in shadow mode. The numbers of keys are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShadowFigures {
    pub(crate) checked: u64,
    pub(crate) blocked: u64,
    pub(crate) keys: u64,
    pub(crate) keys_blocked: u64,
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Borrowed(&self.rule, self.algorithm).hash(state);
    }
}

struct Borrowed<'a>(&'a str, Option<Algorithm>);

impl Hash for Borrowed<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
        self.1.map(|algorithm| algorithm as u8).hash(state);
    }
}

impl Equivalent<Name> for Borrowed<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        self.0 == &*name.rule && self.1 == name.algorithm
    }
}

impl Default for Rule {
    fn default() -> Self {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        let least = || (AtomicU64::new(0), AtomicU64::new(UNKNOWN));
        Self {
            allowed: zeros(),
            blocked: zeros(),
            shadow_checked: AtomicU64::new(0),
            shadow_blocked: AtomicU64::new(0),
            shadow_keys: OnceLock::new(),
            uncharged: AtomicU64::new(0),
            least: [least(), least()],
        }
    }
}

impl Rules {
    /// Counts a decision for its binding limit and for limits in shadow mode.
    pub(crate) fn observe(&self, checks: &[Check<'_>], decision: &Decision) {
        let (answer, limit) = (decision.binding(), decision.binding_limit());
        let name = limit.map_or(NO_RULE, |limit| limit.label());
        let reason = answer.and_then(|answer| answer.reason);
        self.with(name, answer.map(|answer| answer.algorithm), |rule| {
            let counts = if decision.allowed() { &rule.allowed } else { &rule.blocked };
            let place = REASONS.iter().position(|other| *other == reason).unwrap_or_default();
            counts[place].fetch_add(1, Ordering::Relaxed);
            if let Some(remaining) = answer.and_then(|answer| answer.remaining) {
                rule.note_remaining(remaining.into(), now().as_micros() / 1_000_000);
            }
        });
        for (limit, answer) in decision.limits().iter().zip(decision.answers()) {
            if answer.shadow {
                let key = key_of(checks, limit);
                self.with(limit.label(), Some(answer.algorithm), |rule| {
                    rule.note_shadow(key.map(|key| self.hasher.hash_one(key)), answer.allowed);
                });
            }
            if answer.uncharged > 0 {
                self.with(limit.label(), Some(answer.algorithm), |rule| {
                    rule.uncharged.fetch_add(answer.uncharged.into(), Ordering::Relaxed);
                });
            }
        }
    }

    /// Returns how many requests were allowed and blocked since the start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let known = self.known.load();
        known
            .values()
            .fold((0, 0), |(allowed, blocked), rule| (allowed + rule.allowed(), blocked + rule.blocked()))
    }

    /// Returns all rules, sorted by name.
    pub(crate) fn all(&self) -> Vec<(Name, Arc<Rule>)> {
        let known = self.known.load();
        let mut all: Vec<_> = known.iter().map(|(name, rule)| (name.clone(), rule.clone())).collect();
        all.sort_by(|(a, _), (b, _)| a.rule.cmp(&b.rule).then(a.algorithm.cmp(&b.algorithm)));
        all
    }

    #[inline]
    fn with(&self, rule: &str, algorithm: Option<Algorithm>, count: impl FnOnce(&Rule)) {
        let known = self.known.load();
        // Above the bound, no rule is added, so unknown rules need no lock.
        let others = || (known.len() >= RULES_MAX).then(|| known.get(&Borrowed(OTHERS, algorithm))).flatten();
        match known.get(&Borrowed(rule, algorithm)).or_else(others) {
            Some(known) => count(known),
            None => count(&self.add(rule, algorithm)),
        }
    }

    #[cold]
    fn add(&self, rule: &str, algorithm: Option<Algorithm>) -> Arc<Rule> {
        let _one_at_a_time = self.growing.lock();
        let known = self.known.load();
        let rule = if known.len() < RULES_MAX { rule } else { OTHERS };
        if let Some(known) = known.get(&Borrowed(rule, algorithm)) {
            return known.clone();
        }
        let mut grown = HashMap::clone(&known);
        let added = Arc::new(Rule::default());
        grown.insert(Name { rule: rule.into(), algorithm }, added.clone());
        self.known.store(Arc::new(grown));
        added
    }
}

impl Rule {
    pub(crate) fn allowed(&self) -> u64 {
        self.allowed.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn blocked(&self) -> u64 {
        self.blocked.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn shadow_blocked(&self) -> u64 {
        self.shadow_blocked.load(Ordering::Relaxed)
    }

    /// Counts a request that the rule evaluated in shadow mode, by the hash of its key.
    fn note_shadow(&self, key: Option<u64>, allowed: bool) {
        self.shadow_checked.fetch_add(1, Ordering::Relaxed);
        let keys = self.shadow_keys.get_or_init(ShadowKeys::default);
        if let Some(key) = key {
            keys.checked.insert(key);
        }
        if !allowed {
            self.shadow_blocked.fetch_add(1, Ordering::Relaxed);
            if let Some(key) = key {
                keys.blocked.insert(key);
            }
        }
    }

    pub(crate) fn shadow(&self) -> ShadowFigures {
        let (checked, blocked) = (self.shadow_checked.load(Ordering::Relaxed), self.shadow_blocked());
        let Some(keys) = self.shadow_keys.get() else { return ShadowFigures::default() };
        // A request has one key, so there are at most as many keys as requests.
        let keys_blocked = keys.blocked.estimate().min(blocked);
        let keys = keys.checked.estimate().min(checked).max(keys_blocked);
        ShadowFigures { checked, blocked, keys, keys_blocked }
    }

    pub(crate) fn uncharged(&self) -> u64 {
        self.uncharged.load(Ordering::Relaxed)
    }

    fn note_remaining(&self, remaining: u64, second: u64) {
        let number = second / LEAST_FOR;
        let (own, least) = &self.least[(number % 2) as usize];
        if own.swap(number, Ordering::Relaxed) == number {
            least.fetch_min(remaining, Ordering::Relaxed);
        } else {
            least.store(remaining, Ordering::Relaxed);
        }
    }

    /// Returns the lowest remaining quota of any key recently.
    pub(crate) fn least_remaining(&self) -> Option<u64> {
        self.least_remaining_at(now().as_micros() / 1_000_000)
    }

    fn least_remaining_at(&self, second: u64) -> Option<u64> {
        let number = second / LEAST_FOR;
        // Excludes stale periods, and periods from before the clock was set back.
        let recent = |own: u64| (number.saturating_sub(1)..=number).contains(&own);
        let halves = self.least.iter().filter(|(number, _)| recent(number.load(Ordering::Relaxed)));
        let least = halves.map(|(_, least)| least.load(Ordering::Relaxed)).min()?;
        (least != UNKNOWN).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_rules_is_bounded_and_no_count_is_lost() {
        let rules = Rules::default();
        for number in 0..2_000 {
            rules.with(&number.to_string(), Some(Algorithm::Gcra), |rule| {
                rule.allowed[0].fetch_add(1, Ordering::Relaxed);
            });
        }
        let all = rules.all();
        assert_eq!(all.len(), RULES_MAX + 1);
        let total: u64 = all.iter().map(|(_, rule)| rule.allowed[0].load(Ordering::Relaxed)).sum();
        assert_eq!(total, 2_000);
        let others = all.iter().find(|(name, _)| &*name.rule == OTHERS).unwrap();
        assert_eq!(others.1.allowed[0].load(Ordering::Relaxed), 1_000);
    }

    #[test]
    fn shadow_figures_count_requests_and_keys() {
        let rule = Rule::default();
        assert_eq!(rule.shadow(), ShadowFigures::default());
        // The number of keys is an estimate; with other seeds it may be 19 or 21.
        let hasher = foldhash::quality::FixedState::with_seed(1);
        for request in 0_u64..60 {
            rule.note_shadow(Some(hasher.hash_one(request % 20)), request % 20 >= 3);
        }
        let figures = ShadowFigures { checked: 60, blocked: 9, keys: 20, keys_blocked: 3 };
        assert_eq!(rule.shadow(), figures);
    }

    #[test]
    fn lowest_remaining_quota_expires() {
        let rule = Rule::default();
        assert_eq!(rule.least_remaining_at(0), None);
        for remaining in [5, 3, 4] {
            rule.note_remaining(remaining, 100);
        }
        assert_eq!(rule.least_remaining_at(100), Some(3));
        assert_eq!(rule.least_remaining_at(149), Some(3), "the previous half minute counts");
        rule.note_remaining(9, 130);
        assert_eq!(rule.least_remaining_at(130), Some(3));
        assert_eq!(rule.least_remaining_at(150), Some(9));
        assert_eq!(rule.least_remaining_at(300), None);
        assert_eq!(rule.least_remaining_at(30), None, "the clock was set back");
    }
}
