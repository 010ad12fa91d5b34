//! Throughput and latency of a store on Redis, and the cost in the calling process.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

use super::calls::Calls;
use super::ceiling::{CONNECTIONS, Pipelines};
use super::port::{Callers, Port};
use super::server::Redis;
use super::{DEPTH, turns};
use crate::stopwatch::{median, now, quantile};
use crate::table::{Table, grouped};

const WARM_UP: Duration = Duration::from_millis(100);
/// Length of the measurement of the pipeline before each turn of another row.
const CEILING_TURN: Duration = Duration::from_millis(200);
/// Length of a turn of a row.
const TURN: Duration = Duration::from_millis(500);
const CALLERS: [Callers; 4] =
    [Callers::Tasks(1), Callers::Tasks(64), Callers::Tasks(256), Callers::Threads(100)];

/// The results of a store.
#[derive(Debug)]
pub struct Throughput {
    /// A row for the pipeline without a store, and one per kind of caller and number of
    /// connections.
    pub table: Table,
    /// Throughput with 256 in flight, relative to the preceding pipeline: the median turn, on one
    /// connection and on two.
    pub of_pipelined: [f64; 2],
    /// The median turn's P95 of 64 in flight in microseconds, on one connection and on two.
    pub p95: [f64; 2],
    /// The same, of the best turn.
    pub p95_best: [f64; 2],
    /// Checks per second of 256 in flight on one connection: the median turn.
    pub on_one_connection: f64,
}

/// One turn of one row.
#[derive(Clone, Copy, Debug)]
struct Turn {
    rate: f64,
    of_pipelined: f64,
    /// P50, P95 and P99. `None` for a pipeline, which has no latency of single checks.
    microseconds: Option<[f64; 3]>,
    /// Processor time of this process per check, in microseconds.
    client: f64,
    client_busy: f64,
    redis_busy: f64,
}

/// Measures every kind of caller, each for `duration` per round in short turns.
///
/// # Errors
/// If Redis or a store fails, or denies a check.
pub fn compare(
    redis: &mut Redis,
    runtime: &Runtime,
    calls: &[Calls],
    duration: Duration,
) -> Result<Throughput> {
    let token_bucket = calls.iter().find(|calls| calls.name == "token bucket").context("no token bucket")?;
    let mut pipelines = Pipelines::open(redis.port(), token_bucket)?;
    let port = redis.port();
    let ports = [runtime.block_on(Port::open(port, 1))?, runtime.block_on(Port::open(port, 2))?];

    let mut pipelined = Vec::new();
    let mut rows = [(); CALLERS.len()].map(|()| [Vec::new(), Vec::new()]);
    for _ in 0..turns(duration, TURN) {
        for (callers, rows) in CALLERS.into_iter().zip(&mut rows) {
            for (port, row) in ports.iter().zip(rows) {
                // Measured right before, because the speed of the machine changes within seconds.
                let ceiling = measured(redis, || pipelines.run(CEILING_TURN))?;
                pipelined.push(Turn { of_pipelined: 1.0, ..ceiling });
                runtime.block_on(port.run(callers, WARM_UP))?;
                let mut nanoseconds = Vec::new();
                let turn = measured(redis, || {
                    nanoseconds = runtime.block_on(port.run(callers, TURN))?;
                    Ok(nanoseconds.len() as u64)
                })?;
                nanoseconds.sort_unstable();
                let at = |fraction| f64::from(quantile(&nanoseconds, fraction)) / 1e3;
                let microseconds = Some([0.5, 0.95, 0.99].map(at));
                row.push(Turn { of_pipelined: turn.rate / ceiling.rate, microseconds, ..turn });
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
        for (connections, turns) in (1..).zip(rows) {
            table.row(row(&name, connections, turns));
        }
    }
    let [_, few, many, _] = &rows;
    let p95 = |turn: &Turn| turn.microseconds.map_or(f64::NAN, |all| all[1]);
    Ok(Throughput {
        table,
        of_pipelined: many.each_ref().map(|turns| typical(turns, |turn| turn.of_pipelined)),
        p95: few.each_ref().map(|turns| typical(turns, p95)),
        p95_best: few.each_ref().map(|turns| turns.iter().map(p95).fold(f64::INFINITY, f64::min)),
        on_one_connection: typical(&many[0], |turn| turn.rate),
    })
}

/// Runs a number of checks, and returns the time and processor time.
fn measured(redis: &mut Redis, run: impl FnOnce() -> Result<u64>) -> Result<Turn> {
    let (redis_before, client_before) = (redis.processor_microseconds()?, processor_microseconds());
    let start = now();
    let checks = run()?;
    let elapsed = (now() - start).as_secs_f64();
    let client = processor_microseconds() - client_before;
    let redis = redis.processor_microseconds()? - redis_before;
    Ok(Turn {
        rate: checks as f64 / elapsed,
        of_pipelined: f64::NAN,
        microseconds: None,
        client: client / checks as f64,
        client_busy: client / elapsed / 1e6,
        redis_busy: redis / elapsed / 1e6,
    })
}

/// Returns the processor time of this process so far. The ticks of `/proc` are too coarse for a
/// turn.
fn processor_microseconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn typical(turns: &[Turn], figure: impl Fn(&Turn) -> f64) -> f64 {
    median(turns.iter().map(figure))
}

fn row(name: &str, connections: usize, turns: &[Turn]) -> Vec<String> {
    let share = |figure: fn(&Turn) -> f64| format!("{:.0} %", 100.0 * typical(turns, figure));
    let best = turns.iter().map(|turn| turn.rate).fold(0.0, f64::max);
    let latency = |place: usize| {
        let known: Option<Vec<f64>> =
            turns.iter().map(|turn| turn.microseconds.map(|all| all[place])).collect();
        known.map_or("–".into(), |known| format!("{:.0}", median(known)))
    };
    vec![
        name.into(),
        connections.to_string(),
        grouped(best as u64),
        grouped(typical(turns, |turn| turn.rate) as u64),
        share(|turn| turn.of_pipelined),
        latency(0),
        latency(1),
        latency(2),
        format!("{:.1}", typical(turns, |turn| turn.client)),
        share(|turn| turn.client_busy),
        share(|turn| turn.redis_busy),
    ]
}
