//! `pacegate import`: turns other products' limit files into one for Pacegate, and refuses by name
//! what it cannot say.

mod cel;
mod envoy;
mod limitador;
mod write;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pacegate::descriptor::DescriptorRule;
use pacegate_config::reading::{Cursor, Document};
use pacegate_config::{ConfigError, ConfigErrors};

use crate::Failure;
use crate::output::complain;

/// Turns other products' limit files into one for Pacegate.
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads a file of Envoy's rate limit service.
    #[command(after_help = "Example:\n  pacegate import envoy ratelimit.yaml > pacegate.yaml")]
    Envoy {
        /// The file.
        file: PathBuf,
    },
    /// Reads a limits file of Limitador.
    #[command(after_help = "Example:\n  pacegate import limitador limits.yaml > pacegate.yaml")]
    Limitador {
        /// The file.
        file: PathBuf,
    },
}

/// What was read so far.
#[derive(Debug, Default)]
struct Imported<'a> {
    rules: Vec<DescriptorRule>,
    /// The value that each rule was read from.
    origins: Vec<Cursor<'a>>,
    /// What is different here, and what was left out because it limits nothing.
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
                match std::io::stdout().lock().write_all(yaml.as_bytes()) {
                    // Whoever reads has seen enough, as `head` does.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                    Err(error) => Err(anyhow!(error).context("could not write the configuration").into()),
                    Ok(()) => Ok(()),
                }
            }
            Err(errors) => {
                let count = match errors.0.len() {
                    1 => "1 problem".to_owned(),
                    count => format!("{count} problems"),
                };
                Err(Failure::Misused(anyhow!("{name} cannot be imported: {count}\n{errors}")))
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

    /// Rules that cannot be in force together are problems of the file they come from.
    fn check(&self, document: &Cursor<'_>) {
        let complete = document.is_valid();
        for found in DescriptorRule::conflicts(&self.rules) {
            // A duplicate key is reported already, and a rule that could not be read may be the one
            // that is missing.
            if found.field == "entries" || (found.earlier.is_none() && !complete) {
                continue;
            }
            let message = match found.earlier {
                Some(earlier) => format!("limits the same as {}", self.origins[earlier].remark("", "").place),
                None => format!("{}: {}", found.field, found.message),
            };
            self.origins[found.index].reject("", message);
        }
    }
}

/// The file for Pacegate, with notes about it.
fn translate(text: &str, product: &str, read: Read) -> Result<(String, Vec<ConfigError>), ConfigErrors> {
    let document = Document::parse(text);
    let (yaml, notes) = {
        let root = document.root();
        let mut imported = Imported::default();
        if root.is_empty() && root.is_valid() {
            root.reject("", "there is nothing in it");
        } else if root.is_valid() {
            read(&root, &mut imported);
            imported.check(&root);
        }
        (write::descriptors(&imported.rules), imported.notes)
    };
    document.finish()?;
    Ok((format!("# From {product}, by pacegate import.\n{yaml}"), notes))
}
