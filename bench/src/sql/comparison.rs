//! Measures all rows of the table of one database, in rounds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use pacegate_sql::{SqlOptions, SqlStore};
use tokio::runtime::Runtime;

use super::caller::{Caller, Check};
use super::database::Database;
use super::naive::Naive;
use super::turn::Turn;
use super::{KEYS, NAIVE_CONNECTIONS, ROUNDS, user};
use crate::stopwatch::median;
use crate::table::{Table, grouped};

/// Both tables have the same header.
const HEAD: [&str; 11] = [
    "one token per check",
    "checks/s, best",
    "median",
    "× naive",
    "P50 µs",
    "P95 µs",
    "P99 µs",
    "checks per transaction",
    "client cores busy",
    "database cores busy",
    "failed",
];

/// The results of a database: medians of all rounds.
#[derive(Debug)]
pub struct Comparison {
    /// One row per kind of caller.
    pub table: Table,
    /// Reasons of failed checks.
    pub failures: Vec<String>,
    /// Checks per second of 256 callers over all keys.
    pub many: f64,
    /// The same of the best round.
    pub many_best: f64,
    /// Checks per second of 256 callers on one key.
    pub hot: f64,
    /// Checks per second with one transaction per check, over all keys.
    pub naive: f64,
    /// P50 and P95 of a single caller in microseconds, with one transaction per check.
    pub naive_alone: [f64; 2],
    /// P50 and P95 of a single caller in microseconds, through the store.
    pub alone: [f64; 2],
}

/// One row of the table.
struct Row {
    name: String,
    users: Arc<Vec<String>>,
    callers: Vec<Caller>,
    turns: Vec<Turn>,
}

impl Row {
    fn typical(&self, figure: impl Fn(&Turn) -> f64) -> f64 {
        median(self.turns.iter().map(figure))
    }

    fn rate(&self) -> f64 {
        self.typical(|turn| turn.rate)
    }

    fn best(&self) -> f64 {
        self.turns.iter().map(|turn| turn.rate).fold(0.0, f64::max)
    }

    fn latency(&self, place: usize) -> f64 {
        self.typical(|turn| turn.microseconds[place])
    }

    fn cells(&self, naive: f64) -> Vec<String> {
        let whole = |figure: f64| grouped(figure.round() as u64);
        vec![
            self.name.clone(),
            whole(self.best()),
            whole(self.rate()),
            format!("{:.2}", self.rate() / naive),
            whole(self.latency(0)),
            whole(self.latency(1)),
            whole(self.latency(2)),
            format!("{:.1}", self.typical(|turn| turn.batch)),
            format!("{:.2}", self.typical(|turn| turn.client_cores)),
            format!("{:.2}", self.typical(|turn| turn.database_cores)),
            self.turns.iter().map(|turn| turn.failed).sum::<usize>().to_string(),
        ]
    }
}

/// Measures every row for `duration` in each round.
///
/// # Errors
/// If the database fails, or a decision is wrong.
pub fn compare(
    database: &Database,
    runtime: &Runtime,
    duration: Duration,
    connections: usize,
) -> Result<Comparison> {
    let mut rows = runtime.block_on(rows(&database.url(), connections))?;
    for _ in 0..ROUNDS {
        for row in &mut rows {
            row.turns.push(Turn::measure(database, runtime, &mut row.callers, &row.users, duration)?);
        }
    }
    let [naive, _, naive_alone, alone, _, many, hot, _] = &rows;
    let mut table = Table::new(HEAD);
    for row in &rows {
        table.row(row.cells(naive.rate()));
    }
    let failures = rows.iter().flat_map(|row| {
        let reasons = row.turns.iter().filter_map(|turn| turn.failure.as_ref());
        reasons.map(|reason| format!("{}: {reason}", row.name))
    });
    Ok(Comparison {
        table,
        failures: failures.collect(),
        many: many.rate(),
        many_best: many.best(),
        hot: hot.rate(),
        naive: naive.rate(),
        naive_alone: [naive_alone.latency(0), naive_alone.latency(1)],
        alone: [alone.latency(0), alone.latency(1)],
    })
}

/// Returns the rows with their callers, after the setup.
async fn rows(url: &str, connections: usize) -> Result<[Row; 8]> {
    Naive::connect(url).await?.prepare().await?;
    let mut options = SqlOptions::new(url)?;
    options.connections = connections;
    let store = Arc::new(SqlStore::connect(options).await?);
    let plenty = Arc::new(Check::admitted(&store, "plenty")?);
    let denied = Arc::new(Check::denied(&store, "denied")?);
    plenty.fill().await?;
    denied.fill().await?;

    let all: Arc<Vec<String>> = Arc::new((0..KEYS).map(user).collect());
    let hot = Arc::new(vec![user(0)]);
    let row = |name: String, users: &Arc<Vec<String>>, callers| {
        let name =
            format!("{name}, {}", if users.len() == 1 { "one key".into() } else { format!("{KEYS} keys") });
        Row { name, users: users.clone(), callers, turns: Vec::new() }
    };
    let through = |number: usize, check: &Arc<Check>| -> Vec<Caller> {
        std::iter::repeat_with(|| Caller::Store(check.clone())).take(number).collect()
    };
    let naive = format!("naive, {NAIVE_CONNECTIONS} connections");
    Ok([
        row(naive.clone(), &all, naives(url, NAIVE_CONNECTIONS).await?),
        row(naive, &hot, naives(url, NAIVE_CONNECTIONS).await?),
        row("naive, 1 connection".into(), &all, naives(url, 1).await?),
        row("store, 1 caller".into(), &all, through(1, &plenty)),
        row("store, 32 callers".into(), &all, through(32, &plenty)),
        row("store, 256 callers".into(), &all, through(256, &plenty)),
        row("store, 256 callers".into(), &hot, through(256, &plenty)),
        row("store, 256 callers, denied".into(), &all, through(256, &denied)),
    ])
}

async fn naives(url: &str, number: usize) -> Result<Vec<Caller>> {
    let mut callers = Vec::new();
    for _ in 0..number {
        callers.push(Caller::Naive(Naive::connect(url).await?));
    }
    Ok(callers)
}
