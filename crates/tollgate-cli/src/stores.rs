//! Connects to the stores that a configuration names. This is the one place that knows which kinds there are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tollgate::{Config, MemoryStore, Store, StoreConfig, StoreError, Stores};
use tollgate_redis::{RedisOptions, RedisStore, RedisUrl, TlsFiles};

/// How long to wait between attempts to reach a store at the start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Everything that is wrong with the stores' URLs, each with its place; none of it shows a password.
pub(crate) fn mistakes(config: &Config) -> Vec<String> {
    let remote = config.stores.iter().filter(|store| !store.is_memory());
    let wrong = |store: &StoreConfig| {
        let error = if RedisUrl::is_redis(&store.url) {
            store.url.parse::<RedisUrl>().err()?.to_string()
        } else {
            "must be memory: or start with redis://, rediss://, redis+sentinel:// or redis+cluster://".into()
        };
        let place = if store.place.is_empty() { "--store" } else { &store.place };
        Some(format!("{place}: stores.{}.url: {error}", store.name))
    };
    remote.filter_map(wrong).collect()
}

/// Connects to all stores of `config`. With `wait`, a store that cannot be reached is tried until it can, and every attempt says so.
pub(crate) async fn connect(config: &Config, wait: bool) -> anyhow::Result<Stores> {
    let mut stores = Stores::default();
    for store in &config.stores {
        stores = if store.is_memory() {
            stores.and_memory(&store.name, Arc::new(MemoryStore::new(store.memory)))
        } else {
            stores.and_remote(&store.name, connect_one(store, wait).await?, config.store_timeout)
        };
    }
    Ok(stores)
}

async fn connect_one(store: &StoreConfig, wait: bool) -> anyhow::Result<Arc<dyn Store>> {
    let name = &store.name;
    let url: RedisUrl = store.url.parse().with_context(|| format!("store `{name}`"))?;
    let options = RedisOptions {
        tls: TlsFiles {
            authority: store.tls.ca.clone(),
            client: store.tls.cert.clone().zip(store.tls.key.clone()),
        },
        connections: store.connections.unwrap_or(RedisOptions::new(url.clone()).connections),
        url,
    };
    loop {
        match RedisStore::connect(options.clone()).await {
            Ok(redis) => {
                tracing::info!(store = name, url = %options.url, "connected");
                return Ok(Arc::new(redis));
            }
            Err(error) if wait && !error.is_permanent() => {
                tracing::warn!(store = name, url = %options.url, %error, "the store cannot be reached; trying again in a second");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(explain(name, &error)),
        }
    }
}

fn explain(name: &str, error: &StoreError) -> anyhow::Error {
    let hint = if error.is_permanent() { "" } else { " (--wait-for-store waits for it)" };
    anyhow!("store `{name}`: {error}{hint}")
}
