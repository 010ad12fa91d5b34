//! `pacegate keys`: API keys in the catalog.

use anyhow::Context;
use clap::{Args, Subcommand};
use pacegate::{
    Timestamp,
    store::{Clock, WallClock},
};
use pacegate_catalog::{Catalog, StoredKey};
use pacegate_config::Role;

use crate::catalog::{CatalogLocation, Missing};
use crate::output::say;
use crate::{Failure, catalog};

/// Works with API keys.
#[derive(Debug, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a key and prints its secret, this once.
    #[command(after_help = "Example:\n  pacegate keys create --role checker --name gateway --expires-in 90d")]
    Create {
        /// What it is for.
        #[arg(long, value_parser = Role::ALL.map(Role::name))]
        role: String,
        /// What people call it.
        #[arg(long)]
        name: Option<String>,
        /// How long it holds, like 90d or 12h; for ever unless it is given.
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
        #[command(flatten)]
        catalog: CatalogLocation,
    },
    /// Lists all keys, without their secrets.
    #[command(after_help = "Example:\n  pacegate keys list")]
    List {
        #[command(flatten)]
        catalog: CatalogLocation,
    },
    /// Takes a key back; services know within two seconds.
    #[command(after_help = "Example:\n  pacegate keys revoke 603234dd1e958ed4")]
    Revoke {
        /// The key's id: the part between the underscores.
        id: String,
        #[command(flatten)]
        catalog: CatalogLocation,
    },
}

impl Keys {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Create { role, name, expires_in, catalog } => {
                let expires_at = match expires_in.as_deref().map(humantime::parse_duration).transpose() {
                    Ok(duration) => duration.map(|duration| now().saturating_add(duration)),
                    Err(error) => {
                        return Err(Failure::Misused(anyhow::anyhow!(
                            "--expires-in: {error}; like 90d or 12h"
                        )));
                    }
                };
                catalog::run(&catalog, Missing::Made, async |catalog| {
                    create(&catalog, &role, name, expires_at).await
                })
            }
            Command::List { catalog } => {
                catalog::run(&catalog, Missing::Refused, async |catalog| list(&catalog).await)
            }
            Command::Revoke { id, catalog } => catalog::run(&catalog, Missing::Refused, async |catalog| {
                let key = catalog
                    .revoke_key(&catalog::actor(), &id, None)
                    .await
                    .with_context(|| format!("key {id}"))?;
                say(&format!("revoked {} ({}, {})", key.key_id, key.name, key.role));
                Ok(())
            }),
        }
    }
}

async fn create(
    catalog: &Catalog,
    role: &str,
    name: Option<String>,
    expires_at: Option<Timestamp>,
) -> anyhow::Result<()> {
    let name = name.unwrap_or_else(|| role.to_owned());
    let (key, secret) = catalog.create_key(&catalog::actor(), role, &name, expires_at).await?;
    say(&format!("key {} ({}, {}), its secret shown this once:", key.key_id, key.name, key.role));
    say(&secret);
    Ok(())
}

async fn list(catalog: &Catalog) -> anyhow::Result<()> {
    let keys = catalog.keys().await?;
    say(&format!("{:<16}  {:<8}  {:<8}  NAME", "ID", "ROLE", "STATE"));
    for key in keys {
        say(&format!("{:<16}  {:<8}  {:<8}  {}", key.key_id, key.role, state(&key), key.name));
    }
    Ok(())
}

fn state(key: &StoredKey) -> &'static str {
    match (key.revoked_at, key.is_live(now())) {
        (Some(_), _) => "revoked",
        (None, false) => "expired",
        (None, true) => "active",
    }
}

fn now() -> Timestamp {
    WallClock::new().now()
}
