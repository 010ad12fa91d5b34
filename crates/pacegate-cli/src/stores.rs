//! Connects to the stores and the catalog that a configuration names, and says what to do where that fails.

use std::time::Duration;

use anyhow::anyhow;
use pacegate::Stores;
use pacegate_catalog::{Catalog, CatalogOptions};
use pacegate_config::{CatalogConfig, Config};
use pacegate_connect::ConnectError;

/// How long to wait between attempts to reach the catalog at the start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Connects to all stores of `config`. With `wait`, a store that cannot be reached is tried until it can, and every attempt says so.
pub(crate) async fn connect(config: &Config, wait: bool) -> anyhow::Result<Stores> {
    pacegate_connect::connect(config, wait).await.map_err(|error| {
        let hint = match &error {
            ConnectError::Store { source, .. } if !source.is_permanent() => {
                " (--wait-for-store waits for it)"
            }
            _ => "",
        };
        anyhow!("{error}{hint}")
    })
}

/// Opens the catalog. With `wait`, one that cannot be reached is tried until it can.
pub(crate) async fn open_catalog(config: &CatalogConfig, wait: bool) -> anyhow::Result<Catalog> {
    loop {
        let options = CatalogOptions { audit_key: config.audit_key.clone(), ..CatalogOptions::default() };
        let opened = match Catalog::open_with(&config.url, options).await {
            // A catalog that refuses changes would be found out by the first of them.
            Ok(catalog) => catalog.probe_write().await.map(|()| catalog),
            Err(error) => Err(error),
        };
        match opened {
            Ok(catalog) => return Ok(catalog),
            Err(error) if wait && error.is_unavailable() => {
                tracing::warn!(%error, "the catalog cannot be reached; trying again in a second");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => {
                let hint = if error.is_unavailable() { " (--wait-for-store waits for it)" } else { "" };
                return Err(anyhow!("catalog: {error}{hint}"));
            }
        }
    }
}
