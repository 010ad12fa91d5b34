//! This version reads the rows that an earlier version wrote.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use pacegate_core::{Algorithm, ChainDecision, Cost, Counter, Fit, Key, Limit, Timestamp};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, Store};
use pacegate_testkit::server::{MariaDb, Postgres};

/// When the rows were written: 8 of 10 per minute were taken from each counter, and one more from
/// the fixed window under an idempotency key.
const WRITTEN_AT: Timestamp = Timestamp::from_micros(1_790_000_000_123_456);
/// Rows of version 0.1.0, before charges had their own costs, in hexadecimal.
const ROWS: [(&str, &str); 7] = [
    ("c:user:u:fixed_window:", "010301000a808ece1cf5f09c0e09"),
    ("c:user:u:gcra:", "010600000a808ece1c80d8f116c0849fd1edff9603"),
    ("c:user:u:leaky_bucket:", "010200000a808ece1c80d8f116c0849fd1edff9603"),
    ("c:user:u:sliding_counter:", "010500000a808ece1cf5f09c0e0800"),
    ("c:user:u:sliding_log:", "010400000a808ece1c01c0849fd1edff960308"),
    ("c:user:u:token_bucket:", "010100000a808ece1c80d8f116c0849fd1edff9603"),
    (
        "i:f0a712b897cc507a4aff513e362d39c4e9da64258f6f7c3132c47b9a757a3de9",
        "020707070707070707070707070707070766eccbfbfecc35b940c227dafe5b060003010001000a0000000100000000000000003a88dcfe5b06\
         00ffffffffffffffff0000000000000000",
    ),
];

async fn decide(
    store: &SqlStore,
    action: Action<'_>,
    algorithm: Algorithm,
    cost: u64,
    fit: Fit,
) -> ChainDecision {
    let counter = Counter::new(algorithm.name(), "user", "");
    let limit = Limit::try_new(algorithm, 10, Duration::from_secs(60)).unwrap();
    let charge = Charge::new(Key::new(&counter, "u", ""), &limit);
    let charges = [Charge { cost: Cost::try_new(cost).unwrap(), fit, ..charge }];
    match store.apply(&Command { action, charges: &charges }, Some(WRITTEN_AT)).await.unwrap() {
        Outcome::Decided(decision) => decision,
        other => panic!("{other:?}"),
    }
}

async fn reads_old_rows(url: &str, insert: impl Fn(&str, &str)) {
    let store = SqlStore::connect(SqlOptions::new(url).unwrap()).await.unwrap();
    for (key, digits) in ROWS {
        insert(key, digits);
    }
    let idempotency =
        Idempotency { caller: "caller", key: "key", fingerprint: [7; 16], home: None, sender: None };
    let take = Action::Take { idempotency: Some(idempotency) };
    let replayed = decide(&store, take, Algorithm::FixedWindow, 1, Fit::Whole).await;
    assert!(replayed.replayed && replayed.allowed);
    assert_eq!((replayed.remaining(), replayed.at), (Some(1), WRITTEN_AT));
    for algorithm in Algorithm::ALL {
        let used = if algorithm == Algorithm::FixedWindow { 9 } else { 8 };
        let left = decide(&store, Action::peek(), algorithm, 1, Fit::Whole).await.remaining();
        assert_eq!(left, Some(10 - used), "{algorithm}");
        assert!(!decide(&store, Action::take(), algorithm, 3, Fit::Whole).await.allowed, "{algorithm}");
        assert!(decide(&store, Action::take(), algorithm, 1, Fit::Whole).await.allowed, "{algorithm}");
        // Debt has the same stored form.
        let forced = decide(&store, Action::take(), algorithm, 30, Fit::Forced).await;
        assert_eq!(forced.answers[0].uncharged, 30 - (20 - used - 1), "{algorithm}");
    }
}

#[tokio::test]
async fn rows_of_an_earlier_version_count_on_postgres() {
    let server = Postgres::start();
    let insert = |key: &str, digits: &str| {
        let row = format!("'{key}', decode('{digits}', 'hex'), 2147483647");
        server.query(&format!("INSERT INTO pacegate_state (k, state, expires) VALUES ({row})"));
    };
    reads_old_rows(&server.url(), insert).await;
}

#[tokio::test]
async fn rows_of_an_earlier_version_count_on_mariadb() {
    let server = MariaDb::start();
    let insert = |key: &str, digits: &str| {
        let row = format!("'{key}', unhex('{digits}'), 2147483647");
        server.query(&format!("INSERT INTO pacegate_state (k, state, expires) VALUES ({row})"));
    };
    reads_old_rows(&server.url(), insert).await;
}
