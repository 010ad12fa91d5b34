//! `pacegate audit`: the audit trail.

use anyhow::bail;
use clap::{Args, Subcommand};

use crate::Failure;
use crate::catalog::{self, CatalogLocation, Missing};
use crate::output::say;

/// Works with the audit trail.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says whether every record is as it was written and none is missing.
    #[command(after_help = "Example:\n  pacegate audit verify --catalog sqlite://pacegate.db")]
    Verify {
        #[command(flatten)]
        catalog: CatalogLocation,
    },
}

impl Audit {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Command::Verify { catalog } = self.command;
        catalog::run(&catalog, Missing::Refused, async |catalog| {
            let check = catalog.audit_verify().await?;
            if let Some(sequence) = check.first_broken {
                bail!(
                    "the audit trail is broken: record {sequence} is missing or not as it was written; {} before it are intact",
                    check.records
                );
            }
            say(&format!("the audit trail is intact: {} records", check.records));
            Ok(())
        })
    }
}
