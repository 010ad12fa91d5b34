//! `pacegate keys`: API keys in the catalog.

use std::time::{Duration, UNIX_EPOCH};

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

/// Creates, lists and revokes API keys in the catalog.
#[derive(Debug, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Creates a key and prints its secret. The secret is shown only once.
    #[command(after_help = "Example:\n  pacegate keys create --role checker --name gateway --expires-in 90d")]
    Create {
        /// What the key may do: `checker` sends checks, `reader` reads, `admin` changes everything.
        #[arg(long, value_parser = Role::ALL.map(Role::name))]
        role: String,
        /// A name for people; the role if it is not given.
        #[arg(long)]
        name: Option<String>,
        /// Time after which the key expires, such as 90d or 12h. It never expires if this is not
        /// given.
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
        #[command(flatten)]
        catalog: CatalogLocation,
    },
    /// Lists all keys with their expiry and last use, without their secrets.
    ///
    /// Services record the last use of a key at most once a minute.
    #[command(after_help = "Example:\n  pacegate keys list")]
    List {
        #[command(flatten)]
        catalog: CatalogLocation,
    },
    /// Revokes a key. Services stop accepting it within two seconds.
    #[command(after_help = "Example:\n  pacegate keys revoke 603234dd1e958ed4")]
    Revoke {
        /// The id of the key: the part of its secret between the underscores.
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
                            "--expires-in: {error}; expected a duration such as 90d or 12h"
                        )));
                    }
                };
                catalog::run(&catalog, Missing::Created, async |catalog| {
                    create(&catalog, &role, name, expires_at).await
                })
            }
            Command::List { catalog } => {
                catalog::run(&catalog, Missing::Rejected, async |catalog| list(&catalog).await)
            }
            Command::Revoke { id, catalog } => catalog::run(&catalog, Missing::Rejected, async |catalog| {
                let key = catalog
                    .revoke_key(&catalog::actor(), &id, None)
                    .await
                    .with_context(|| format!("key {id}"))?;
                say(&format!("revoked key {} ({}, {})", key.key_id, key.name, key.role));
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
    say(&format!("created key {} ({}, {}); its secret is shown only once:", key.key_id, key.name, key.role));
    say(&secret);
    Ok(())
}

async fn list(catalog: &Catalog) -> anyhow::Result<()> {
    let keys = catalog.keys().await?;
    say(&row(["ID", "ROLE", "STATE", "EXPIRES", "LAST USED", "NAME"]));
    for key in keys {
        let [expires, used] = [key.expires_at, key.last_used_at].map(shown);
        say(&row([&key.key_id, &key.role, state(&key), &expires, &used, &key.name]));
    }
    Ok(())
}

fn row(columns: [&str; 6]) -> String {
    let [id, role, state, expires, used, name] = columns;
    format!("{id:<16}  {role:<8}  {state:<8}  {expires:<20}  {used:<20}  {name}")
}

/// A time as in 2030-01-31T12:00:00Z.
fn shown(time: Option<Timestamp>) -> String {
    let Some(time) = time else { return "never".to_owned() };
    let time = UNIX_EPOCH.checked_add(Duration::from_micros(time.as_micros()));
    time.map_or("?".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
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
