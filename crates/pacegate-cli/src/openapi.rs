//! `pacegate openapi`: the OpenAPI document.

use anyhow::Context;
use clap::Args;

use crate::Failure;
use crate::output::print;

/// Prints the OpenAPI 3.1 document of the REST API, the same as a service serves at /openapi.json.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  pacegate openapi > openapi.json")]
pub(crate) struct OpenApi {}

impl OpenApi {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let document = pacegate_server::openapi().context("could not build the document")?;
        Ok(print(format!("{document}\n").as_bytes())?)
    }
}
