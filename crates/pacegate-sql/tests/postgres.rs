//! The behaviour suite on a real PostgreSQL. Each test has its own server, because histories of
//! different tests share keys.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::Store;
use pacegate_testkit::server::{Postgres, Served};

async fn database() -> Arc<dyn Store> {
    let server = Postgres::start();
    let store = SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap();
    Arc::new(Served::new(store, server))
}

// 1,400 histories of 20 operations on average: more than 20,000 operations.
pacegate_testkit::store_suite!(database(), histories = pacegate_testkit::effort(200, 2_000));
