//! The rules in force, and how a check reads them without writing memory that threads share.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::ruleset::RuleSet;

/// Number of limiters that a thread can use in turn without loading their rules again.
const CACHED_LIMITERS: usize = 4;

/// The next stamp. Every rule set of every limiter has another one.
static NEXT_STAMP: AtomicU64 = AtomicU64::new(1);

/// Rules with their stamp.
type Cached = Cell<Option<(u64, Arc<RuleSet>)>>;

thread_local! {
    /// The rules that this thread used last. They are kept until the thread uses other rules or
    /// ends.
    static CACHED: [Cached; CACHED_LIMITERS] = const { [const { Cell::new(None) }; CACHED_LIMITERS] };
}

/// The rules in force, shared by all clones of a limiter.
#[derive(Debug)]
pub(crate) struct CurrentRules {
    /// Swapped as a whole, so every check is decided by one rule set.
    rules: ArcSwap<RuleSet>,
    /// Changes with the rules.
    stamp: AtomicU64,
    /// Where threads cache the rules of this limiter.
    place: usize,
}

impl CurrentRules {
    pub(crate) fn new(rules: RuleSet) -> Self {
        let stamp = NEXT_STAMP.fetch_add(1, Ordering::Relaxed);
        Self {
            rules: ArcSwap::from_pointee(rules),
            stamp: AtomicU64::new(stamp),
            place: stamp as usize % CACHED_LIMITERS,
        }
    }

    /// Replaces the rules for all later checks.
    pub(crate) fn store(&self, rules: RuleSet) {
        self.rules.store(Arc::new(rules));
        // After the rules, so that the new stamp is never seen with the old ones.
        self.stamp.store(NEXT_STAMP.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    /// Returns the rules in force.
    pub(crate) fn load(&self) -> Arc<RuleSet> {
        self.rules.load_full()
    }

    /// Calls `read` with the rules in force.
    ///
    /// Loading a rule set counts a reference, which writes memory. A thread that has loaded it
    /// before compares a number instead, which changes only with the rules.
    #[inline(always)]
    pub(crate) fn with<T>(&self, read: impl FnOnce(&RuleSet) -> T) -> T {
        let stamp = self.stamp.load(Ordering::Acquire);
        // A thread that ends has no cached rules any more.
        let rules = match CACHED.try_with(|cached| cached[self.place].take()) {
            Ok(Some((cached, rules))) if cached == stamp => rules,
            _ => self.load(),
        };
        let result = read(&rules);
        let _ = CACHED.try_with(|cached| cached[self.place].set(Some((stamp, rules))));
        result
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pacegate_core::Limit;

    use super::*;

    fn rules(quota: u64) -> RuleSet {
        RuleSet::only_default(Limit::per_minute(quota).build().unwrap())
    }

    fn quota(rules: &CurrentRules) -> u32 {
        rules.with(|rules| rules.default_limit().unwrap().quota())
    }

    #[test]
    fn every_thread_reads_the_rules_in_force() {
        // More limiters than a thread caches, so that some share a place.
        let limiters: Vec<CurrentRules> = (1..=9).map(|quota| CurrentRules::new(rules(quota))).collect();
        let quotas = || limiters.iter().map(quota).collect::<Vec<_>>();
        thread::scope(|scope| {
            for step in 0..3 {
                let expected: Vec<u32> = (1..=9).map(|quota| quota + 10 * step).collect();
                for _ in 0..2 {
                    assert_eq!(quotas(), expected);
                    assert_eq!(scope.spawn(quotas).join().unwrap(), expected);
                }
                for (limiter, quota) in limiters.iter().zip(expected) {
                    limiter.store(rules(u64::from(quota) + 10));
                }
            }
        });
    }

    #[test]
    fn rules_can_be_read_while_they_are_read() {
        let current = CurrentRules::new(rules(1));
        let inner = current.with(|_| {
            current.store(rules(2));
            quota(&current)
        });
        assert_eq!((inner, quota(&current)), (2, 2));
    }

    #[test]
    fn replaced_rules_are_released() {
        let current = CurrentRules::new(rules(1));
        quota(&current);
        let old = Arc::downgrade(&current.load());
        current.store(rules(2));
        quota(&current);
        assert!(old.upgrade().is_none());
    }
}
