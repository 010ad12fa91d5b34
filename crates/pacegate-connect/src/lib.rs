//! Connects a [`Limiter`] to what its configuration names: counters in memory, in Redis or in a database, or a Pacegate service that decides.
//!
//! ```no_run
//! use pacegate::{Check, Limiter};
//! use pacegate_connect::FromConfig;
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! // mode: embedded counts in the stores that the file names; mode: service asks a service.
//! let limiter = Limiter::from_config("pacegate.yaml").await?;
//! let decision = limiter.check(&Check::key("user-123").plan("gold")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! This is the one place that knows which kinds of stores there are. It decides nothing.

mod convert;
mod follow;
mod service;
mod stores;

/// The guide's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Guide;

use std::path::Path;

use pacegate::{InvalidRules, Limiter, StoreError};
use pacegate_config::{Config, ConfigErrors};
use thiserror::Error;

pub use follow::{Watch, follow};
pub use service::Service;
pub use stores::{connect, mistakes};

/// Why a limiter could not be made from a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The file, or the environment, is not valid.
    #[error("the configuration is not valid:\n{0}")]
    Config(#[from] ConfigErrors),
    /// The rules contradict each other.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
    /// A store's URL cannot be used.
    #[error("store `{store}`: {reason}")]
    Url {
        /// The store.
        store: String,
        /// What is wrong with its URL, without any password in it.
        reason: String,
    },
    /// A store cannot be reached or does not let us in.
    #[error("store `{store}`: {source}")]
    Store {
        /// The store.
        store: String,
        /// What went wrong.
        source: StoreError,
    },
    /// The service's address or files cannot be used.
    #[error("service.{field}: {reason}")]
    Service {
        /// The field of the configuration.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Makes a limiter from a configuration.
pub trait FromConfig: Sized {
    /// Reads a file and the environment, connects to what they name, and compiles plans and rules.
    ///
    /// # Errors
    /// [`ConnectError`], with every mistake of the file.
    fn from_config(path: impl AsRef<Path> + Send) -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// The same from a configuration that was read already.
    ///
    /// # Errors
    /// [`ConnectError`].
    fn from_parsed(config: &Config) -> impl Future<Output = Result<Self, ConnectError>> + Send;
}

impl FromConfig for Limiter {
    async fn from_config(path: impl AsRef<Path> + Send) -> Result<Self, ConnectError> {
        let config = Config::load(Some(path.as_ref()))?;
        Self::from_parsed(&config).await
    }

    async fn from_parsed(config: &Config) -> Result<Self, ConnectError> {
        match &config.service {
            None => Ok(config.limiter_with(connect(config, false).await?)?),
            Some(service) => {
                let service = Service::new(service, config.store_timeout)?;
                let local = config.limiter_with(pacegate::Stores::default())?;
                Ok(local.with_remote(std::sync::Arc::new(service), config.failure_mode))
            }
        }
    }
}
