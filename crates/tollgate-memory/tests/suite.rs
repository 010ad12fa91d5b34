//! The behaviour suite that every store passes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use tollgate_memory::MemoryStore;
use tollgate_store::Store;
use tollgate_testkit::store_suite;

async fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

store_suite!(store(), histories = 10_000);
