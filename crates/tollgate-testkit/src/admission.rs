//! Concurrent callers on shared keys: exactly as many pass as the limit says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate_core::{Cost, Counter, Key, Limit, Timestamp};
use tollgate_store::{Action, Charge, Command, Outcome, Store};

/// How many of `threads` × `attempts` takes of cost 1 are admitted on one key at the instant `now`, by a store in this process.
///
/// # Panics
/// When the store is not in this process, or fails.
pub fn count(
    store: &Arc<dyn Store>,
    rule: &str,
    limit: &Limit,
    now: Timestamp,
    threads: usize,
    attempts: usize,
) -> u64 {
    let counter = Counter::new(rule, "user", "");
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let charges = [Charge::new(Key::new(&counter, "everyone", "/"), limit)];
                let command = Command { action: Action::take(), charges: &charges, cost: Cost::ONE };
                for _ in 0..attempts {
                    let outcome = store.apply_now(&command, Some(now)).expect("a store in this process");
                    if let Ok(Outcome::Decided(decision)) = outcome {
                        admitted.fetch_add(u64::from(decision.allowed), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    admitted.into_inner()
}
