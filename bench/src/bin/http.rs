//! The cost of the service: `POST /v1/rate-limit/check` compared with a minimal axum handler.
//! Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use pacegate_bench::machine;
use pacegate_bench::service::bare;
use pacegate_bench::service::comparison::{self, ROUNDS};
use pacegate_bench::service::load::{CONNECTIONS, Load, USERS};
use pacegate_bench::service::process::{Server, free_port, pin_to};
use pacegate_bench::sql::database::Database;
use pacegate_testkit::server::{MariaDb, Postgres};

const SERVER_CORE: usize = 0;
const LOAD_CORE: usize = 1;
/// Number of requests that determine the size of a response.
const PROBES: usize = 100;
/// A check that the database does not process in time fails with 503, which ends the run.
const WITH_DATABASE: &str = "failure: {mode: closed, timeout: 250ms}\n";

/// Measures the cost of a check over HTTP in the server, compared with a handler that decides
/// nothing.
#[derive(Debug, Parser)]
struct Arguments {
    /// The pacegate binary. Defaults to the one next to this program.
    #[arg(long, value_name = "PATH")]
    pacegate: Option<PathBuf>,
    /// Time for which each server is loaded per round.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of connections of the load, with one request in flight each.
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// Keep the counters of pacegate in a private database, which shares the cores.
    #[arg(long)]
    database: Option<Kind>,
    /// Only run the minimal server on this port, for at most ten minutes.
    #[arg(long, value_name = "PORT", requires = "bytes")]
    bare: Option<u16>,
    /// Size of the responses of the minimal server.
    #[arg(long)]
    bytes: Option<usize>,
    /// More arguments for `pacegate serve`.
    #[arg(last = true)]
    serve: Vec<String>,
}

/// A kind of database.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Mariadb,
    Postgres,
}

impl Kind {
    fn start(self) -> Database {
        match self {
            Self::Mariadb => Database::MariaDb(MariaDb::start_with(MariaDb::DURABLE)),
            Self::Postgres => Database::Postgres(Postgres::start_with(Postgres::DURABLE)),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(port), Some(bytes)) = (arguments.bare, arguments.bytes) {
        return bare::serve(port, bytes);
    }
    // Before pinning, which hides the other cores.
    let machine = machine::description();
    let program = env::current_exe().context("finding this program")?;
    let pacegate = arguments.pacegate.unwrap_or_else(|| program.with_file_name("pacegate"));
    let pacegate = fs::canonicalize(&pacegate).with_context(|| format!("finding {}", pacegate.display()))?;
    let scratch = Scratch::new()?;
    let database = arguments.database.map(Kind::start);
    let mut store = Vec::new();
    if let Some(database) = &database {
        let path = scratch.0.join("pacegate.yaml");
        fs::write(&path, WITH_DATABASE).with_context(|| format!("writing {}", path.display()))?;
        store = vec!["--config".to_owned(), path.display().to_string(), "--store".to_owned(), database.url()];
    } else {
        pin_to(LOAD_CORE)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let port = free_port()?;
    let listen = ["serve".to_owned(), "--http".to_owned(), format!("127.0.0.1:{port}")];
    let serve = listen.into_iter().chain(store).chain(arguments.serve);
    let service = Server::start("pacegate serve", port, SERVER_CORE, &scratch.0, &pacegate, serve)?;
    let bytes = runtime.block_on(Load::new(port, arguments.connections).probe(PROBES))?.body_bytes().round();

    let port = free_port()?;
    let alone = ["--bare".to_owned(), port.to_string(), "--bytes".to_owned(), format!("{bytes:.0}")];
    let bare = Server::start("bare axum", port, SERVER_CORE, &scratch.0, &program, alone)?;

    let duration = Duration::from_secs(arguments.seconds.max(1));
    let comparison =
        runtime.block_on(comparison::compare([&service, &bare], duration, arguments.connections))?;
    println!("{machine}\n");
    if let Some(database) = &database {
        println!("{} {}\n", database.name(), database.description());
    }
    println!("{}", comparison.table);
    println!("pacegate / bare, CPU per request: {:.2}\n", comparison.ratio);
    println!(
        "{} connections, one request in flight each, {USERS} users, {ROUNDS} rounds of {} s each.",
        arguments.connections,
        duration.as_secs()
    );
    Ok(())
}

/// An empty working directory for the servers: the service creates its catalog there.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = env::temp_dir().join(format!("pacegate-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files left in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
