//! `pacegate openapi`: prints the OpenAPI document.

use std::io::{ErrorKind, Write};

use anyhow::{Context, anyhow};
use clap::Args;

use crate::Failure;

/// Prints the OpenAPI 3.1 document of the REST API, as a running service has it at /openapi.json.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  pacegate openapi > openapi.json")]
pub(crate) struct OpenApi {}

impl OpenApi {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let document = pacegate_server::openapi().context("could not make the document")?;
        match writeln!(std::io::stdout().lock(), "{document}") {
            // Whoever reads has seen enough, as `head` does.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(anyhow!(error).context("could not write the document").into()),
            Ok(()) => Ok(()),
        }
    }
}
