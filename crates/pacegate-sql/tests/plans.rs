//! Query plans: a statement reads a few rows, whatever the size of the table.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints its results"
)]

use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Store};
use pacegate_testkit::server::{MariaDb, Postgres};
use tokio::time::{Instant, sleep};

const ROWS: usize = 50_000;
/// Number of keys in a transaction.
const BATCH: usize = 100;
/// Number of batches of each size.
const BATCHES: usize = 20;
const ENDED_WITHIN: Duration = Duration::from_secs(10);

async fn connect(server: &Postgres) -> SqlStore {
    SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap()
}

/// Takes for all keys in one call, from a limit that is soon exhausted.
async fn take(store: &SqlStore, numbers: impl Iterator<Item = usize>) {
    let counter = Counter::new("rule", "user", "");
    let limit = Limit::try_new(Algorithm::FixedWindow, 2, Duration::from_secs(366 * 86_400)).unwrap();
    let names: Vec<String> = numbers.map(|number| format!("user-{number}")).collect();
    let charges: Vec<_> =
        names.iter().map(|name| [Charge::new(Key::new(&counter, name, ""), &limit)]).collect();
    let commands: Vec<Command<'_>> = charges.iter().map(|charges| Command::take(charges)).collect();
    for outcome in store.apply_batch(&commands, None).await {
        outcome.unwrap();
    }
}

/// Number of sequential and index scans. Sessions report them at the latest when they end.
async fn scans(server: &Postgres) -> (u64, u64) {
    let others = "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let since = Instant::now();
    while server.query(others) != "0" {
        assert!(since.elapsed() < ENDED_WITHIN, "sessions did not end in time");
        sleep(Duration::from_millis(20)).await;
    }
    let row =
        server.query("SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'pacegate_state'");
    let (whole, index) = row.split_once('\t').unwrap();
    (whole.parse().unwrap(), index.parse().unwrap())
}

/// Runs batches of every size over known, exhausted and new keys. Returns the number of sequential
/// scans.
async fn whole_reads(server: &Postgres, rows: usize, new: usize) -> u64 {
    let (whole, index) = scans(server).await;
    let store = connect(server).await;
    for size in [1, 2, 10, BATCH] {
        for batch in 0..BATCHES {
            take(&store, (0..size).map(|number| (batch * 7_919 + number * 389) % rows)).await;
        }
        take(&store, (0..size).map(|number| new + size + number)).await;
    }
    drop(store);
    let (whole_after, index_after) = scans(server).await;
    let (whole, index) = (whole_after - whole, index_after - index);
    assert!(whole + index >= 4 * BATCHES as u64, "the statistics include the takes: {whole} {index}");
    whole
}

/// PostgreSQL finds rows by their key, whatever its statistics are: a sequential scan for a check
/// is ten times slower.
#[tokio::test]
async fn every_statement_uses_the_primary_key() {
    let server = Postgres::start();
    drop(connect(&server).await);
    let mut seen = Vec::new();
    for (rows, new) in [(500, 1_000_000), (ROWS, 2_000_000)] {
        server.query(&format!(
            "INSERT INTO pacegate_state SELECT 'c:user:user-' || n || ':rule:', '', 2000000000 \
             FROM generate_series(0, {rows} - 1) AS n ON CONFLICT DO NOTHING"
        ));
        for update in 0..10 {
            server.query(&format!("UPDATE pacegate_state SET expires = {update} + 2000000000"));
        }
        seen.push((rows, "before ANALYZE", whole_reads(&server, rows, new).await));
        server.query("ANALYZE pacegate_state");
        seen.push((rows, "after ANALYZE", whole_reads(&server, rows, new + 1_000).await));
    }
    assert!(seen.iter().all(|(_, _, reads)| *reads == 0), "sequential scans: {seen:?}");
    println!("PASS postgres-plans rows={ROWS} whole_reads=0");
}

/// Fills a table that has three expired rows; `numbers` is the database's syntax for a list of all
/// numbers `n`.
fn fill(query: impl Fn(&str) -> String, numbers: &str) {
    query(&format!(
        "INSERT INTO pacegate_state (k, state, expires) \
         SELECT CONCAT('c:user:user-', n, ':rule:'), '', CASE WHEN n % 20000 = 7 THEN 1 ELSE 2000000000 + n % 1000 END FROM {numbers}"
    ));
}

#[tokio::test]
async fn mariadb_sweep_reads_only_expired_rows() {
    let server = MariaDb::start();
    let store = SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap();
    fill(|sql| server.query(sql), &format!("(SELECT seq AS n FROM seq_1_to_{ROWS}) AS numbers"));
    let read = || {
        let all = ["Handler_read_next", "Handler_read_rnd_next"]
            .map(|name| server.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'")));
        all.iter().map(|row| row.split('\t').nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = read();
    assert_eq!(store.sweep().await.unwrap(), 3);
    let read = read() - before;
    assert!(read < 1_000, "{read} entries were read");
}

#[tokio::test]
async fn postgres_sweep_reads_only_expired_rows() {
    let server = Postgres::start();
    drop(connect(&server).await);
    fill(|sql| server.query(sql), &format!("generate_series(1, {ROWS}) AS n"));
    let read = async || {
        // Waits until all statistics are reported.
        scans(&server).await;
        let sums = "SELECT (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'pacegate_state') \
             + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'pacegate_state')";
        server.query(sums).parse::<u64>().unwrap()
    };
    let before = read().await;
    let store = connect(&server).await;
    assert_eq!(store.sweep().await.unwrap(), 3);
    drop(store);
    let read = read().await - before;
    assert!((3..1_000).contains(&read), "{read} entries were read");
}
