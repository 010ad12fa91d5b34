//! How many checks a store on Redis answers, how soon, and what that costs the caller's process.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::calls::Calls;
use super::ceiling::{CONNECTIONS, Pipelines};
use super::port::{Callers, Port};
use super::server::Redis;
use super::{DEPTH, ROUNDS};
use crate::machine::processor_seconds;
use crate::stopwatch::{median, now, quantile};
use crate::table::{Table, grouped};

const WARM_UP: Duration = Duration::from_millis(200);
const CALLERS: [Callers; 4] =
    [Callers::Tasks(1), Callers::Tasks(64), Callers::Tasks(256), Callers::Threads(100)];

/// How fast the store is.
#[derive(Debug)]
pub struct Throughput {
    /// A row for the pipeline without a store, and one for each kind of caller and number of connections.
    pub table: Table,
    /// Of 256 in flight, over the pipeline of the same round: the median round, on one connection and on two.
    pub of_pipelined: [f64; 2],
    /// The median round's P95 of 64 in flight in microseconds, on one connection and on two.
    pub p95: [f64; 2],
    /// Checks per second of 256 in flight on one connection: the median round.
    pub on_one_connection: f64,
}

/// One round of one row.
#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    of_pipelined: f64,
    /// P50, P95 and P99; a pipeline has no latency of a single check.
    microseconds: Option<[f64; 3]>,
    /// Processor time of this process per check, in microseconds.
    client: f64,
    client_busy: f64,
    redis_busy: f64,
}

/// Measures every kind of caller, each for `duration` per round.
///
/// # Errors
/// When Redis or a store fails, or denies a check.
pub fn compare(
    redis: &mut Redis,
    runtime: &Runtime,
    calls: &[Calls],
    duration: Duration,
) -> Result<Throughput> {
    let token_bucket = calls.iter().find(|calls| calls.name == "token bucket").context("no token bucket")?;
    let mut pipelines = Pipelines::open(redis.port(), token_bucket)?;
    let ports = [1, 2].map(|connections| runtime.block_on(Port::open(redis.port(), connections)));
    let [one, two] = ports;
    let ports = [one?, two?];

    let mut pipelined = Vec::new();
    let mut rows = [(); CALLERS.len()].map(|()| [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        pipelines.run(WARM_UP)?;
        let round = measured(redis, || Ok((pipelines.run(duration)?, None)))?;
        let ceiling = round.rate;
        pipelined.push(Round { of_pipelined: 1.0, ..round });
        for (callers, rows) in CALLERS.into_iter().zip(&mut rows) {
            for (port, row) in ports.iter().zip(rows) {
                runtime.block_on(port.run(callers, WARM_UP))?;
                let round = measured(redis, || {
                    let nanoseconds = runtime.block_on(port.run(callers, duration))?;
                    let at = |fraction| f64::from(quantile(&nanoseconds, fraction)) / 1e3;
                    Ok((nanoseconds.len() as u64, Some([0.5, 0.95, 0.99].map(at))))
                })?;
                row.push(Round { of_pipelined: round.rate / ceiling, ..round });
            }
        }
    }

    let mut table = Table::new([
        "token bucket, admitted",
        "connections",
        "checks/s, best",
        "median",
        "of pipelined",
        "P50 µs",
        "P95 µs",
        "P99 µs",
        "client CPU µs per check",
        "client's core busy",
        "Redis' core busy",
    ]);
    table.row(row(&format!("pipelined {DEPTH} deep, no store"), CONNECTIONS, &pipelined));
    for (callers, rows) in CALLERS.into_iter().zip(&rows) {
        let name = match callers {
            Callers::Tasks(number) => format!("{number} in flight"),
            Callers::Threads(number) => format!("{number} blocking threads"),
        };
        for (connections, rounds) in (1..).zip(rows) {
            table.row(row(&name, connections, rounds));
        }
    }
    let [_, few, many, _] = &rows;
    let p95 =
        |rounds: &Vec<Round>| typical(rounds, |round| round.microseconds.map_or(f64::NAN, |all| all[1]));
    Ok(Throughput {
        table,
        of_pipelined: many.each_ref().map(|rounds| typical(rounds, |round| round.of_pipelined)),
        p95: few.each_ref().map(p95),
        on_one_connection: typical(&many[0], |round| round.rate),
    })
}

/// Runs something that answers a number of checks, and says what that took.
fn measured(redis: &mut Redis, run: impl FnOnce() -> Result<(u64, Option<[f64; 3]>)>) -> Result<Round> {
    let this = std::process::id();
    let (redis_before, client_before) = (redis.processor_microseconds()?, processor_seconds(this)?);
    let start = now();
    let (checks, microseconds) = run()?;
    let elapsed = (now() - start).as_secs_f64();
    let client = processor_seconds(this)? - client_before;
    let redis = (redis.processor_microseconds()? - redis_before) / 1e6;
    Ok(Round {
        rate: checks as f64 / elapsed,
        of_pipelined: f64::NAN,
        microseconds,
        client: client * 1e6 / checks as f64,
        client_busy: client / elapsed,
        redis_busy: redis / elapsed,
    })
}

fn typical(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure))
}

fn row(name: &str, connections: usize, rounds: &[Round]) -> Vec<String> {
    let share = |figure: fn(&Round) -> f64| format!("{:.0} %", 100.0 * typical(rounds, figure));
    let best = rounds.iter().map(|round| round.rate).fold(0.0, f64::max);
    let latency = |place: usize| {
        let known: Option<Vec<f64>> =
            rounds.iter().map(|round| round.microseconds.map(|all| all[place])).collect();
        known.map_or("–".into(), |known| format!("{:.0}", median(known)))
    };
    vec![
        name.into(),
        connections.to_string(),
        grouped(best as u64),
        grouped(typical(rounds, |round| round.rate) as u64),
        share(|round| round.of_pipelined),
        latency(0),
        latency(1),
        latency(2),
        format!("{:.1}", typical(rounds, |round| round.client)),
        share(|round| round.client_busy),
        share(|round| round.redis_busy),
    ]
}
