//! Connects to the stores that a configuration names. This is the one place that knows which kinds there are.

use std::sync::Arc;
use std::time::Duration;

use pacegate::{MemoryStore, ShardedStore, Store, StoreError, Stores};
use pacegate_config::{Config, StoreConfig};
use pacegate_redis::{RedisOptions, RedisStore, RedisUrl, TlsFiles};
use pacegate_sql::{SqlOptions, SqlStore};

use crate::ConnectError;

/// How long to wait between attempts to reach a store at the start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Everything that is wrong with the stores' URLs, each with its place; none of it shows a password.
pub fn mistakes(config: &Config) -> Vec<String> {
    let mut mistakes = Vec::new();
    for store in config.stores.iter().filter(|store| !store.is_memory()) {
        for url in store.urls() {
            if let Err(error) = Place::of(config, store, url) {
                let place = if store.place.is_empty() { "--store" } else { &store.place };
                mistakes.push(format!("{place}: stores.{}.url: {error}", store.name));
            }
        }
    }
    mistakes
}

/// Connects to all stores of `config`. With `wait`, a store that cannot be reached is tried until it can, and every attempt says so.
///
/// # Errors
/// [`ConnectError`] with the name of the store.
pub async fn connect(config: &Config, wait: bool) -> Result<Stores, ConnectError> {
    let mut stores = Stores::default();
    for store in &config.stores {
        if store.is_memory() {
            stores = stores.and_memory(&store.name, Arc::new(MemoryStore::new(store.memory)));
            continue;
        }
        let failed = |source| ConnectError::Store { store: store.name.clone(), source };
        let mut shards = Vec::new();
        for url in store.urls() {
            let place = Place::of(config, store, url)
                .map_err(|reason| ConnectError::Url { store: store.name.clone(), reason })?;
            shards.push(connect_one(&store.name, &place, wait).await.map_err(failed)?);
        }
        let remote: Arc<dyn Store> = match shards.pop() {
            Some(only) if shards.is_empty() => only,
            last => {
                shards.extend(last);
                Arc::new(ShardedStore::try_new(shards).map_err(failed)?)
            }
        };
        stores = stores.and_remote(&store.name, remote, config.store_timeout);
    }
    Ok(stores)
}

/// A place that can be connected to.
enum Place {
    Redis(Box<RedisOptions>),
    Sql(Box<SqlOptions>),
}

impl Place {
    fn of(config: &Config, store: &StoreConfig, url: &str) -> Result<Self, String> {
        let tls = &store.tls;
        let client = tls.cert.as_deref().zip(tls.key.as_deref());
        if RedisUrl::is_redis(url) {
            let url: RedisUrl =
                url.parse().map_err(|error: pacegate_redis::InvalidRedisUrl| error.to_string())?;
            let mut options = RedisOptions::new(url);
            options.patience = config.store_timeout;
            options.connections = store.connections.unwrap_or(options.connections);
            options.new_keys_per_second = store.new_keys_per_second;
            if options.connections > RedisOptions::CONNECTIONS_MAX {
                return Err(format!(
                    "connections must be at most {} for Redis",
                    RedisOptions::CONNECTIONS_MAX
                ));
            }
            let client = client.map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
            options.tls = TlsFiles { authority: tls.ca.clone(), client };
            return Ok(Self::Redis(Box::new(options)));
        }
        if url.starts_with("mysql://") || url.starts_with("postgres://") {
            let mut options = SqlOptions::new(url).map_err(|error| error.to_string())?;
            options.connections = store.connections.unwrap_or(options.connections);
            if tls.ca.is_some() || client.is_some() {
                options = options.with_tls(tls.ca.as_deref(), client);
            }
            return Ok(Self::Sql(Box::new(options)));
        }
        Err("must be memory: or start with redis://, rediss://, redis+sentinel://, redis+cluster://, mysql:// or postgres://".into())
    }

    async fn connect(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Self::Redis(options) => Arc::new(RedisStore::connect(RedisOptions::clone(options)).await?),
            Self::Sql(options) => Arc::new(SqlStore::connect(SqlOptions::clone(options)).await?),
        })
    }
}

async fn connect_one(name: &str, place: &Place, wait: bool) -> Result<Arc<dyn Store>, StoreError> {
    loop {
        match place.connect().await {
            Ok(store) => {
                tracing::info!(store = name, "connected");
                return Ok(store);
            }
            Err(error) if wait && !error.is_permanent() => {
                tracing::warn!(store = name, %error, "the store cannot be reached; trying again in a second");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}
