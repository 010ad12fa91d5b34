//! The test suite on a real Redis, with a separate server for each test because histories share
//! keys.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use pacegate_redis::{RedisOptions, RedisStore};
use pacegate_store::Store;
use pacegate_testkit::server::{RedisServer, Served};

async fn redis() -> Arc<dyn Store> {
    let server = RedisServer::start();
    let options = RedisOptions::new(server.url().parse().unwrap());
    Arc::new(Served::new(RedisStore::connect(options).await.unwrap(), server))
}

// 7,000 histories of 20 operations on average: more than 100,000 operations.
pacegate_testkit::store_suite!(redis(), histories = pacegate_testkit::effort(1_000, 8_000));
