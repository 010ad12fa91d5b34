//! Connects to the stores and the catalog of a configuration. Errors have a hint what to do.

use std::time::Duration;

use anyhow::anyhow;
use pacegate::Stores;
use pacegate_catalog::{Catalog, CatalogOptions};
use pacegate_config::{CatalogConfig, Config};
use pacegate_connect::ConnectError;

/// Time between two attempts to open the catalog.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Connects to all stores of `config`. With `wait`, retries until each store is available.
pub(crate) async fn connect(config: &Config, wait: bool) -> anyhow::Result<Stores> {
    pacegate_connect::connect(config, wait).await.map_err(|error| {
        let hint = match &error {
            ConnectError::Store { source, .. } if !source.is_permanent() => {
                " (--wait-for-store retries until it is available)"
            }
            _ => "",
        };
        anyhow!("{error}{hint}")
    })
}

/// Opens the catalog. With `wait`, retries until it is available.
pub(crate) async fn open_catalog(config: &CatalogConfig, wait: bool) -> anyhow::Result<Catalog> {
    loop {
        let options = CatalogOptions { audit_key: config.audit_key.clone(), ..CatalogOptions::default() };
        let opened = match Catalog::open_with(&config.url, options).await {
            // Detects a read-only catalog now instead of at the first change.
            Ok(catalog) => catalog.probe_write().await.map(|()| catalog),
            Err(error) => Err(error),
        };
        match opened {
            Ok(catalog) => return Ok(catalog),
            Err(error) if wait && error.is_unavailable() => {
                tracing::warn!(%error, "catalog unavailable; retrying in 1 s");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                let hint = if error.is_unavailable() {
                    " (--wait-for-store retries until it is available)"
                } else {
                    ""
                };
                return Err(anyhow!("catalog: {error}{hint}"));
            }
        }
    }
}
