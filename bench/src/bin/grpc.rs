//! The cost of checks and of Envoy's requests over gRPC, compared with a minimal tonic server.
//! Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use pacegate_bench::grpc::bare;
use pacegate_bench::grpc::load::{self, CONNECTIONS, Question, STREAMS, Until};
use pacegate_bench::machine;
use pacegate_bench::service::process::{Server, free_port, pin_to};
use pacegate_bench::stopwatch::median;
use pacegate_bench::table::{Table, grouped};

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_secs(1);
const RULES: &str = include_str!("../grpc/rules.yaml");

/// Measures the cost of a check over gRPC in the server, compared with handlers that decide
/// nothing.
#[derive(Debug, Parser)]
struct Arguments {
    /// The pacegate binary. Defaults to the one next to this program.
    #[arg(long, value_name = "PATH")]
    pacegate: Option<PathBuf>,
    /// Time for which each is loaded per round.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Only run the minimal server on this port, for at most ten minutes.
    #[arg(long, value_name = "PORT")]
    bare: Option<u16>,
    /// Only load the server on this port, for a profiler.
    #[arg(long, value_name = "PORT", requires_all = ["question", "times"])]
    load: Option<u16>,
    /// The kind of request.
    #[arg(long, requires = "load")]
    question: Option<Question>,
    /// Number of calls per request in flight.
    #[arg(long, requires = "load")]
    times: Option<u64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(port) = arguments.bare {
        return bare::serve(port);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let (Some(port), Some(question), Some(times)) = (arguments.load, arguments.question, arguments.times) {
        let (answers, _) = runtime.block_on(load::run(port, question, Until::Asked(times)))?;
        println!("{answers}");
        return Ok(());
    }
    // Before pinning, which hides the other cores.
    let machine = machine::description();
    let program = env::current_exe().context("finding this program")?;
    let pacegate = arguments.pacegate.unwrap_or_else(|| program.with_file_name("pacegate"));
    let pacegate = fs::canonicalize(&pacegate).with_context(|| format!("finding {}", pacegate.display()))?;
    let scratch = tempfile::tempdir()?;
    let rules = scratch.path().join("pacegate.yaml");
    fs::write(&rules, RULES)?;
    pin_to(LOAD_CORE)?;

    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let rules = rules.display().to_string();
    let serve = ["serve", "--http", "127.0.0.1:0", "--grpc", &listen, "--config", &rules];
    let service = Server::start("pacegate serve", port, SERVER_CORE, scratch.path(), &pacegate, serve)?;
    let port = free_port()?;
    let alone = ["--bare".to_owned(), port.to_string()];
    let bare = Server::start("bare tonic", port, SERVER_CORE, scratch.path(), &program, alone)?;

    let contenders = [
        ("bare tonic, CheckRateLimit", &bare, Question::Check),
        ("CheckRateLimit", &service, Question::Check),
        ("bare tonic, ShouldRateLimit", &bare, Question::Envoy),
        ("ShouldRateLimit", &service, Question::Envoy),
        ("CheckStream", &service, Question::Stream),
    ];
    let duration = Duration::from_secs(arguments.seconds.max(1));
    let mut figures = contenders.map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for ((_, server, question), figures) in contenders.iter().zip(&mut figures) {
            let before = server.processor_seconds()?;
            let time = if round == 0 { WARM_UP } else { duration };
            let (answers, elapsed) =
                runtime.block_on(load::run(server.port, *question, Until::Passed(time)))?;
            let processor = (server.processor_seconds()? - before) * 1e6 / answers as f64;
            if round > 0 {
                figures.push((processor, answers as f64 / elapsed.as_secs_f64()));
            }
        }
    }
    let processor = |index: usize| median(figures[index].iter().map(|(processor, _)| *processor));
    let rate = |index: usize| median(figures[index].iter().map(|(_, rate)| *rate));
    let mut table = Table::new(["call", "CPU-s per million, each round", "median", "checks/s"]);
    for (index, (name, ..)) in contenders.iter().enumerate() {
        let each: Vec<String> =
            figures[index].iter().map(|(processor, _)| format!("{processor:.2}")).collect();
        table.row(vec![
            (*name).into(),
            each.join(" / "),
            format!("{:.2}", processor(index)),
            grouped(rate(index) as u64),
        ]);
    }
    println!("{machine}\n\n{table}");
    // Ratios within one round, because the speed of the machine differs between rounds.
    let ratio = |of: usize, to: usize, figure: fn(&(f64, f64)) -> f64| {
        median(figures[of].iter().zip(&figures[to]).map(|(of, to)| figure(of) / figure(to)))
    };
    let (cost, speed) = (|figures: &(f64, f64)| figures.0, |figures: &(f64, f64)| figures.1);
    println!("CheckRateLimit / bare tonic, CPU per request: {:.2}", ratio(1, 0, cost));
    println!("ShouldRateLimit / bare tonic echo, CPU per request: {:.2}", ratio(3, 0, cost));
    println!("ShouldRateLimit / bare tonic with its messages: {:.2}", ratio(3, 2, cost));
    println!("CheckStream / CheckRateLimit, checks per second: {:.2}", ratio(4, 1, speed));
    println!("CheckStream / CheckRateLimit, CPU per check: {:.2}\n", ratio(4, 1, cost));
    println!(
        "{CONNECTIONS} connections × {STREAMS} streams, {ROUNDS} rounds of {} s each.",
        duration.as_secs()
    );
    Ok(())
}
