//! Schema migrations and the removal of expired rows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use pacegate_core::{Algorithm, Cost, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use pacegate_testkit::server::{MariaDb, Postgres};

/// The operations that both databases offer.
trait Database {
    fn url(&self) -> String;
    fn query(&self, sql: &str) -> String;
}

impl Database for MariaDb {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn query(&self, sql: &str) -> String {
        Self::query(self, sql)
    }
}

impl Database for Postgres {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn query(&self, sql: &str) -> String {
        Self::query(self, sql)
    }
}

fn both() -> [Box<dyn Database>; 2] {
    [Box::new(MariaDb::start()), Box::new(Postgres::start())]
}

async fn connect(url: &str) -> Result<SqlStore, pacegate_store::StoreError> {
    SqlStore::connect(SqlOptions::new(url).unwrap()).await
}

async fn take(store: &SqlStore, identifier: &str) -> bool {
    let counter = Counter::new("rule", "user", "");
    let limit = Limit::try_new(Algorithm::FixedWindow, 1, Duration::from_secs(366 * 86_400)).unwrap();
    let charges = [Charge::new(Key::new(&counter, identifier, ""), &limit)];
    let command = Command::take(&charges);
    match store.apply(&command, None).await.unwrap() {
        Outcome::Decided(decision) => decision.allowed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_nodes_can_start_at_once() {
    for database in both() {
        let url = database.url();
        let nodes: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { connect(&url).await.map(drop) })
            })
            .collect();
        for node in nodes {
            node.await.unwrap().unwrap();
        }
        assert_eq!(database.query("SELECT version FROM pacegate_schema"), "1");
    }
}

#[tokio::test]
async fn interrupted_migration_is_completed_by_the_next_start() {
    for database in both() {
        drop(connect(&database.url()).await.unwrap());
        // As if the node had died between the step and its record; PostgreSQL undoes both, MySQL
        // neither.
        database.query("DELETE FROM pacegate_schema");
        if database.url().starts_with("postgres") {
            database.query("DROP TABLE pacegate_state");
        }
        let store = connect(&database.url()).await.unwrap();
        assert!(take(&store, "u").await);
        assert_eq!(database.query("SELECT version FROM pacegate_schema"), "1");
    }
}

#[tokio::test]
async fn newer_schema_is_rejected_and_not_modified() {
    for database in both() {
        drop(connect(&database.url()).await.unwrap());
        database.query("INSERT INTO pacegate_schema (version) VALUES (99)");
        let error = connect(&database.url()).await.unwrap_err();
        assert!(
            error.is_permanent() && error.to_string().contains("has version 99; this program supports"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn wrong_password_and_missing_database_are_permanent_errors() {
    for database in both() {
        for (right, wrong) in [(":secret@", ":wrong@"), ("/pacegate", "/nowhere")] {
            let error = connect(&database.url().replacen(right, wrong, 1)).await.unwrap_err();
            assert!(error.is_permanent(), "{error}");
            assert!(!error.to_string().contains("wrong@"), "{error}");
        }
    }
    assert!(SqlOptions::new("mysql://localhost:99999").is_err());
    assert!(SqlOptions::new("http://localhost").is_err());
}

#[tokio::test]
async fn expired_rows_are_swept() {
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        for number in 0..1_200 {
            assert!(take(&store, &format!("user-{number}")).await);
        }
        assert_eq!(store.sweep().await.unwrap(), 0, "no row is expired");
        database.query("UPDATE pacegate_state SET expires = 1 WHERE k <> 'c:user:user-7:rule:'");
        assert_eq!(store.sweep().await.unwrap(), 1_199, "expired rows are removed in several steps");
        assert_eq!(database.query("SELECT COUNT(*) FROM pacegate_state"), "1");
        assert!(!take(&store, "user-7").await, "the row that is still limiting stays");
        assert!(take(&store, "user-8").await);
    }
}

/// A row is removed once the minute in `expires` has passed by the database's clock, and not
/// before.
#[tokio::test]
async fn sweep_keeps_rows_until_their_minute_has_passed() {
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        let minute = || {
            let sql = if database.url().starts_with("postgres") {
                "SELECT floor(extract(epoch FROM now()) / 60)::integer"
            } else {
                "SELECT FLOOR(UNIX_TIMESTAMP(NOW()) / 60)"
            };
            database.query(sql).parse::<i64>().unwrap()
        };
        loop {
            let now = minute();
            let rows: Vec<String> =
                (-3..=3).map(|offset: i64| format!("('{}', '', {})", offset + 4, now + offset)).collect();
            database.query("DELETE FROM pacegate_state");
            let values = rows.join(", ");
            database.query(&format!("INSERT INTO pacegate_state (k, state, expires) VALUES {values}"));
            let removed = store.sweep().await.unwrap();
            // Otherwise the minute changed in between.
            if minute() == now {
                let kept = database.query("SELECT k FROM pacegate_state ORDER BY k");
                assert_eq!((removed, kept.as_str()), (3, "4\n5\n6\n7"));
                break;
            }
        }
    }
}

/// A row's minute is not before the end of its counter's window.
#[tokio::test]
async fn row_expires_after_its_counter_is_fresh_again() {
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        for seconds in [1, 59, 60, 61, 3_600] {
            let counter = Counter::new("rule", "user", "");
            let limit = Limit::try_new(Algorithm::TokenBucket, 1, Duration::from_secs(seconds)).unwrap();
            let identifier = seconds.to_string();
            let charges = [Charge::new(Key::new(&counter, &identifier, ""), &limit)];
            let command = Command::take(&charges);
            let outcome = store.apply(&command, None).await.unwrap();
            let Outcome::Decided(decision) = outcome else { panic!("{outcome:?}") };
            let fresh_at = decision.answers[0].reset_at.unwrap().as_micros();
            let sql = format!("SELECT expires FROM pacegate_state WHERE k = 'c:user:{seconds}:rule:'");
            let expires: u64 = database.query(&sql).parse().unwrap();
            assert!(expires * 60_000_000 >= fresh_at, "{seconds}: {expires} {fresh_at}");
            assert!(expires * 60_000_000 <= fresh_at + 60_000_000, "{seconds}: {expires} {fresh_at}");
        }
    }
}

#[tokio::test]
async fn denial_does_not_change_its_row() {
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        assert!(take(&store, "u").await);
        let before = database.query("SELECT k, state, expires FROM pacegate_state");
        for _ in 0..10 {
            assert!(!take(&store, "u").await);
        }
        assert_eq!(database.query("SELECT k, state, expires FROM pacegate_state"), before);
    }
}

/// Applies one command to counters of `rules`, each with a capacity of 1.
async fn apply(
    store: &SqlStore,
    action: Action<'_>,
    rules: &[&str],
    identifier: &str,
    cost: u32,
) -> Option<bool> {
    let counters: Vec<Counter> = rules.iter().map(|rule| Counter::new(rule, "user", "")).collect();
    let limit = Limit::try_new(Algorithm::FixedWindow, 1, Duration::from_secs(366 * 86_400)).unwrap();
    let cost = Cost::try_new(cost.into()).unwrap();
    let charges: Vec<Charge<'_>> = counters
        .iter()
        .map(|counter| Charge { cost, ..Charge::new(Key::new(counter, identifier, ""), &limit) })
        .collect();
    let command = Command { action, charges: &charges };
    match store.apply(&command, None).await.unwrap() {
        Outcome::Decided(decision) => Some(decision.allowed),
        _ => None,
    }
}

const ROWS: &str = "SELECT k, state, expires FROM pacegate_state ORDER BY k";

#[tokio::test]
async fn denied_take_peek_reset_and_refund_of_absent_keys_write_no_row() {
    let idempotency =
        |key| Some(Idempotency { caller: "caller", key, fingerprint: [7; 16], home: None, sender: None });
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        assert!(take(&store, "u").await);
        let before = database.query(ROWS);
        let written = |what: &str| assert_eq!(database.query(ROWS), before, "{what}");

        let denied = apply(&store, Action::Take { idempotency: idempotency("a") }, &["rule"], "u", 1).await;
        assert_eq!(denied, Some(false));
        written("denied take with an idempotency key");
        assert_eq!(apply(&store, Action::take(), &["rule"], "new", 2).await, Some(false));
        written("take of an absent key whose cost exceeds the capacity");
        let keyed = Action::Take { idempotency: idempotency("b") };
        assert_eq!(apply(&store, keyed, &["rule"], "new", 2).await, Some(false));
        written("the same with an idempotency key");
        for chain in [["another", "rule"], ["rule", "second"]] {
            assert_eq!(apply(&store, Action::take(), &chain, "u", 1).await, Some(false));
            written("take that one limit denies, with a second limit that has no row yet");
        }
        assert_eq!(apply(&store, Action::peek(), &["rule"], "new", 1).await, Some(true));
        let keyed = Action::Peek { idempotency: idempotency("c") };
        assert_eq!(apply(&store, keyed, &["rule", "second"], "u", 1).await, Some(false));
        written("peek");
        assert_eq!(apply(&store, Action::Reset, &["rule"], "new", 1).await, None);
        written("reset of an absent key");
        assert_eq!(apply(&store, Action::Refund, &["rule"], "new", 1).await, Some(true));
        written("refund of an absent key");
    }
}

#[tokio::test]
async fn one_batch_writes_the_rows_of_admitted_takes_only() {
    for database in both() {
        let store = connect(&database.url()).await.unwrap();
        let counter = Counter::new("rule", "user", "");
        let limit = Limit::try_new(Algorithm::FixedWindow, 1, Duration::from_secs(366 * 86_400)).unwrap();
        let names = ["a-peeked", "b-taken", "c-too-expensive", "d-taken", "b-taken"];
        let mut charges = names.map(|name| [Charge::new(Key::new(&counter, name, ""), &limit)]);
        charges[2][0].cost = Cost::try_new(2).unwrap();
        let actions = [Action::peek(), Action::take(), Action::take(), Action::take(), Action::take()];
        let commands: Vec<Command<'_>> = (0..names.len())
            .map(|index| Command { action: actions[index], charges: &charges[index] })
            .collect();
        let allowed: Vec<bool> = store
            .apply_batch(&commands, None)
            .await
            .into_iter()
            .map(|outcome| matches!(outcome, Ok(Outcome::Decided(decision)) if decision.allowed))
            .collect();
        assert_eq!(allowed, [true, true, false, true, false]);
        assert_eq!(
            database.query("SELECT k FROM pacegate_state ORDER BY k"),
            "c:user:b-taken:rule:\nc:user:d-taken:rule:"
        );
    }
}
