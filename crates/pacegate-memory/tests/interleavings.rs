//! Interleavings: shuttle schedules the threads and finds deadlocks, over-admission and leaked
//! charges.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, Cost, Counter, Key, Limit};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome};
use pacegate_testkit::SimulatedClock;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

const SCHEDULES: usize = 2_000;

fn store(max_keys: usize) -> Arc<MemoryStore> {
    // Few shards, so that keys share them and chains meet in either order.
    let options = MemoryOptions { max_keys, shards: 2, ..MemoryOptions::default() };
    Arc::new(MemoryStore::with_clock(options, Arc::new(SimulatedClock::default())))
}

fn limit(quota: u64) -> Limit {
    Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(3_600)).unwrap()
}

fn take(
    store: &MemoryStore,
    identifiers: &[&str],
    limit: &Limit,
    idempotency: Option<Idempotency<'_>>,
) -> bool {
    let counter = Counter::new("rule", "user", "");
    let charges: Vec<Charge<'_>> = identifiers
        .iter()
        .map(|identifier| Charge::new(Key::new(&counter, identifier, "/"), limit))
        .collect();
    let command = Command { action: Action::Take { idempotency }, charges: &charges };
    match store.apply_now(&command, None).unwrap() {
        Outcome::Decided(decision) => decision.allowed,
        other => panic!("{other:?}"),
    }
}

fn remaining(store: &MemoryStore, identifier: &str, limit: &Limit) -> u32 {
    let counter = Counter::new("rule", "user", "");
    let charges = [Charge::new(Key::new(&counter, identifier, "/"), limit)];
    let command = Command::peek(&charges);
    match store.apply_now(&command, None).unwrap() {
        Outcome::Decided(decision) => decision.remaining().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn chains_in_opposite_order_neither_deadlock_nor_leak() {
    shuttle::check_random(
        || {
            let store = store(100);
            let admitted = Arc::new(AtomicUsize::new(0));
            let chains: [[&'static str; 3]; 3] = [["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]];
            let threads: Vec<_> = chains
                .into_iter()
                .map(|chain| {
                    let (store, admitted) = (store.clone(), admitted.clone());
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let passed = take(&store, &chain, &limit(3), None);
                            admitted.fetch_add(usize::from(passed), Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(admitted.load(Ordering::SeqCst), 3);
            for identifier in ["a", "b", "c"] {
                assert_eq!(remaining(&store, identifier, &limit(3)), 0);
            }
        },
        SCHEDULES,
    );
}

#[test]
fn number_of_keys_stays_bounded_during_concurrent_inserts() {
    shuttle::check_random(
        || {
            let store = store(2);
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let store = store.clone();
                    thread::spawn(move || {
                        take(
                            &store,
                            &[&format!("own-{thread}"), &format!("second-{thread}")],
                            &limit(9),
                            None,
                        );
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(store.keys() <= 2, "{} keys", store.keys());
        },
        SCHEDULES,
    );
}

#[test]
fn concurrent_duplicate_is_charged_once() {
    shuttle::check_random(
        || {
            let store = store(100);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let store = store.clone();
                    thread::spawn(move || {
                        let idempotency = Idempotency {
                            caller: "c",
                            key: "k",
                            fingerprint: [7; 16],
                            home: None,
                            sender: None,
                        };
                        assert!(take(&store, &["u", "v"], &limit(5), Some(idempotency)));
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(remaining(&store, "u", &limit(5)), 4);
        },
        SCHEDULES,
    );
}

#[test]
fn expired_keys_are_dropped_during_takes_resets_and_refunds() {
    shuttle::check_random(
        || {
            let clock = Arc::new(SimulatedClock::default());
            let options = MemoryOptions { max_keys: 3, shards: 2, ..MemoryOptions::default() };
            let store = Arc::new(MemoryStore::with_clock(options, clock.clone()));
            for identifier in ["old-1", "old-2", "old-3"] {
                assert!(take(&store, &[identifier], &limit(2), None));
            }
            clock.advance(Duration::from_secs(7_200));
            let newcomers: Vec<_> = ["a", "b"]
                .into_iter()
                .map(|identifier| {
                    let store = store.clone();
                    thread::spawn(move || {
                        // The second take uses the fast path, because the first one created the
                        // key.
                        assert!(take(&store, &[identifier], &limit(2), None));
                        let (counter, limit) = (Counter::new("rule", "user", ""), limit(2));
                        let charge = Charge::new(Key::new(&counter, identifier, "/"), &limit);
                        if store.take_known(&charge).is_none() {
                            store.take(&charge, None).unwrap();
                        }
                    })
                })
                .collect();
            let meddler = {
                let store = store.clone();
                thread::spawn(move || {
                    let (counter, limit) = (Counter::new("rule", "user", ""), limit(2));
                    let charges = [Charge::new(Key::new(&counter, "c", "/"), &limit)];
                    for action in [Action::take(), Action::Refund, Action::Reset] {
                        store.apply_now(&Command { action, charges: &charges }, None).unwrap();
                    }
                })
            };
            for thread in newcomers.into_iter().chain([meddler]) {
                thread.join().unwrap();
            }
            assert!(store.keys() <= 3, "{} keys", store.keys());
            // A new key that did not fit at its first take was counted by the overflow counter.
            for identifier in ["a", "b"] {
                assert!(remaining(&store, identifier, &limit(2)) <= 1, "{identifier} was charged");
            }
        },
        SCHEDULES,
    );
}
