//! The behaviour suite that every store passes.

use tollgate_memory::MemoryStore;
use tollgate_testkit::store_suite;

async fn store() -> Box<MemoryStore> {
    Box::new(MemoryStore::default())
}

store_suite!(store(), histories = 10_000);
