//! The `pacegate` command: runs the service, and tools around it.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for bad usage or configuration, 3 for a check that was denied.

mod audit;
mod bench;
mod catalog;
mod check;
mod client;
mod config;
mod files;
mod import;
mod keys;
mod logging;
mod openapi;
mod output;
mod proxy;
mod reload;
mod serve;
mod simulate;
mod stores;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::complain;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A distributed rate limiter: six exact algorithms, several limits charged all or nothing.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service.
    Serve(serve::Serve),
    /// Runs a reverse proxy that limits what reaches the program behind it.
    Proxy(proxy::Proxy),
    /// Asks a running service whether one request may pass.
    Check(check::Check),
    /// Puts load on a running service, and says how it answers.
    Bench(Box<bench::Bench>),
    /// Watches a running service in the terminal.
    Top(top::Top),
    /// Works with configuration files.
    Config(config::Config),
    /// Turns other products' limit files into one for Pacegate.
    Import(import::Import),
    /// Prints the OpenAPI 3.1 document of the REST API.
    Openapi(openapi::OpenApi),
    /// Works with API keys.
    Keys(keys::Keys),
    /// Tells whom rules would have blocked, from an access log.
    Simulate(simulate::Simulate),
    /// Works with the audit trail.
    Audit(audit::Audit),
}

/// Why a command did not succeed, by the exit code it ends with.
#[derive(Debug)]
enum Failure {
    /// Something went wrong.
    Failed(anyhow::Error),
    /// The command line or the configuration is wrong.
    Misused(anyhow::Error),
    /// The request would not pass.
    Denied,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Proxy(proxy) => proxy.run(),
        Command::Check(check) => check.run(),
        Command::Bench(bench) => bench.run(),
        Command::Top(top) => top.run(),
        Command::Config(config) => config.run(),
        Command::Import(import) => import.run(),
        Command::Openapi(openapi) => openapi.run(),
        Command::Keys(keys) => keys.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Audit(audit) => audit.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(error)) => {
            complain(&format!("error: {error:#}"));
            ExitCode::from(1)
        }
        Err(Failure::Misused(error)) => {
            complain(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
        Err(Failure::Denied) => ExitCode::from(3),
    }
}
