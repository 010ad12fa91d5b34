//! The test suite that every store passes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use pacegate_memory::MemoryStore;
use pacegate_store::Store;
use pacegate_testkit::store_suite;

async fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

store_suite!(store(), histories = 10_000);
