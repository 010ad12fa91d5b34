//! The cost of metrics: one REST check in process, from the request to the response, with metrics
//! and without. Prints Markdown. `bench/telemetry_instructions` counts instructions with it.
#![expect(clippy::print_stdout, reason = "this program prints a table")]

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use clap::Parser;
use pacegate_bench::machine;
use pacegate_bench::stopwatch::{median, now};
use pacegate_bench::table::Table;
use pacegate_config::Config;
use pacegate_server::{AdminKey, App};
use tokio::runtime::Runtime;

const ROUNDS: usize = 9;
const REQUESTS: u64 = 20_000;
/// A limit that never denies.
const RULES: &str = "
default_limit: none
rules: [{name: per-user, dimension: user, endpoint: '/api/{*rest}', algorithm: token_bucket, limit: 1000000000, window: 1h}]
";
const ROWS: [(&str, &str); 2] = [("metrics off", "metrics: false"), ("metrics on", "metrics: true")];

/// Measures the cost of metrics.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only print the names of the rows.
    #[arg(long)]
    rows: bool,
    /// Only send a number of checks to one row, for a profiler.
    #[arg(long, num_args = 2, value_names = ["ROW", "CHECKS"])]
    spin: Option<Vec<String>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.rows {
        ROWS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(spin) = arguments.spin {
        let [name, checks] = spin.as_slice() else { bail!("--spin takes ROW CHECKS") };
        let (_, settings) = ROWS.iter().find(|(row, _)| row == name).context("there is no such row")?;
        return run(&runtime, &app(settings)?, checks.parse().context("CHECKS is a number")?);
    }
    let apps = ROWS.iter().map(|(_, settings)| app(settings)).collect::<Result<Vec<App>>>()?;
    let mut nanos = vec![Vec::new(); ROWS.len()];
    for _ in 0..ROUNDS {
        for (app, nanos) in apps.iter().zip(&mut nanos) {
            let start = now();
            run(&runtime, app, REQUESTS)?;
            nanos.push((now() - start).as_nanos() as f64 / REQUESTS as f64);
        }
    }
    println!("{}\n", machine::description());
    let mut table = Table::new(["one REST check in process", "median ns", "to the first"]);
    let first = median(nanos[0].iter().copied());
    for ((name, _), nanos) in ROWS.iter().zip(&nanos) {
        let nanos = median(nanos.iter().copied());
        table.row([(*name).to_owned(), format!("{nanos:.0}"), format!("{:.3}", nanos / first)]);
    }
    println!("{table}");
    Ok(())
}

fn app(settings: &str) -> Result<App> {
    let config = Config::parse(&format!("{RULES}{settings}"))?;
    Ok(App::new(&config, config.limiter()?, AdminKey::new("secret")))
}

fn run(runtime: &Runtime, app: &App, checks: u64) -> Result<()> {
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    runtime.block_on(async {
        for _ in 0..checks {
            let request = Request::post("/v1/rate-limit/check")
                .header("content-type", "application/json")
                .body(Body::from(r#"{"user_id":"user-123","endpoint":"/api/orders"}"#))?;
            let response = app.respond(request, peer).await;
            ensure!(response.status() == StatusCode::OK, "a check was answered {}", response.status());
        }
        Ok(())
    })
}
