//! What databases read for a statement: a few rows, however many there are.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

use std::time::Duration;

use pacegate_core::{Algorithm, Counter, Key, Limit};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Store};
use pacegate_testkit::server::{MariaDb, Postgres};
use tokio::time::{Instant, sleep};

const ROWS: usize = 50_000;
/// As many as share a transaction.
const BATCH: usize = 100;
/// Of each size.
const BATCHES: usize = 20;
const ENDED_WITHIN: Duration = Duration::from_secs(10);

async fn connect(server: &Postgres) -> SqlStore {
    SqlStore::connect(SqlOptions::new(&server.url()).unwrap()).await.unwrap()
}

/// Takes for all keys in one call, of a limit that is soon used up.
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

/// How often the table was read as a whole, and through an index. Sessions report that at the latest when they end.
async fn scans(server: &Postgres) -> (u64, u64) {
    let others = "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let since = Instant::now();
    while server.query(others) != "0" {
        assert!(since.elapsed() < ENDED_WITHIN, "sessions do not end");
        sleep(Duration::from_millis(20)).await;
    }
    let row =
        server.query("SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'pacegate_state'");
    let (whole, index) = row.split_once('\t').unwrap();
    (whole.parse().unwrap(), index.parse().unwrap())
}

/// Runs batches of every size over known, exhausted and new keys; then says how often the whole table was read for them.
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
    assert!(whole + index >= 4 * BATCHES as u64, "the takes show: {whole} {index}");
    whole
}

/// PostgreSQL reaches rows by their key, whatever its statistics say: one that reads the whole table for a check is ten times slower.
#[tokio::test]
async fn every_statement_goes_through_the_primary_key() {
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
    assert!(seen.iter().all(|(_, _, reads)| *reads == 0), "the whole table was read: {seen:?}");
    println!("PASS postgres-plans rows={ROWS} whole_reads=0");
}

/// Fills a table in which three rows are not needed any more; `numbers` is what the database calls a list of all numbers `n`.
fn fill(query: impl Fn(&str) -> String, numbers: &str) {
    query(&format!(
        "INSERT INTO pacegate_state (k, state, expires) \
         SELECT CONCAT('c:user:user-', n, ':rule:'), '', CASE WHEN n % 20000 = 7 THEN 1 ELSE 2000000000 + n % 1000 END FROM {numbers}"
    ));
}

#[tokio::test]
async fn a_sweep_of_mariadb_reads_what_it_removes() {
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
async fn a_sweep_of_postgres_reads_what_it_removes() {
    let server = Postgres::start();
    drop(connect(&server).await);
    fill(|sql| server.query(sql), &format!("generate_series(1, {ROWS}) AS n"));
    let read = async || {
        // Waits until all is reported.
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
