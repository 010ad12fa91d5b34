//! The cost of `pacegate proxy`, compared with a minimal proxy in front of the same upstream.
//! Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use pacegate_bench::service::comparison::{self, ROUNDS};
use pacegate_bench::service::load::CONNECTIONS;
use pacegate_bench::service::process::{Server, free_port, pin_to};
use pacegate_bench::{machine, proxy, service};

const PROXY_CORE: usize = 0;
/// The load and the upstream share it.
const OTHER_CORE: usize = 1;
/// Size of the responses of the upstream.
const BYTES: usize = 300;
/// Every request is counted, and none is denied.
const CONFIG: &str = "rules:\n  - {name: per-address, dimension: ip, algorithm: gcra, limit: 1000000, window: 1s}\n  - {name: per-key, dimension: apikey, algorithm: gcra, limit: 1000000, window: 1s}\n";

/// Measures the cost of a request through `pacegate proxy`, compared with a proxy without limits.
#[derive(Debug, Parser)]
struct Arguments {
    /// The pacegate binary. Defaults to the one next to this program.
    #[arg(long, value_name = "PATH")]
    pacegate: Option<PathBuf>,
    /// Time for which each proxy is loaded per round.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of connections of the load, with one request in flight each.
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// Only run the upstream on this port, for at most ten minutes.
    #[arg(long, value_name = "PORT", conflicts_with = "bare")]
    upstream: Option<u16>,
    /// Only run the minimal proxy on this port, for at most ten minutes.
    #[arg(long, value_name = "PORT", requires = "to")]
    bare: Option<u16>,
    /// Port of the upstream of the minimal proxy.
    #[arg(long, value_name = "PORT")]
    to: Option<u16>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(port) = arguments.upstream {
        return service::bare::serve(port, BYTES);
    }
    if let (Some(port), Some(upstream)) = (arguments.bare, arguments.to) {
        return proxy::serve(port, upstream);
    }
    // Before pinning, which hides the other cores.
    let machine = machine::description();
    let program = env::current_exe().context("finding this program")?;
    let pacegate = arguments.pacegate.unwrap_or_else(|| program.with_file_name("pacegate"));
    let pacegate = fs::canonicalize(&pacegate).with_context(|| format!("finding {}", pacegate.display()))?;
    let scratch = tempfile::tempdir()?;
    let config = scratch.path().join("pacegate.yaml");
    fs::write(&config, CONFIG).with_context(|| format!("writing {}", config.display()))?;
    pin_to(OTHER_CORE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let to = free_port()?;
    let _upstream =
        Server::start("upstream", to, OTHER_CORE, scratch.path(), &program, ["--upstream", &to.to_string()])?;
    let port = free_port()?;
    let (address, url, config) =
        (format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{to}"), config.display().to_string());
    let listen = ["proxy", "--http", &address, "--upstream", &url, "--config", &config];
    let limited = Server::start("pacegate proxy", port, PROXY_CORE, scratch.path(), &pacegate, listen)?;
    let port = free_port()?;
    let forward = ["--bare", &port.to_string(), "--to", &to.to_string()];
    let bare = Server::start("bare hyper-util proxy", port, PROXY_CORE, scratch.path(), &program, forward)?;

    let duration = Duration::from_secs(arguments.seconds.max(1));
    let comparison =
        runtime.block_on(comparison::compare([&limited, &bare], duration, arguments.connections))?;
    println!("{machine}\n\n{}", comparison.table);
    println!("pacegate / bare, requests per second: {:.2}", comparison.rate_ratio);
    println!("pacegate / bare, CPU per request: {:.2}\n", comparison.ratio);
    println!(
        "{} connections, one request in flight each, {ROUNDS} rounds of {} s each. The upstream shares a core with the load.",
        arguments.connections,
        duration.as_secs()
    );
    Ok(())
}
