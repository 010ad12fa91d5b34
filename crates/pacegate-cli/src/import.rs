//! `pacegate import`: converts the rate limit files of other products. Settings without an
//! equivalent are rejected by name.

mod cel;
mod envoy;
mod limitador;
mod write;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pacegate::descriptor::DescriptorRule;
use pacegate_config::reading::{Cursor, Document};
use pacegate_config::{ConfigError, ConfigErrors};

use crate::Failure;
use crate::output::{complain, print};

/// Converts the rate limit files of other products into a configuration file.
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Converts a file of Envoy's rate limit service.
    #[command(after_help = "Example:\n  pacegate import envoy ratelimit.yaml > pacegate.yaml")]
    Envoy {
        /// The file to convert.
        file: PathBuf,
    },
    /// Converts a limits file of Limitador.
    #[command(after_help = "Example:\n  pacegate import limitador limits.yaml > pacegate.yaml")]
    Limitador {
        /// The file to convert.
        file: PathBuf,
    },
}

/// The rules that were read so far.
#[derive(Debug, Default)]
struct Imported<'a> {
    rules: Vec<DescriptorRule>,
    /// The value that each rule was read from.
    origins: Vec<Cursor<'a>>,
    /// Differences in behaviour, and ignored settings.
    notes: Vec<ConfigError>,
}

impl Import {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let (file, product, read): (_, _, Read) = match self.command {
            Command::Envoy { file } => (file, "Envoy's rate limit service", envoy::read),
            Command::Limitador { file } => (file, "Limitador", limitador::read),
        };
        let name = file.display();
        let text = std::fs::read_to_string(&file)
            .map_err(|error| Failure::Misused(anyhow!("could not read {name}: {error}")))?;
        match translate(&text, product, read) {
            Ok((yaml, notes)) => {
                for note in notes {
                    complain(&format!("note: {note}"));
                }
                Ok(print(yaml.as_bytes())?)
            }
            Err(errors) => {
                let count = match errors.0.len() {
                    1 => "1 error".to_owned(),
                    count => format!("{count} errors"),
                };
                Err(Failure::Misused(anyhow!("{name}: {count}\n{errors}")))
            }
        }
    }
}

/// Reads a whole document.
type Read = for<'a> fn(&Cursor<'a>, &mut Imported<'a>);

impl<'a> Imported<'a> {
    /// Adds a rule that was read from `origin`.
    fn add(&mut self, rule: DescriptorRule, origin: &Cursor<'a>) {
        if let Err(error) = rule.validate() {
            origin.reject("", error.to_string());
        }
        self.rules.push(rule);
        self.origins.push(origin.clone());
    }

    /// Reports rules that contradict each other.
    fn check(&self, document: &Cursor<'_>) {
        let complete = document.is_valid();
        for found in DescriptorRule::conflicts(&self.rules) {
            // Duplicate keys are reported already. A missing rule can be one that could not be
            // read.
            if found.field == "entries" || (found.earlier.is_none() && !complete) {
                continue;
            }
            let message = match found.earlier {
                Some(earlier) => format!("duplicate of {}", self.origins[earlier].remark("", "").place),
                None => format!("{}: {}", found.field, found.message),
            };
            self.origins[found.index].reject("", message);
        }
    }
}

/// Returns the configuration file, and notes about it.
fn translate(text: &str, product: &str, read: Read) -> Result<(String, Vec<ConfigError>), ConfigErrors> {
    let document = Document::parse(text);
    let (yaml, notes) = {
        let root = document.root();
        let mut imported = Imported::default();
        if root.is_empty() && root.is_valid() {
            root.reject("", "the file is empty");
        } else if root.is_valid() {
            read(&root, &mut imported);
            imported.check(&root);
        }
        (write::descriptors(&imported.rules), imported.notes)
    };
    document.finish()?;
    Ok((format!("# Converted from {product} by pacegate import.\n{yaml}"), notes))
}
