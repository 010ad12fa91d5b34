//! Creates a [`Limiter`] from a configuration: connects it to counters in memory, in Redis or in a
//! database, or to a Pacegate service that decides.
//!
//! ```no_run
//! use pacegate::Check;
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! // `mode: embedded` counts in the stores of the file; `mode: service` calls a service.
//! let limiter = pacegate_connect::from_config("pacegate.yaml").await?;
//! let decision = limiter.check(Check::key("user-123").plan("gold")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `redis`, `sql` and `service` compile the support that they are named after. All are on by
//! default. A configuration that needs a feature that is not compiled in is an error that names the
//! feature.
//!
//! # Invariants
//!
//! - This is the only crate that knows all kinds of stores.
//! - It must never decide on a check: decisions are made by the limiter, its stores, or the
//!   service.
//! - A password of a URL must never appear in an error.
//! - An invalid configuration must never replace the rules in force.
//! - A decision over gRPC contains the answer of every limit in microseconds, so it must equal the
//!   decision that an embedded limiter would have made. A test compares the two.
//!
//! # Where to go next
//!
//! - [`from_config`]: from a file to a limiter. [`FromConfig::follow`] applies later changes of the
//!   file.
//! - [`from_parsed`] and [`connect`]: the same steps for a configuration that is already parsed.
//! - `Service`: a Pacegate service over gRPC, as a [`Remote`](pacegate::remote::Remote).

#[cfg(feature = "service")]
mod convert;
mod follow;
#[cfg(feature = "service")]
mod service;
mod stores;

/// Compiles the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Guide;

use std::path::{Path, PathBuf};
use std::pin::Pin;

use pacegate::{InvalidRules, Limiter, StoreError};
use pacegate_config::{Config, ConfigErrors, ServiceConfig};
use thiserror::Error;

pub use follow::{Watch, follow, follow_from};
#[cfg(feature = "service")]
pub use service::Service;
pub use stores::{connect, url_errors};

/// Why a limiter could not be created from a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The file or the environment is not valid.
    #[error("invalid configuration:\n{0}")]
    Config(#[from] ConfigErrors),
    /// The rules are not valid.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
    /// The URL of a store is not valid.
    #[error("store `{store}`: {reason}")]
    Url {
        /// The store.
        store: String,
        /// What is wrong with its URL, without the password.
        reason: String,
    },
    /// A store is unavailable or rejects the connection.
    #[error("store `{store}`: {source}")]
    Store {
        /// The store.
        store: String,
        /// The error of the store.
        source: StoreError,
    },
    /// The address, key or TLS files of the service are not valid.
    #[error("service.{field}: {reason}")]
    Service {
        /// The field of the configuration.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// Creates a limiter from a file and the environment: reads them, connects to their stores or
/// service, and compiles plans and rules.
///
/// ```no_run
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = pacegate_connect::from_config("pacegate.yaml").follow().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The future returns [`ConnectError`], with every error of the file.
pub fn from_config(path: impl AsRef<Path>) -> FromConfig {
    FromConfig { path: path.as_ref().to_owned(), follow: false }
}

/// Creates a limiter from a configuration that is already parsed.
///
/// # Errors
/// [`ConnectError`] if a store is unavailable or the rules are not valid.
pub async fn from_parsed(config: &Config) -> Result<Limiter, ConnectError> {
    match &config.service {
        None => Ok(config.limiter_with(connect(config, false).await?)?),
        Some(service) => connect_service(config, service),
    }
}

#[cfg(feature = "service")]
fn connect_service(config: &Config, service: &ServiceConfig) -> Result<Limiter, ConnectError> {
    let service = Service::new(service, config.store_timeout)?;
    let local = config.limiter_with(pacegate::Stores::default())?;
    Ok(local.with_remote(std::sync::Arc::new(service), config.failure_mode))
}

#[cfg(not(feature = "service"))]
fn connect_service(_config: &Config, _service: &ServiceConfig) -> Result<Limiter, ConnectError> {
    Err(ConnectError::Service { field: "url", reason: needs_feature("service") })
}

/// The error for a configuration that needs a feature that is not compiled in.
#[cfg(not(all(feature = "redis", feature = "service", feature = "sql")))]
fn needs_feature(name: &str) -> String {
    format!("requires the cargo feature `{name}` of pacegate-connect")
}

/// Creates a limiter from a file when it is awaited. See [`from_config`].
#[derive(Debug)]
#[must_use = "the file is not read until this is awaited"]
pub struct FromConfig {
    path: PathBuf,
    follow: bool,
}

impl FromConfig {
    /// Applies later changes of the file for as long as the runtime runs, like [`follow()`].
    pub fn follow(mut self) -> Self {
        self.follow = true;
        self
    }
}

impl IntoFuture for FromConfig {
    type Output = Result<Limiter, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // Watch before the file is read, so that a change in between is noticed.
            let watch = Watch::new([self.path.clone()]);
            let limiter = from_parsed(&Config::load(Some(&self.path))?).await?;
            if self.follow {
                tokio::spawn(follow::follow_from(watch, self.path, limiter.clone()));
            }
            Ok(limiter)
        })
    }
}
