//! `pacegate audit`: the audit trail.

use anyhow::bail;
use clap::{Args, Subcommand};
use pacegate_catalog::AuditHead;

use crate::Failure;
use crate::catalog::{self, CatalogLocation, Missing};
use crate::output::say;

/// Verifies and seals the audit trail.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Verifies the audit trail, and that rules, plans, users, overrides and keys match it.
    #[command(
        after_help = "Example:\n  pacegate audit verify --catalog sqlite://pacegate.db\n\nStore the head that it prints on another machine and compare it later:\n  \
                      pacegate audit verify --expect-head 12:9f86d0…"
    )]
    Verify {
        #[command(flatten)]
        catalog: CatalogLocation,
        /// A head that was printed earlier. The trail must still contain that record.
        #[arg(long, value_name = "SEQUENCE:HASH")]
        expect_head: Option<AuditHead>,
    },
    /// Accepts the current content of the catalog and restarts verification from here.
    #[command(
        after_help = "Use it after the audit key was lost or replaced, or after tables were edited on purpose. The trail records it.\n\nExample:\n  \
                      pacegate audit seal --catalog sqlite://pacegate.db"
    )]
    Seal {
        #[command(flatten)]
        catalog: CatalogLocation,
    },
}

impl Audit {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Verify { catalog, expect_head } => {
                catalog::run(&catalog, Missing::Rejected, async |catalog| {
                    let check = catalog.audit_verify(expect_head.as_ref()).await?;
                    if !check.is_intact() {
                        let mut problems: Vec<String> =
                            check.problems.iter().map(|problem| format!("  {problem}")).collect();
                        if check.unnamed > 0 {
                            problems.push(format!("  and {} more", check.unnamed));
                        }
                        bail!(
                            "the audit trail is broken; {} records are intact\n{}",
                            check.records,
                            problems.join("\n")
                        );
                    }
                    if check.head.sequence == 0 {
                        say("the audit trail is empty");
                        return Ok(());
                    }
                    say(&format!("the audit trail is intact: {} records", check.records));
                    say(&format!("head: {}", check.head));
                    Ok(())
                })
            }
            Command::Seal { catalog } => catalog::run(&catalog, Missing::Rejected, async |catalog| {
                let head = catalog.audit_seal(&catalog::actor()).await?;
                say(&format!("sealed; head: {head}"));
                Ok(())
            }),
        }
    }
}
