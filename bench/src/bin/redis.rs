//! The cost of a check in Redis and the speed of a store on it, compared with minimal scripts and a
//! pipeline without a store. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use pacegate_bench::machine;
use pacegate_bench::redis::calls::Calls;
use pacegate_bench::redis::cost::{self, Costs};
use pacegate_bench::redis::server::Redis;
use pacegate_bench::redis::throughput::{self, Throughput};
use pacegate_bench::redis::{DEPTH, ROUNDS, USERS};
use pacegate_bench::service::process::pin_to;

const CLIENT_CORE: usize = 0;
const REDIS_CORE: usize = 1;

/// Measures the cost of a check in Redis, and the throughput and latency of a store on it.
#[derive(Debug, Parser)]
struct Arguments {
    /// Time for which each cell is measured per round.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

fn main() -> Result<()> {
    let duration = Duration::from_secs(Arguments::parse().seconds.max(1));
    // Before pinning, which hides the other cores.
    let machine = machine::description();
    pin_to(CLIENT_CORE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut redis = Redis::start(REDIS_CORE)?;
    println!("{machine}, Redis {}\n", redis.version()?);

    let calls = runtime.block_on(Calls::all(&mut redis))?;
    let costs = cost::compare(&mut redis, &calls, duration)?;
    println!("{}", costs.table);
    let throughput = throughput::compare(&mut redis, &runtime, &calls, duration)?;
    println!("{}", throughput.table);
    println!(
        "{USERS} users; {ROUNDS} rounds of {} s for each row, in short turns. Redis' time: one connection, {DEPTH} calls at once.\n",
        duration.as_secs()
    );
    print_goals(&costs, &throughput);
    Ok(())
}

fn print_goals(costs: &Costs, throughput: &Throughput) {
    let Throughput { of_pipelined: [one, two], p95, p95_best: best, on_one_connection: rate, .. } =
        throughput;
    let goal = |text: &str, figure: String, reached: bool| {
        println!("goal {text}: {figure} {}", if reached { "ok" } else { "MISSED" });
    };
    let script = costs.script_ratio;
    goal("script <= 1.30 x minimal", format!("{script:.2}"), script <= 1.30);
    let shares = format!("{:.0} % on one connection, {:.0} % on two", 100.0 * one, 100.0 * two);
    // Two connections are the default of a store.
    goal("256 in flight >= 60 % of pipelined", shares, *two >= 0.6);
    let times = format!(
        "{:.0} µs on one connection, {:.0} µs on two (best turns {:.0} and {:.0} µs)",
        p95[0], p95[1], best[0], best[1]
    );
    goal("P95 at 64 < 1 ms", times, p95.iter().all(|time| *time < 1_000.0));
    goal(">= 15,000 checks/s on one connection", format!("{rate:.0}"), *rate >= 15_000.0);
    let denial = costs.denial_ratio;
    goal("denial cheaper than admission", format!("{denial:.2} of it"), denial < 1.0);
}
