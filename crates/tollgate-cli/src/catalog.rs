//! The catalog, for commands that work on it without a running service.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use tollgate::Config;
use tollgate_catalog::{Actor, Catalog};

use crate::Failure;

/// Which catalog a command works on.
#[derive(Debug, Args)]
pub(crate) struct CatalogLocation {
    /// Where the catalog is; overrides the file's catalog.url (sqlite://tollgate.db).
    #[arg(long, value_name = "URL")]
    catalog: Option<String>,
    /// The configuration file that says where the catalog is.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Opens the catalog and has `work` done with it.
pub(crate) fn run(
    location: &CatalogLocation,
    work: impl AsyncFnOnce(Catalog) -> anyhow::Result<()>,
) -> Result<(), Failure> {
    let url = match &location.catalog {
        Some(url) => url.clone(),
        None => {
            let config = Config::load(location.config.as_deref());
            config
                .map_err(|errors| Failure::Misused(anyhow!("the configuration is not valid:\n{errors}")))?
                .catalog_url
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("could not start the runtime")?;
    runtime.block_on(async {
        let catalog = Catalog::open(&url).await.context("catalog")?;
        work(catalog).await
    })?;
    Ok(())
}

/// Who changes something: whoever sits at the machine.
pub(crate) fn actor() -> Actor {
    Actor { key_id: "command line".into(), ..Actor::default() }
}
