//! Measures both servers under the same load, in turn.

use std::time::Duration;

use anyhow::Result;

use super::load::{Load, Outcome};
use super::process::Server;
use crate::stopwatch::median;
use crate::table::{Table, grouped};

/// Number of measurements of each server.
pub const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_secs(1);

/// One round of one server.
struct Round {
    outcome: Outcome,
    processor_seconds: f64,
}

impl Round {
    fn seconds_per_million(&self) -> f64 {
        self.processor_seconds * 1e6 / self.outcome.requests() as f64
    }
}

/// The cost of the servers, the first relative to the second.
#[derive(Debug)]
pub struct Comparison {
    /// One row per server.
    pub table: Table,
    /// Processor time per request of the first server, relative to the second: medians of the
    /// rounds.
    pub ratio: f64,
    /// Requests per second of the first server, relative to the second: medians of the rounds.
    pub rate_ratio: f64,
}

/// Loads the servers in turn over `connections` connections, each for `duration` per round.
///
/// # Errors
/// If a server fails or returns a status other than 200 or 429.
pub async fn compare(servers: [&Server; 2], duration: Duration, connections: usize) -> Result<Comparison> {
    let loads = servers.map(|server| Load::new(server.port, connections));
    for load in &loads {
        load.run(WARM_UP).await?;
    }
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for ((server, load), rounds) in servers.iter().zip(&loads).zip(&mut rounds) {
            let before = server.processor_seconds()?;
            let outcome = load.run(duration).await?;
            let processor_seconds = server.processor_seconds()? - before;
            rounds.push(Round { outcome, processor_seconds });
        }
    }

    let mut table = Table::new([
        "server",
        "CPU-s per million, each round",
        "median",
        "requests/s",
        "p50 µs",
        "p99 µs",
        "core busy",
        "200",
        "429",
        "body bytes",
    ]);
    for (server, rounds) in servers.iter().zip(&rounds) {
        table.row(row(server.name, rounds));
    }
    let ratio = |figure: fn(&Round) -> f64| {
        let [first, second] = rounds.each_ref().map(|rounds| median(rounds.iter().map(figure)));
        first / second
    };
    let (ratio, rate_ratio) = (ratio(Round::seconds_per_million), ratio(|round| round.outcome.rate()));
    Ok(Comparison { table, ratio, rate_ratio })
}

fn row(name: &str, rounds: &[Round]) -> Vec<String> {
    let typical = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure));
    let sum = |figure: fn(&Outcome) -> u64| grouped(rounds.iter().map(|round| figure(&round.outcome)).sum());
    let each: Vec<String> =
        rounds.iter().map(|round| format!("{:.2}", round.seconds_per_million())).collect();
    vec![
        name.into(),
        each.join(" / "),
        format!("{:.2}", typical(&Round::seconds_per_million)),
        grouped(typical(&|round| round.outcome.rate()) as u64),
        format!("{:.0}", typical(&|round| round.outcome.microseconds(0.5))),
        format!("{:.0}", typical(&|round| round.outcome.microseconds(0.99))),
        format!(
            "{:.0} %",
            typical(&|round| 100.0 * round.processor_seconds / round.outcome.elapsed.as_secs_f64())
        ),
        sum(|outcome| outcome.allowed),
        sum(|outcome| outcome.denied),
        format!("{:.0}", typical(&|round| round.outcome.body_bytes())),
    ]
}
