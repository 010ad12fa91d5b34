//! Access to the catalog for commands that do not need a running service.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use pacegate_catalog::{Actor, Catalog, CatalogOptions};
use pacegate_config::{CatalogConfig, Config};

use crate::Failure;
use crate::output::complain;

/// The catalog that a command uses.
#[derive(Debug, Args)]
pub(crate) struct CatalogLocation {
    /// The URL of the catalog. Overrides catalog.url of the file, sqlite://pacegate.db by default.
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// The configuration file with the URL of the catalog.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What happens if the catalog does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is created, with a note.
    Created,
    /// It is an error, because an empty catalog would hide a wrong path.
    Rejected,
}

/// Opens the catalog and runs `work` with it.
pub(crate) fn run(
    location: &CatalogLocation,
    missing: Missing,
    work: impl AsyncFnOnce(Catalog) -> anyhow::Result<()>,
) -> Result<(), Failure> {
    let config = Config::load(location.config.as_deref());
    let config =
        config.map_err(|errors| Failure::Misused(anyhow!("the configuration is invalid:\n{errors}")))?;
    let CatalogConfig { url, audit_key, .. } = config.catalog;
    let url = location.catalog.clone().unwrap_or(url);
    if let Some(file) = Catalog::file(&url).context("catalog")?.filter(|file| !file.exists()) {
        if missing == Missing::Rejected {
            let file = file.display();
            let hint = "`pacegate serve` creates it; --catalog sets another path";
            return Err(Failure::Failed(anyhow!("catalog: {file} does not exist ({hint})")));
        }
        complain(&format!("note: created a new catalog, {}", file.display()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    runtime.block_on(async {
        let options = CatalogOptions { audit_key, ..CatalogOptions::default() };
        let catalog = Catalog::open_with(&url, options).await.context("catalog")?;
        work(catalog).await
    })?;
    Ok(())
}

/// The actor of changes that are made on the command line.
pub(crate) fn actor() -> Actor {
    Actor { key_id: "command line".into(), ..Actor::default() }
}
