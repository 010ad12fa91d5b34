//! Connects to the stores of a configuration. This is the only module that knows all kinds of
//! stores.

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    MemoryStore, StoreError, Stores,
    store::{ShardedStore, Store},
};
use pacegate_config::{Config, ConfigError, StoreConfig};

use crate::ConnectError;

/// Time between attempts to connect to a store at startup.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Returns every error in the URLs of the stores, each with its location. No error contains a
/// password.
pub fn url_errors(config: &Config) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for store in config.stores.iter().filter(|store| !store.is_memory()) {
        for (index, url) in store.urls().iter().enumerate() {
            if let Some(message) = Target::of(config, store, url).err() {
                let place = if store.place.is_empty() { "--store" } else { &store.place };
                let field = if store.shards.is_empty() { "url".into() } else { format!("shards[{index}]") };
                let path = format!("stores.{}.{field}", store.name);
                errors.push(ConfigError { place: place.to_owned(), path, message });
            }
        }
    }
    errors
}

/// Connects to all stores of `config`. With `wait`, retries until an unavailable store is
/// reachable, and logs every attempt.
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
            let target = Target::of(config, store, url)
                .map_err(|reason| ConnectError::Url { store: store.name.clone(), reason })?;
            shards.push(connect_target(&store.name, &target, wait).await.map_err(failed)?);
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

/// A store that can be connected to.
enum Target {
    #[cfg(feature = "redis")]
    Redis(Box<pacegate_redis::RedisOptions>),
    #[cfg(feature = "sql")]
    Sql(Box<pacegate_sql::SqlOptions>),
}

impl Target {
    fn of(config: &Config, store: &StoreConfig, url: &str) -> Result<Self, String> {
        match url.split_once("://").map_or("", |(scheme, _)| scheme) {
            "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => Self::redis(config, store, url),
            "mysql" | "postgres" => Self::sql(store, url),
            _ => Err("must be memory: or start with redis://, rediss://, redis+sentinel://, redis+cluster://, mysql:// or postgres://".into()),
        }
    }

    #[cfg(feature = "redis")]
    fn redis(config: &Config, store: &StoreConfig, url: &str) -> Result<Self, String> {
        use pacegate_redis::{InvalidRedisUrl, RedisOptions, RedisUrl, TlsFiles};

        let url: RedisUrl = url.parse().map_err(|error: InvalidRedisUrl| error.to_string())?;
        let mut options = RedisOptions::new(url);
        options.caller_timeout = config.store_timeout;
        options.connections = store.connections.unwrap_or(options.connections);
        options.new_keys_per_second = store.new_keys_per_second;
        if options.connections > RedisOptions::CONNECTIONS_MAX {
            return Err(format!(
                "`connections` must be at most {} for Redis, got {}",
                RedisOptions::CONNECTIONS_MAX,
                options.connections
            ));
        }
        let tls = &store.tls;
        options.tls = TlsFiles { authority: tls.ca.clone(), client: tls.cert.clone().zip(tls.key.clone()) };
        Ok(Self::Redis(Box::new(options)))
    }

    #[cfg(not(feature = "redis"))]
    fn redis(_config: &Config, _store: &StoreConfig, _url: &str) -> Result<Self, String> {
        Err(crate::needs_feature("redis"))
    }

    #[cfg(feature = "sql")]
    fn sql(store: &StoreConfig, url: &str) -> Result<Self, String> {
        let mut options = pacegate_sql::SqlOptions::new(url).map_err(|error| error.to_string())?;
        options.connections = store.connections.unwrap_or(options.connections);
        let tls = &store.tls;
        let client = tls.cert.as_deref().zip(tls.key.as_deref());
        if tls.ca.is_some() || client.is_some() {
            options = options.with_tls(tls.ca.as_deref(), client);
        }
        Ok(Self::Sql(Box::new(options)))
    }

    #[cfg(not(feature = "sql"))]
    fn sql(_store: &StoreConfig, _url: &str) -> Result<Self, String> {
        Err(crate::needs_feature("sql"))
    }

    async fn connect(&self) -> Result<Arc<dyn Store>, StoreError> {
        match *self {
            #[cfg(feature = "redis")]
            Self::Redis(ref options) => {
                Ok(Arc::new(pacegate_redis::RedisStore::connect((**options).clone()).await?))
            }
            #[cfg(feature = "sql")]
            Self::Sql(ref options) => {
                Ok(Arc::new(pacegate_sql::SqlStore::connect((**options).clone()).await?))
            }
        }
    }
}

async fn connect_target(name: &str, target: &Target, wait: bool) -> Result<Arc<dyn Store>, StoreError> {
    loop {
        match target.connect().await {
            Ok(store) => {
                tracing::info!(store = name, "connected");
                return Ok(store);
            }
            Err(error) if wait && !error.is_permanent() => {
                tracing::warn!(store = name, %error, "store unavailable; retrying in 1 s");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn store_without_its_feature_is_an_error_that_names_the_feature() {
        let stores = [
            ("redis://127.0.0.1:1", "redis", cfg!(feature = "redis")),
            ("postgres://user@127.0.0.1:1/db", "sql", cfg!(feature = "sql")),
        ];
        for (url, feature, is_on) in stores {
            let config = Config::parse(&format!("stores: {{default: {{url: \"{url}\"}}}}")).unwrap();
            let expected =
                format!("stores.default.url: requires the cargo feature `{feature}` of pacegate-connect");
            let found = url_errors(&config);
            assert_eq!(found.is_empty(), is_on, "{found:?}");
            assert!(found.iter().all(|error| error.to_string().ends_with(&expected)), "{found:?}");
        }
    }
}
