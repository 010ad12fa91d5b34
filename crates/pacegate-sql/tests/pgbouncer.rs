//! The store through PgBouncer with its default settings.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Outcome, Store, StoreError};
use pacegate_testkit::server::{PgBouncer, Postgres, Served};
use sqlx::{Connection, PgConnection, Row, raw_sql};
use tokio::task::JoinSet;

/// Fewer than the connections of a store, so that transactions move between server processes.
const POOL: u16 = 2;

async fn connect(url: &str) -> Result<SqlStore, StoreError> {
    SqlStore::connect(SqlOptions::new(url).unwrap()).await
}

async fn pooled() -> Arc<dyn Store> {
    let server = Postgres::start();
    let bouncer = PgBouncer::start(&server, "transaction", POOL);
    let store = connect(&format!("{}?pooling=transaction", bouncer.url())).await.unwrap();
    Arc::new(Served::new(store, (bouncer, server)))
}

pacegate_testkit::store_suite!(pooled(), histories = pacegate_testkit::effort(20, 500));

async fn take(store: &SqlStore, identifier: &str) -> Result<bool, StoreError> {
    let counter = Counter::new("rule", "user", "");
    let limit = Limit::try_new(Algorithm::FixedWindow, 50, Duration::from_secs(366 * 86_400)).unwrap();
    let charges = [Charge::new(Key::new(&counter, identifier, ""), &limit)];
    let command = Command::take(&charges);
    match store.apply(&command, None).await? {
        Outcome::Decided(decision) => Ok(decision.allowed),
        other => panic!("{other:?}"),
    }
}

/// Two nodes share the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_through_a_transaction_pool_are_exact() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start(&server, "transaction", POOL);
    let url = format!("{}?pooling=transaction", bouncer.url());
    let nodes = [Arc::new(connect(&url).await.unwrap()), Arc::new(connect(&url).await.unwrap())];
    let mut running = JoinSet::new();
    for task in 0..8 {
        let node = nodes[task % 2].clone();
        running.spawn(async move {
            let mut admitted = 0;
            for number in 0..40 {
                admitted += u32::from(take(&node, &format!("user-{}", number % 4)).await.unwrap());
            }
            admitted
        });
    }
    let admitted: u32 = running.join_all().await.iter().sum();
    assert_eq!(admitted, 4 * 50, "each of four users is admitted 50 of 80 times");
}

#[tokio::test]
async fn settings_do_not_reach_other_clients_of_the_pool() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start(&server, "transaction", 1);
    let store = connect(&format!("{}?pooling=transaction", bouncer.url())).await.unwrap();
    for number in 0..3 {
        assert!(take(&store, &format!("user-{number}")).await.unwrap());
    }
    store.sweep().await.unwrap();
    let options: sqlx::postgres::PgConnectOptions = bouncer.url().parse().unwrap();
    let mut other = PgConnection::connect_with(&options.extra_float_digits(None)).await.unwrap();
    let changed = "SELECT string_agg(name, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session' \
         AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')";
    let row = raw_sql(changed).fetch_one(&mut other).await.unwrap();
    assert_eq!(row.try_get::<Option<String>, _>(0).unwrap(), None, "the store's settings do not leak");
    // Longer than the store's statement timeout.
    raw_sql("SELECT pg_sleep(0.6)").execute(&mut other).await.unwrap();
    let prepared = raw_sql("SELECT name FROM pg_prepared_statements WHERE name <> ''");
    assert_eq!(prepared.fetch_all(&mut other).await.unwrap().len(), 0);
}

#[tokio::test]
async fn undeclared_transaction_pooling_is_rejected_at_startup() {
    let server = Postgres::start();
    for connections in [1, 2, 20] {
        let bouncer = PgBouncer::start(&server, "transaction", connections);
        let error = connect(&bouncer.url()).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("pooling=transaction"), "{error}");
    }
}

#[tokio::test]
async fn session_pooling_needs_no_parameter() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start(&server, "session", 20);
    for mode in ["", "?pooling=session", "?pooling=transaction"] {
        let store = connect(&format!("{}{mode}", bouncer.url())).await.unwrap();
        for _ in 0..3 {
            assert!(take(&store, "u").await.unwrap());
        }
    }
}

#[test]
fn unknown_pooling_mode_is_rejected() {
    let error = SqlOptions::new("postgres://u:secret@localhost/db?pooling=statement").unwrap_err();
    assert_eq!(error.to_string(), "pooling: expected `session` or `transaction`");
}
