//! The `pacegate` command: the service and its tools.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for invalid usage or configuration, 3 for a denied
//! check.

mod audit;
mod bench;
mod catalog;
mod check;
mod client;
mod completions;
mod config;
mod files;
mod healthcheck;
mod import;
mod keys;
mod logging;
mod man;
mod openapi;
mod output;
mod proxy;
mod reload;
mod serve;
mod simulate;
mod stores;
mod top;
mod users;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::complain;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A distributed rate limiter: six exact algorithms, several limits charged all or nothing.
#[derive(Debug, Parser)]
#[command(
    name = "pacegate",
    version = env!("VERSION_AND_COMMIT"),
    arg_required_else_help = true,
    after_help = "Examples:\n  pacegate serve --config pacegate.yaml\n  pacegate check --user alice --endpoint /api/v1/orders\n  pacegate help serve"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service.
    Serve(serve::Serve),
    /// Runs a reverse proxy that rate-limits the program behind it.
    Proxy(proxy::Proxy),
    /// Checks one request against a running service.
    Check(check::Check),
    /// Load-tests a running service and reports rates and latency.
    Bench(Box<bench::Bench>),
    /// Shows live figures of a running service in the terminal.
    Top(top::Top),
    /// Checks the health of a running service, for container health checks.
    Healthcheck(healthcheck::Healthcheck),
    /// Validates configuration files.
    Config(config::Config),
    /// Converts the rate limit files of other products.
    Import(import::Import),
    /// Replays an access log against rules and reports which requests they would have denied.
    Simulate(simulate::Simulate),
    /// Creates, lists and revokes API keys.
    Keys(keys::Keys),
    /// Imports the tiers and custom limits of many users.
    Users(users::Users),
    /// Verifies and seals the audit trail.
    Audit(audit::Audit),
    /// Prints the OpenAPI 3.1 document of the REST API.
    Openapi(openapi::OpenApi),
    /// Prints a completion script for a shell.
    Completions(completions::Completions),
    /// Prints or writes manual pages.
    Man(man::Man),
}

/// Why a command failed, by its exit code.
#[derive(Debug)]
enum Failure {
    /// The command failed.
    Failed(anyhow::Error),
    /// The command line or the configuration is invalid.
    Misused(anyhow::Error),
    /// The request was denied.
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
        Command::Healthcheck(healthcheck) => healthcheck.run(),
        Command::Config(config) => config.run(),
        Command::Import(import) => import.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Keys(keys) => keys.run(),
        Command::Users(users) => users.run(),
        Command::Audit(audit) => audit.run(),
        Command::Openapi(openapi) => openapi.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
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
