//! The cost of each kind of check in processor time, as Redis reports it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::calls::{Calls, HASH, STRING};
use super::server::Redis;
use super::wire::Connection;
use super::{DEPTH, turns};
use crate::stopwatch::{median, now};
use crate::table::Table;

/// Length of a turn, short enough that a disturbance of the machine affects all kinds.
const TURN: Duration = Duration::from_millis(50);

/// The cost of checks.
#[derive(Debug)]
pub struct Costs {
    /// One row per kind.
    pub table: Table,
    /// Cost of an admission by a token bucket, relative to the minimal script with a string.
    pub script_ratio: f64,
    /// Cost of a denial by a token bucket, relative to an admission.
    pub denial_ratio: f64,
}

/// Sends each kind for `duration` per round in short turns, pipelined over one connection.
///
/// # Errors
/// If Redis fails or returns an unexpected reply.
pub fn compare(redis: &mut Redis, calls: &[Calls], duration: Duration) -> Result<Costs> {
    let mut connection = Connection::open(redis.port())?;
    let batches: Vec<Vec<Vec<u8>>> = calls.iter().map(Calls::batches).collect();
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); calls.len()];
    for _ in 0..turns(duration, TURN) {
        for ((calls, batches), row) in calls.iter().zip(&batches).zip(&mut rows) {
            let before = redis.processor_microseconds()?;
            let answered = run(&mut connection, calls, batches)?;
            row.push((redis.processor_microseconds()? - before) / answered as f64);
        }
    }

    let row = |name: &str| {
        let place = calls.iter().position(|calls| calls.name == name);
        place.map(|place| rows[place].as_slice()).with_context(|| format!("{name} was not measured"))
    };
    let (string, hash) = (row(STRING)?, row(HASH)?);
    let mut table = Table::new([
        "Redis' processor time",
        "best µs per call",
        "median µs",
        "of minimal, string",
        "of minimal, hash",
    ]);
    for (calls, row) in calls.iter().zip(&rows) {
        let best = row.iter().copied().fold(f64::INFINITY, f64::min);
        let figures = [best, median(row.iter().copied()), ratio(row, string), ratio(row, hash)];
        table.row([calls.name.clone()].into_iter().chain(figures.map(|figure| format!("{figure:.2}"))));
    }
    let (admission, denial) = (row("token bucket")?, row("denial, token bucket")?);
    Ok(Costs { table, script_ratio: ratio(admission, string), denial_ratio: ratio(denial, admission) })
}

/// Returns the median ratio of the costs in adjacent turns.
fn ratio(row: &[f64], other: &[f64]) -> f64 {
    median(row.iter().zip(other).map(|(cost, other)| cost / other))
}

/// Sends batches for one turn, and returns the number of calls.
fn run(connection: &mut Connection, calls: &Calls, batches: &[Vec<u8>]) -> Result<u64> {
    let mut batches = batches.iter().cycle();
    let mut send = |connection: &mut Connection| connection.send(batches.next().context("no batches")?);
    let deadline = now() + TURN;
    let mut answered = 0;
    // The next batch is already queued when Redis has processed one. Otherwise it would sleep and
    // wake up for each batch, which is not a cost of the calls.
    send(connection)?;
    while now() < deadline {
        send(connection)?;
        answered += receive(connection, calls)?;
    }
    Ok(answered + receive(connection, calls)?)
}

/// Reads the replies to one batch, and returns their number.
pub(super) fn receive(connection: &mut Connection, calls: &Calls) -> Result<u64> {
    for _ in 0..DEPTH {
        let reply = connection.receive().with_context(|| calls.name.clone())?;
        ensure!(calls.is_expected(&reply), "{}: unexpected reply {reply:?}", calls.name);
    }
    Ok(DEPTH as u64)
}
