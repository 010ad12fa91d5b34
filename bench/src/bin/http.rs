//! The cost of the service: `POST /v1/rate-limit/check` next to a bare axum handler in the same
//! run. Prints Markdown.
#![expect(clippy::print_stdout, reason = "the tables are what this program is for")]

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
/// Requests from which the size of an answer is learnt.
const PROBES: usize = 100;
/// A check that the database does not answer in time ends the run with its 503.
const WITH_DATABASE: &str = "failure: {mode: closed, timeout: 250ms}\n";

/// Measures what one check over HTTP costs the server, next to a handler that decides nothing.
#[derive(Debug, Parser)]
struct Arguments {
    /// The pacegate binary; without it, the one next to this program.
    #[arg(long, value_name = "PATH")]
    pacegate: Option<PathBuf>,
    /// How long each server is loaded in each round.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How many connections the load has, one request in flight each.
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// Keep pacegate's counters in a private database, which shares the cores with the
    /// other processes.
    #[arg(long)]
    database: Option<Kind>,
    /// Only be the bare server on this port, for ten minutes at most.
    #[arg(long, value_name = "PORT", requires = "bytes")]
    bare: Option<u16>,
    /// The size of the bare server's answers.
    #[arg(long)]
    bytes: Option<usize>,
    /// Further arguments for `pacegate serve`.
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
            Self::Mariadb => Database::MariaDb(MariaDb::start()),
            Self::Postgres => Database::Postgres(Postgres::start()),
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

/// An empty directory to run the servers in: the service keeps its catalog where it is started.
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
        // Best effort: the operating system cleans up temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
