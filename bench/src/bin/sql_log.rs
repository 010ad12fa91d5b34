//! Two forms of a sliding log in MariaDB and PostgreSQL: one row per key, or one per admitted
//! request. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use pacegate_bench::machine;
use pacegate_bench::sql::database::Database;
use pacegate_bench::sql::log::{self, CALLERS};
use pacegate_sql::SqlOptions;
use pacegate_testkit::server::{MariaDb, Postgres};

/// Measures a sliding log in both forms, on both databases.
#[derive(Debug, Parser)]
struct Arguments {
    /// Time for which each row is measured.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of connections of each form.
    #[arg(long, default_value_t = SqlOptions::CONNECTIONS)]
    connections: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (duration, connections) = (Duration::from_secs(arguments.seconds.max(1)), arguments.connections);
    println!("{}\n", machine::description());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let databases: [fn() -> Database; 2] = [
        || Database::MariaDb(MariaDb::start_with(MariaDb::DURABLE)),
        || Database::Postgres(Postgres::start_with(Postgres::DURABLE)),
    ];
    for start in databases {
        // The first is stopped before the second is started.
        let database = start();
        println!("{} {}\n", database.name(), database.description());
        println!("{}", log::compare(&database, &runtime, duration, connections)?);
    }
    println!(
        "{} s for each row, {connections} connections. A row per key: {CALLERS} callers of the store. A row per request: batches of 32 on each connection.",
        duration.as_secs()
    );
    Ok(())
}
