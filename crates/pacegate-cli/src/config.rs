//! `pacegate config`: works with configuration files.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};

use crate::Failure;
use crate::output::say;

/// Works with configuration files.
#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says whether a file is valid; if not, lists every mistake with its line.
    #[command(after_help = "Example:\n  pacegate config check pacegate.yaml")]
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Prints the JSON Schema of the file, for editors.
    #[command(after_help = "Example:\n  pacegate config schema > pacegate.schema.json")]
    Schema,
}

impl Config {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let file = match self.command {
            Command::Check { file } => file,
            Command::Schema => {
                say(&pacegate_config::Config::schema());
                return Ok(());
            }
        };
        match pacegate_config::Config::load(Some(&file)) {
            Ok(config) if !pacegate_connect::url_errors(&config).is_empty() => {
                let mistakes = pacegate_connect::url_errors(&config).join("\n");
                Err(Failure::Misused(anyhow!("{} is not valid\n{mistakes}", file.display())))
            }
            Ok(config) => {
                let (rules, plans) = (config.rules.len(), config.plans.len());
                let descriptors = match config.descriptors.len() {
                    0 => String::new(),
                    count => format!(", {count} descriptors"),
                };
                say(&format!("{} is valid: {rules} rules, {plans} plans{descriptors}", file.display()));
                Ok(())
            }
            Err(errors) => {
                let count = match errors.0.len() {
                    1 => "1 mistake".to_owned(),
                    count => format!("{count} mistakes"),
                };
                Err(Failure::Misused(anyhow!("{} has {count}\n{errors}", file.display())))
            }
        }
    }
}
