//! The suite on a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod suite;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pacegate::Timestamp;
use pacegate_catalog::{Catalog, DecisionRecord, Period, UsageFilter};
use pacegate_testkit::server::Postgres;
use sqlx::{Connection, PgConnection, Row, raw_sql};
use suite::TestDatabase;
use tokio::task::JoinSet;

/// One server shared by concurrent tests, with a database for each. A static server would never be
/// stopped.
static SERVER: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static DATABASES: AtomicUsize = AtomicUsize::new(0);

fn database() -> TestDatabase {
    let server = {
        // A start that fails must not fail the other tests.
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Postgres::start());
            *shared = Arc::downgrade(&server);
            server
        })
    };
    let name = format!("catalog_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    server.query(&format!("CREATE DATABASE {name} OWNER pacegate"));
    let url = format!("postgres://pacegate:secret@127.0.0.1:{}/{name}", server.port());
    TestDatabase::new(url, server)
}

catalog_suite!(database());

/// PostgreSQL rejects two concurrent `CREATE TABLE IF NOT EXISTS` for the same table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_migrations_wait_for_each_other() {
    let database = database();
    let mut holder = PgConnection::connect(&database.url).await.unwrap();
    raw_sql("BEGIN; CREATE TABLE pacegate_catalog_schema (version bigint PRIMARY KEY)")
        .execute(&mut holder)
        .await
        .unwrap();
    let mut starts = JoinSet::new();
    for _ in 0..8 {
        let url = database.url.clone();
        starts.spawn(async move { Catalog::open(&url).await.map(drop) });
    }
    let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waiting).await < 8 {
        tokio::task::yield_now().await;
    }
    raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    for start in starts.join_all().await {
        start.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_by_endpoint_use_the_index() {
    let database = database();
    let catalog = database.open().await;
    let decision =
        |number: usize| DecisionRecord { endpoint: format!("/{number}"), ..DecisionRecord::default() };
    let decisions: Vec<DecisionRecord> = (0..5_000).map(decision).collect();
    catalog.append_decisions(&decisions).await.unwrap();
    database.tamper("ANALYZE pacegate_decision_log").await;
    let plan = "SELECT number FROM pacegate_decision_log WHERE number < 9000 AND endpoint_key = 'a' ORDER BY number DESC LIMIT 5";
    let mut lines = String::new();
    let mut connection = PgConnection::connect(&database.url).await.unwrap();
    for row in
        sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN {plan}"))).fetch_all(&mut connection).await.unwrap()
    {
        lines.push_str(row.get(0));
    }
    assert!(lines.contains("pacegate_decision_log_by_endpoint"), "{lines}");
}

/// Blocked lists delay neither changes, lookups nor the health check of the catalog.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_lists_do_not_delay_other_statements() {
    let database = database();
    let catalog = database.open().await;
    let mut holder = PgConnection::connect(&database.url).await.unwrap();
    let lock = "BEGIN; LOCK TABLE pacegate_usage_rollups IN ACCESS EXCLUSIVE MODE";
    raw_sql(lock).execute(&mut holder).await.unwrap();
    let mut lists = JoinSet::new();
    for _ in 0..8 {
        let catalog = catalog.clone();
        lists.spawn(async move {
            catalog.usage(Period::Minute, UsageFilter::default(), Timestamp::default(), 10).await
        });
    }
    let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waiting).await < 2 {
        tokio::task::yield_now().await;
    }
    catalog.ping().await.unwrap();
    catalog.profile("u1", database.now()).await.unwrap();
    catalog.create_rule(&suite::actor(), &suite::rule("a", 1), None).await.unwrap();
    assert_eq!(database.number(waiting).await, 2, "at most two lists run concurrently");
    raw_sql("ROLLBACK").execute(&mut holder).await.unwrap();
    for list in lists.join_all().await {
        // A list that waited too long reports a timeout.
        if let Err(error) = list {
            assert!(error.is_unavailable(), "{error}");
        }
    }
}
