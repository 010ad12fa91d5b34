//! The suite on a real PostgreSQL through a PgBouncer in transaction mode.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pacegate_catalog::Catalog;
use pacegate_testkit::server::{PgBouncer, Postgres};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row, raw_sql};
use suite::TestDatabase;

/// A setting that the catalog's driver requires.
const SETTINGS: &str = "ignore_startup_parameters = extra_float_digits";

/// One server shared by concurrent tests, with a database for each. A static server would never be
/// stopped.
static SERVER: Mutex<Weak<(PgBouncer, Postgres)>> = Mutex::new(Weak::new());
static DATABASES: AtomicUsize = AtomicUsize::new(0);

fn database() -> TestDatabase {
    let server = {
        // A start that fails must not fail the other tests.
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Postgres::start();
            // Fewer than the connections of a catalog, so that transactions move between server
            // processes.
            let server = Arc::new((PgBouncer::start_with(&server, "transaction", 3, SETTINGS), server));
            *shared = Arc::downgrade(&server);
            server
        })
    };
    let name = format!("catalog_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    server.1.query(&format!("CREATE DATABASE {name} OWNER pacegate"));
    let url = |port| format!("postgres://pacegate:secret@127.0.0.1:{port}/{name}");
    let pooled = format!("{}?pooling=transaction", url(server.0.port()));
    TestDatabase::new(url(server.1.port()), server.clone()).through(pooled)
}

catalog_suite!(database());

#[tokio::test]
async fn settings_do_not_reach_other_clients_of_the_pool() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start_with(&server, "transaction", 1, SETTINGS);
    let catalog = Catalog::open(&format!("{}?pooling=transaction", bouncer.url())).await.unwrap();
    catalog.create_rule(&suite::actor(), &suite::rule("a", 1), None).await.unwrap();
    catalog.rules().await.unwrap();
    catalog.ping().await.unwrap();
    let options: PgConnectOptions = bouncer.url().parse().unwrap();
    let mut other = PgConnection::connect_with(&options).await.unwrap();
    let changed = "SELECT string_agg(name, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session' \
         AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')";
    let row = raw_sql(changed).fetch_one(&mut other).await.unwrap();
    assert_eq!(row.try_get::<Option<String>, _>(0).unwrap(), None, "the catalog's settings do not leak");
    let prepared = raw_sql("SELECT name FROM pg_prepared_statements WHERE name <> ''");
    assert_eq!(prepared.fetch_all(&mut other).await.unwrap().len(), 0);
}

#[tokio::test]
async fn undeclared_transaction_pooling_is_rejected_at_startup() {
    let server = Postgres::start();
    for connections in [1, 2, 20] {
        let bouncer = PgBouncer::start_with(&server, "transaction", connections, SETTINGS);
        let error = Catalog::open(&bouncer.url()).await.unwrap_err();
        assert!(error.is_permanent() && error.to_string().contains("pooling=transaction"), "{error}");
        // Otherwise a later statement would fail with the same error, after some tables were
        // created.
        let tables = server.query("SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE 'pacegate%'");
        assert_eq!(tables, "0", "with {connections} connections");
    }
}

#[tokio::test]
async fn session_pooling_needs_no_parameter() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start_with(&server, "session", 20, SETTINGS);
    Catalog::open(&bouncer.url()).await.unwrap().ping().await.unwrap();
}

#[tokio::test]
async fn rejected_startup_parameter_names_pgbouncer() {
    let server = Postgres::start();
    let bouncer = PgBouncer::start(&server, "session", 20);
    let error = Catalog::open(&bouncer.url()).await.unwrap_err();
    assert!(error.is_permanent() && error.to_string().contains("ignore_startup_parameters"), "{error}");
}

#[tokio::test]
async fn unknown_pooling_mode_is_rejected() {
    let error = Catalog::open("postgres://u:secret@localhost/db?pooling=statement").await.unwrap_err();
    assert_eq!(error.to_string(), "pooling: expected `session` or `transaction`");
}
