//! `pacegate import`: turns other products' limit files into one for Pacegate, and refuses by name what it cannot say.

mod cel;
mod envoy;
mod limitador;
mod write;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use pacegate::DescriptorRule;
use pacegate_config::reading::{Field, Mistakes};
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
struct Imported {
    rules: Vec<DescriptorRule>,
    /// Where each rule stands in the file.
    origins: Vec<ConfigError>,
    /// What is different here, and what was left out because it limits nothing.
    notes: Vec<ConfigError>,
    mistakes: Mistakes,
}

impl Import {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let (file, product, read): (_, _, fn(Field, &mut Imported)) = match self.command {
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

impl Imported {
    /// Adds a rule that `origin` stands for.
    fn add(&mut self, rule: DescriptorRule, origin: ConfigError) {
        if let Err(error) = rule.validate() {
            self.mistakes.push(ConfigError { message: error.to_string(), ..origin.clone() });
        }
        self.rules.push(rule);
        self.origins.push(origin);
    }

    /// Rules that cannot be in force together are problems of the file they come from.
    fn check(&mut self) {
        let complete = self.mistakes.clone().finish().is_ok();
        for found in DescriptorRule::contradictions(&self.rules) {
            // What is the same key twice has been said; and a rule that could not be read may be the one that is missing.
            if found.field == "entries" || (found.earlier.is_none() && !complete) {
                continue;
            }
            let message = match found.earlier {
                Some(earlier) => format!("limits the same as {}", self.origins[earlier].place),
                None => format!("{}: {}", found.field, found.message),
            };
            self.mistakes.push(ConfigError { message, ..self.origins[found.place].clone() });
        }
    }
}

/// The file for Pacegate, with what there is to say about it.
fn translate(
    text: &str,
    product: &str,
    read: fn(Field, &mut Imported),
) -> Result<(String, Vec<ConfigError>), ConfigErrors> {
    let mut imported = Imported::default();
    if let Some(document) = Field::parse(text, &mut imported.mistakes) {
        if document.is_empty() {
            document.refuse::<()>(&mut imported.mistakes, "there is nothing in it");
        } else {
            read(document, &mut imported);
            imported.check();
        }
    }
    imported.mistakes.finish()?;
    let yaml = format!("# From {product}, by pacegate import.\n{}", write::descriptors(&imported.rules));
    Ok((yaml, imported.notes))
}
