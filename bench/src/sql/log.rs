//! Compares two forms of a sliding log in a database: one row per key, as in the store, or one row
//! per admitted request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pacegate_core::{Algorithm, Cost, Counter, Evaluation, Key, Limit, Timestamp};
use pacegate_sql::{SqlOptions, SqlStore};
use pacegate_store::{Charge, Command, Outcome, Store};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::database::Database;
use super::log_rows::{BATCH, Rows};
use super::user;
use crate::stopwatch::now;
use crate::table::{Table, grouped};

/// Number of callers of the store, each with one check in flight.
pub const CALLERS: usize = 64;
const WINDOW: Duration = Duration::from_secs(60);
/// Warm-up: every key is visited, and requests that expired during the setup are deleted.
const WARM_UP: Duration = Duration::from_secs(3);
/// Coprime to the numbers of keys.
const KEY_STEP: usize = 389;

/// The initial contents.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Requests per minute.
    pub quota: u64,
    /// Number of keys.
    pub keys: usize,
    /// Number of requests per key that were admitted in the last minute.
    pub entries: u64,
}

/// The scenarios that are measured.
pub const SCENARIOS: [Scenario; 3] = [
    Scenario { quota: 100, keys: 1_000, entries: 100 },
    Scenario { quota: 10_000, keys: 1_000, entries: 1_000 },
    Scenario { quota: 10_000, keys: 100, entries: 8_000 },
];

/// Number of checks, and of admitted checks.
#[derive(Debug, Default)]
struct Tally {
    checks: AtomicU64,
    admitted: AtomicU64,
}

impl Tally {
    fn add(&self, checks: u64, admitted: u64) {
        self.checks.fetch_add(checks, Ordering::Relaxed);
        self.admitted.fetch_add(admitted, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 2] {
        [&self.checks, &self.admitted].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Measures both forms in every scenario, each for `duration`.
///
/// # Errors
/// If the database fails.
pub fn compare(
    database: &Database,
    runtime: &Runtime,
    duration: Duration,
    connections: usize,
) -> Result<Table> {
    let mut table = Table::new([
        "sliding log",
        "checks/s",
        "of them admitted/s",
        "bytes on disk per kept request",
        "bytes logged per check",
        "database cores busy",
    ]);
    for scenario in SCENARIOS {
        let Scenario { quota, keys, entries } = scenario;
        let name =
            format!("{} a minute, {} keys with {}", grouped(quota), grouped(keys as u64), grouped(entries));
        let dense = runtime.block_on(dense(database, scenario, connections))?;
        table.row(measure(
            database,
            runtime,
            dense,
            duration,
            format!("{name}: a row per key"),
            "pacegate_state",
        )?);
        let rows = runtime.block_on(rows(database, scenario, connections))?;
        table.row(measure(
            database,
            runtime,
            rows,
            duration,
            format!("{name}: a row per request"),
            "log_entry",
        )?);
    }
    Ok(table)
}

/// Running callers.
struct Work {
    tally: Arc<Tally>,
    tasks: JoinSet<Result<()>>,
    /// Number of stored requests at the start.
    kept: u64,
}

fn measure(
    database: &Database,
    runtime: &Runtime,
    mut work: Work,
    duration: Duration,
    name: String,
    table: &str,
) -> Result<Vec<String>> {
    let pause = |length: Duration, work: &mut Work| {
        runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(length) => Ok(()),
                ended = work.tasks.join_next() => {
                    ended.context("no callers")?.context("a caller died")??;
                    bail!("a caller ended")
                }
            }
        })
    };
    pause(WARM_UP, &mut work)?;
    let (before, logged, processor, start) =
        (work.tally.read(), database.logged_bytes()?, database.processor_seconds()?, now());
    pause(duration, &mut work)?;
    let (after, elapsed) = (work.tally.read(), (now() - start).as_secs_f64());
    let (logged, processor) = (database.logged_bytes()? - logged, database.processor_seconds()? - processor);
    runtime.block_on(work.tasks.shutdown());
    let (checks, admitted) = ((after[0] - before[0]) as f64, (after[1] - before[1]) as f64);
    // Initial requests expire at an even rate, and all new ones are still stored.
    let age = (WARM_UP.as_secs_f64() + elapsed) / WINDOW.as_secs_f64();
    let kept = work.kept as f64 * (1.0 - age).max(0.0) + after[1] as f64;
    Ok(vec![
        name,
        grouped((checks / elapsed) as u64),
        grouped((admitted / elapsed) as u64),
        format!("{:.0}", database.size_bytes(table)? as f64 / kept),
        grouped((logged as f64 / checks.max(1.0)) as u64),
        format!("{:.2}", processor / elapsed),
    ])
}

/// Callers of the store.
async fn dense(database: &Database, scenario: Scenario, connections: usize) -> Result<Work> {
    let Scenario { quota, keys, entries } = scenario;
    let mut options = SqlOptions::new(&database.url())?;
    options.connections = connections;
    let store = Arc::new(SqlStore::connect(options).await?);
    let limit = Limit::try_new(Algorithm::SlidingLog, quota, WINDOW)?;
    let users: Arc<Vec<String>> = Arc::new((0..keys).map(user).collect());
    let mut setup = Rows::connect(&database.url()).await?;
    setup.run("TRUNCATE TABLE pacegate_state").await?;
    for user in users.iter() {
        ask(&store, &limit, user).await?;
    }
    let state = log(&limit, entries, database.now_micros()?)?;
    let digits = pacegate_core::hexadecimal(&state);
    let literal = match database {
        Database::MariaDb(_) => format!("x'{digits}'"),
        Database::Postgres(_) => format!("'\\x{digits}'"),
    };
    setup.run(&format!("UPDATE pacegate_state SET state = {literal}")).await?;
    if let Database::Postgres(_) = database {
        setup.run("VACUUM FULL pacegate_state").await?;
    }
    let (tally, mut tasks) = (Arc::new(Tally::default()), JoinSet::new());
    for caller in 0..CALLERS {
        let (store, users, tally) = (store.clone(), users.clone(), tally.clone());
        tasks.spawn(async move {
            let mut turn = users.len() / CALLERS * caller;
            loop {
                turn += KEY_STEP;
                let admitted = ask(&store, &limit, &users[turn % users.len()]).await?;
                tally.add(1, u64::from(admitted));
            }
        });
    }
    Ok(Work { tally, tasks, kept: entries * keys as u64 })
}

async fn ask(store: &SqlStore, limit: &Limit, user: &str) -> Result<bool> {
    let counter = Counter::new("log", "user", "*");
    let charges = [Charge::new(Key::new(&counter, user, ""), limit)];
    match store.apply(&Command::take(&charges), None).await {
        Ok(Outcome::Decided(decision)) => Ok(decision.allowed),
        Ok(other) => bail!("not a decision: {other:?}"),
        Err(error) => Err(error).context("the store failed"),
    }
}

/// Returns a log of requests that are spread over the last window.
fn log(limit: &Limit, entries: u64, now_micros: u64) -> Result<Vec<u8>> {
    let step = u64::try_from(WINDOW.as_micros())? / (entries + 1);
    let mut state = None;
    for place in (1..=entries).rev() {
        // At random times, because PostgreSQL would compress regular ones.
        let early = mixed(place) % step;
        let at = Timestamp::from_micros(now_micros - step * place + early);
        let evaluation = Evaluation::new(limit, state.as_ref(), at, Cost::ONE);
        match &mut state {
            Some(state) => drop(evaluation.charge(state)),
            None => state = Some(evaluation.charge_fresh().1),
        }
    }
    Ok(state.context("an empty log")?.encode())
}

/// The hash function of SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Callers of the form with a row per request, in batches over the same number of connections.
async fn rows(database: &Database, scenario: Scenario, connections: usize) -> Result<Work> {
    let Scenario { quota, keys, entries } = scenario;
    let window = u64::try_from(WINDOW.as_micros())?;
    Rows::connect(&database.url()).await?.prepare(keys, entries, window).await?;
    let users: Arc<Vec<String>> = Arc::new((0..keys).map(user).collect());
    let (tally, mut tasks) = (Arc::new(Tally::default()), JoinSet::new());
    for number in 0..connections {
        let mut connection = Rows::connect(&database.url()).await?;
        let (users, tally) = (users.clone(), tally.clone());
        tasks.spawn(async move {
            let mut turn = users.len() / connections * number;
            loop {
                let mut batch = Vec::with_capacity(BATCH);
                while batch.len() < BATCH {
                    turn += KEY_STEP;
                    batch.push(users[turn % users.len()].as_str());
                }
                let admitted = connection.check(&batch, quota, window).await?;
                tally.add(BATCH as u64, admitted);
            }
        });
    }
    Ok(Work { tally, tasks, kept: entries * keys as u64 })
}
