//! `pacegate config`: checks configuration files.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pacegate_config::ConfigErrors;

use crate::Failure;
use crate::output::{complain, say};

/// Checks configuration files.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks a file, and prints every error and warning with its line.
    #[command(
        after_help = "Exits with 0 if the file is valid, also with warnings, and with 2 if it is not.\n\n\
                      Example:\n  pacegate config check pacegate.yaml"
    )]
    Check {
        /// The configuration file.
        file: PathBuf,
    },
    /// Prints the JSON Schema of the file, for editors.
    #[command(after_help = "Example:\n  pacegate config schema > pacegate.schema.json")]
    Schema {
        /// Prints the reference in docs/configuration.md instead.
        #[arg(long)]
        markdown: bool,
    },
}

impl Config {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Check { file } => check(&file),
            Command::Schema { markdown: false } => {
                say(&pacegate_config::Config::schema());
                Ok(())
            }
            Command::Schema { markdown: true } => {
                say(pacegate_config::Config::reference().trim_end());
                Ok(())
            }
        }
    }
}

fn check(file: &Path) -> Result<(), Failure> {
    let (config, mut errors) = pacegate_config::Config::inspect(Some(file));
    errors.extend(pacegate_connect::url_errors(&config));
    for warning in &config.warnings {
        complain(&format!("warning: {warning}"));
    }
    if !errors.0.is_empty() {
        return Err(Failure::Misused(anyhow!("{}: {}\n{errors}", file.display(), error_count(&errors))));
    }
    if let Some(limit) =
        config.default_limit.filter(|_| !config.rules.is_empty() && !config.sets_default_limit)
    {
        complain(&format!(
            "note: the file has no `default_limit`, so requests that match no rule are limited by a token \
             bucket (capacity {}, refill {} per second); set `default_limit: none` to allow them without a limit",
            limit.capacity(),
            limit.quota(),
        ));
    }
    let mut counts = vec![counted(config.rules.len(), "rule"), counted(config.plans.len(), "plan")];
    if !config.descriptors.is_empty() {
        counts.push(counted(config.descriptors.len(), "descriptor"));
    }
    say(&format!("{} is valid: {}", file.display(), counts.join(", ")));
    Ok(())
}

/// Logs the warnings of a configuration file.
pub(crate) fn log_warnings(file: Option<&Path>, config: &pacegate_config::Config) {
    let file = file.map(|file| file.display().to_string());
    for warning in &config.warnings {
        tracing::warn!(file, "{warning}");
    }
}

/// Returns the number of errors in words: `1 error`, `2 errors`.
pub(crate) fn error_count(errors: &ConfigErrors) -> String {
    counted(errors.0.len(), "error")
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
