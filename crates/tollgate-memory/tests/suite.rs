//! The behaviour suite that every store passes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use tollgate_memory::MemoryStore;
use tollgate_testkit::store_suite;

async fn store() -> Box<MemoryStore> {
    Box::new(MemoryStore::default())
}

store_suite!(store(), histories = 10_000);
