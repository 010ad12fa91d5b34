//! A flood of new keys. In a separate file, because it measures the memory of the whole process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{Charge, Command, Outcome};
use pacegate_testkit::SimulatedClock;

fn allowed(store: &MemoryStore, counter: &Counter, limit: &Limit, identifier: &str) -> bool {
    let charges = [Charge::new(Key::new(counter, identifier, "/"), limit)];
    let command = Command::take(&charges);
    match store.apply_now(&command, None).unwrap() {
        Outcome::Decided(decision) => decision.allowed,
        other => panic!("{other:?}"),
    }
}

/// The resident memory, as the operating system reports it.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

#[test]
fn flood_of_new_keys_evicts_no_active_limit_and_memory_stays_flat() {
    let max_keys = 1_000_000;
    let options = MemoryOptions { max_keys, ..MemoryOptions::default() };
    let store = MemoryStore::with_clock(options, Arc::new(SimulatedClock::default()));
    let counter = Counter::new("flood", "user", "");
    let limit = Limit::try_new(Algorithm::TokenBucket, 1, Duration::from_secs(3_600)).unwrap();
    let before_any = resident_bytes();
    for victim in 0..1_000 {
        assert!(allowed(&store, &counter, &limit, &format!("victim-{victim}")));
    }
    for key in 0..max_keys {
        allowed(&store, &counter, &limit, &format!("flood-{key}"));
    }
    let at_the_cap = resident_bytes();
    let mut admitted = 0;
    for key in max_keys..5 * max_keys {
        admitted += usize::from(allowed(&store, &counter, &limit, &format!("flood-{key}")));
    }
    assert!(admitted <= 1, "the overflow counter allows one per hour, {admitted} were admitted");
    assert!(store.keys() <= max_keys, "{} keys", store.keys());
    let grown = resident_bytes().saturating_sub(at_the_cap);
    assert!(grown < 4 << 20, "memory grew by {grown} bytes after four million further keys");
    let per_key = (at_the_cap - before_any) / max_keys;
    println!("bytes per key at one million keys: {per_key}");
    let still_limited =
        (0..1_000).filter(|victim| !allowed(&store, &counter, &limit, &format!("victim-{victim}"))).count();
    assert_eq!(still_limited, 1_000);
}
