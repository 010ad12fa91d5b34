//! The catalog, for commands that work on it without a running service.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use pacegate_catalog::{Actor, Catalog, CatalogOptions};
use pacegate_config::{CatalogConfig, Config};

use crate::Failure;
use crate::output::complain;

/// Which catalog a command works on.
#[derive(Debug, Args)]
pub(crate) struct CatalogLocation {
    /// Where the catalog is; overrides the file's catalog.url (sqlite://pacegate.db).
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// The configuration file that says where the catalog is.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What happens where there is no catalog yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is made, and that is said.
    Made,
    /// It is an error: an empty catalog would look as if all were well.
    Refused,
}

/// Opens the catalog and has `work` done with it.
pub(crate) fn run(
    location: &CatalogLocation,
    missing: Missing,
    work: impl AsyncFnOnce(Catalog) -> anyhow::Result<()>,
) -> Result<(), Failure> {
    let config = Config::load(location.config.as_deref());
    let config =
        config.map_err(|errors| Failure::Misused(anyhow!("the configuration is not valid:\n{errors}")))?;
    let CatalogConfig { url, audit_key, .. } = config.catalog;
    let url = location.catalog.clone().unwrap_or(url);
    if let Some(file) = Catalog::file(&url).context("catalog")?.filter(|file| !file.exists()) {
        if missing == Missing::Refused {
            let file = file.display();
            let hint = "the service makes it at its first start; --catalog says where it is";
            return Err(Failure::Failed(anyhow!("catalog: there is no {file} ({hint})")));
        }
        complain(&format!("note: made a new catalog, {}", file.display()));
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

/// Who changes something: whoever sits at the machine.
pub(crate) fn actor() -> Actor {
    Actor { key_id: "command line".into(), ..Actor::default() }
}
