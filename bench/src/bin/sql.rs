//! The speed of a store on MariaDB or PostgreSQL, compared with one transaction per check. Prints
//! Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use pacegate_bench::machine;
use pacegate_bench::sql::comparison::{self, Comparison};
use pacegate_bench::sql::database::Database;
use pacegate_bench::sql::{NAIVE_CONNECTIONS, ROUNDS};
use pacegate_sql::SqlOptions;
use pacegate_testkit::server::{MariaDb, Postgres};

/// Measures the throughput and latency of a store on MariaDB and on PostgreSQL.
#[derive(Debug, Parser)]
struct Arguments {
    /// Time for which each cell is measured per round.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Number of connections of the store.
    #[arg(long, default_value_t = SqlOptions::CONNECTIONS)]
    connections: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (duration, connections) = (Duration::from_secs(arguments.seconds.max(1)), arguments.connections);
    println!("{}\n", machine::description());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The first is stopped before the second is started.
    let maria_db =
        measure(&Database::MariaDb(MariaDb::start_with(MariaDb::DURABLE)), &runtime, duration, connections)?;
    let postgres = measure(
        &Database::Postgres(Postgres::start_with(Postgres::DURABLE)),
        &runtime,
        duration,
        connections,
    )?;
    println!(
        "{ROUNDS} rounds of {} s for each row, interleaved. Naive: {NAIVE_CONNECTIONS} connections, a transaction for each check. Store: {connections} connections.\n",
        duration.as_secs()
    );
    goal("MariaDB >= 30,000 checks/s at 256", rate(&maria_db), maria_db.many >= 30_000.0);
    goal("PostgreSQL >= 20,000", rate(&postgres), postgres.many >= 20_000.0);
    let both = [&maria_db, &postgres];
    let text = |figure: &dyn Fn(&Comparison) -> String| {
        format!("{} on MariaDB, {} on PostgreSQL", figure(&maria_db), figure(&postgres))
    };
    let times = |of: &Comparison| of.many / of.naive;
    goal(">= 8 x naive", text(&|of| format!("{:.1}", times(of))), both.iter().all(|of| times(of) >= 8.0));
    let share = |of: &Comparison| of.hot / of.many;
    let shares = text(&|of| format!("{:.2} of it", share(of)));
    goal("hot key no slower than many", shares, both.iter().all(|of| share(of) >= 1.0));
    let alone = text(&|of| {
        let ([median, tail], [naive_median, naive_tail]) = (of.alone, of.naive_alone);
        format!("{median:.0} to {naive_median:.0} µs (P95 {tail:.0} to {naive_tail:.0})")
    });
    let soon = both.iter().all(|of| of.alone[0] <= of.naive_alone[0] + 3_000.0);
    goal("one caller alone <= naive single caller + 3 ms", alone, soon);
    Ok(())
}

fn measure(
    database: &Database,
    runtime: &tokio::runtime::Runtime,
    duration: Duration,
    connections: usize,
) -> Result<Comparison> {
    println!("{} {}\n", database.name(), database.description());
    let comparison = comparison::compare(database, runtime, duration, connections)?;
    println!("{}", comparison.table);
    for failure in &comparison.failures {
        println!("failed: {failure}\n");
    }
    Ok(comparison)
}

fn rate(of: &Comparison) -> String {
    format!("{:.0} (best {:.0})", of.many, of.many_best)
}

fn goal(text: &str, figure: String, reached: bool) {
    println!("goal {text}: {figure} {}", if reached { "ok" } else { "MISSED" });
}
