//! `pacegate users`: tiers and custom limits of users, through a running service.

mod csv;
mod table;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use http_body_util::Full;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::Failure;
use crate::client::{Service, ServiceArguments};
use crate::output::{complain, printable, say};
use table::{LineError, Table};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Imports the tiers and custom limits of many users through a running service.
#[derive(Debug, Args)]
pub(crate) struct Users {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Imports tiers and custom limits from a CSV file, all or nothing, in one audited change.
    ///
    /// The first line names the columns: user_id, and any of tier, rule, limit, window_seconds and
    /// burst_capacity. A user can have several lines, one for each rule. An empty tier leaves the
    /// tier as it is. The rules of a user replace all its custom limits; a user without a rule
    /// keeps them. A file can have at most 10,000 users. Needs an API key with the role admin.
    #[command(
        after_help = "Examples:\n  PACEGATE_API_KEY=... pacegate users import users.csv --dry-run\n  PACEGATE_API_KEY=... pacegate users import users.csv --server https://pacegate.example.com\n\nA file:\n  user_id,tier,rule,limit,window_seconds,burst_capacity\n  alice,premium,,,,\n  bob,premium,per-user-minute,5000,60,\n  bob,,exports,20,3600,5"
    )]
    Import {
        /// The CSV file, or `-` for the standard input.
        file: PathBuf,
        /// Validates the file and shows what would change, but changes nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        service: ServiceArguments,
    },
}

impl Users {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Command::Import { file, dry_run, service } = self.command;
        let name = if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
        let text = read(&file).with_context(|| format!("could not read {name}")).map_err(Failure::Misused)?;
        let table = Table::parse(&text);
        let service = service.service()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        // With invalid lines, the service still validates the others, so that all errors are shown.
        let only_validate = dry_run || !table.errors.is_empty();
        let (status, response) = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, send(&service, &table, only_validate)).await })
            .map_err(|_| anyhow!("{} did not respond within {TIMEOUT:?}", service.url()))??;
        let rejected = table.locate(&response);
        if status != StatusCode::OK && rejected.is_empty() {
            return Err(service.rejected(status, &response));
        }
        let mut errors = table.errors;
        errors.extend(rejected);
        if !errors.is_empty() {
            return Err(Failure::Misused(anyhow!("{name}: {}", describe(errors))));
        }
        report(&name, dry_run, &response);
        Ok(())
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    Ok(std::fs::read_to_string(file)?)
}

async fn send(service: &Service, table: &Table, dry_run: bool) -> anyhow::Result<(StatusCode, Value)> {
    let users: Vec<Value> = table.users.iter().map(|user| user.to_json()).collect();
    let body = json!({"users": users, "dry_run": dry_run});
    let request = Request::post("/api/v1/users")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    service.json(request).await
}

/// All errors, by line.
fn describe(mut errors: Vec<LineError>) -> String {
    errors.sort_by_key(|error| error.line);
    let count = if errors.len() == 1 { "1 error".to_owned() } else { format!("{} errors", errors.len()) };
    let lines = errors.iter().map(|error| format!("\n  line {}: {}", error.line, error.reason));
    format!("{count}, nothing was imported{}", lines.collect::<String>())
}

fn report(name: &str, dry_run: bool, response: &Value) {
    let ids = |outcome: &str| response[outcome].as_array().map(Vec::as_slice).unwrap_or_default();
    for outcome in ["created", "updated"] {
        for user_id in ids(outcome).iter().filter_map(Value::as_str) {
            say(&format!("{outcome}  {}", printable(user_id).replace('\n', "\\n")));
        }
    }
    let [created, updated, unchanged] = ["created", "updated", "unchanged"].map(|outcome| ids(outcome).len());
    let changes = format!("{created} created, {updated} updated, {unchanged} unchanged");
    say(&if dry_run {
        format!("dry run of {name}, nothing was imported: {changes}")
    } else {
        format!("imported {name}: {changes}")
    });
    for warning in response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        complain(&format!("warning: {warning}"));
    }
}
