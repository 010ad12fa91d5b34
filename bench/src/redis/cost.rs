//! What each kind of check costs Redis: its own processor time, by its own account.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::calls::{Calls, HASH, STRING};
use super::server::Redis;
use super::wire::Connection;
use super::{DEPTH, ROUNDS};
use crate::stopwatch::{median, now};
use crate::table::Table;

/// Before each measurement; longer than the window of the sliding log, which is then as long as it stays.
const WARM_UP: Duration = Duration::from_millis(300);

/// A round is cut into so many, so that the best one finds the machine undisturbed.
const PARTS: u32 = 4;

/// What the checks cost.
#[derive(Debug)]
pub struct Costs {
    /// A row for each kind.
    pub table: Table,
    /// An admission by a token bucket over the minimal script with a string, the best rounds.
    pub script_ratio: f64,
    /// A denial by a token bucket over an admission by one, the best rounds.
    pub denial_ratio: f64,
}

/// Sends each kind for `duration` per round, pipelined over one connection; the kinds take turns four times a round.
///
/// # Errors
/// When Redis fails or answers otherwise than it should.
pub fn compare(redis: &mut Redis, calls: &[Calls], duration: Duration) -> Result<Costs> {
    let mut connection = Connection::open(redis.port())?;
    let batches: Vec<Vec<Vec<u8>>> = calls.iter().map(Calls::batches).collect();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); calls.len()];
    for _ in 0..ROUNDS * PARTS as usize {
        for ((calls, batches), rounds) in calls.iter().zip(&batches).zip(&mut rounds) {
            run(&mut connection, calls, batches, WARM_UP)?;
            let before = redis.processor_microseconds()?;
            let answered = run(&mut connection, calls, batches, duration / PARTS)?;
            rounds.push((redis.processor_microseconds()? - before) / answered as f64);
        }
    }

    let best = |name: &str| {
        let place = calls.iter().position(|calls| calls.name == name);
        place.map(|place| lowest(&rounds[place])).with_context(|| format!("{name} was not measured"))
    };
    let (string, hash, admission) = (best(STRING)?, best(HASH)?, best("token bucket")?);
    let mut table = Table::new([
        "Redis' processor time",
        "best µs per call",
        "median µs",
        "best / minimal, string",
        "best / minimal, hash",
    ]);
    for (calls, rounds) in calls.iter().zip(&rounds) {
        let best = lowest(rounds);
        let figures = [best, median(rounds.iter().copied()), best / string, best / hash];
        table.row([calls.name.clone()].into_iter().chain(figures.map(|figure| format!("{figure:.2}"))));
    }
    let denial = best("denial, token bucket")?;
    Ok(Costs { table, script_ratio: admission / string, denial_ratio: denial / admission })
}

/// Sends batch after batch, each when the one before is answered, and says how many calls that were.
fn run(connection: &mut Connection, calls: &Calls, batches: &[Vec<u8>], duration: Duration) -> Result<u64> {
    let deadline = now() + duration;
    let mut answered = 0;
    let mut batches = batches.iter().cycle();
    let mut send = |connection: &mut Connection| connection.send(batches.next().context("no batches")?);
    // Redis finds the next batch when it has answered one: falling asleep and waking up would be most of what a cheap command costs.
    send(connection)?;
    while now() < deadline {
        send(connection)?;
        answered += receive(connection, calls)?;
    }
    answered += receive(connection, calls)?;
    ensure!(answered > 0, "nothing was answered");
    Ok(answered)
}

/// Reads the answers to one batch.
pub(super) fn receive(connection: &mut Connection, calls: &Calls) -> Result<u64> {
    for _ in 0..DEPTH {
        let reply = connection.receive().with_context(|| calls.name.clone())?;
        ensure!(calls.is_expected(&reply), "{}: unexpected reply {reply:?}", calls.name);
    }
    Ok(DEPTH as u64)
}

fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
