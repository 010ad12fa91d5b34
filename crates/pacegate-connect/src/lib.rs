//! Connects a [`Limiter`] to what its configuration names: counters in memory, in Redis or in a database, or a Pacegate service that decides.
//!
//! ```no_run
//! use pacegate::Check;
//!
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! // mode: embedded counts in the stores that the file names; mode: service asks a service.
//! let limiter = pacegate_connect::from_config("pacegate.yaml").await?;
//! let decision = limiter.check(Check::key("user-123").plan("gold")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The features `redis`, `sql` and `service` compile what they are named after; all are on by default. A configuration that
//! names something that is not compiled in is an error that names the feature.
//!
//! This is the one place that knows which kinds of stores there are. It decides nothing.

#[cfg(feature = "service")]
mod convert;
mod follow;
#[cfg(feature = "service")]
mod service;
mod stores;

/// The guide's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Guide;

use std::path::{Path, PathBuf};
use std::pin::Pin;

use pacegate::{InvalidRules, Limiter, StoreError};
use pacegate_config::{Config, ConfigErrors, ServiceConfig};
use thiserror::Error;

pub use follow::{Watch, follow};
#[cfg(feature = "service")]
pub use service::Service;
pub use stores::{connect, url_errors};

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

/// Makes a limiter from a file and the environment: reads them, connects to what they name, and compiles plans and rules.
///
/// ```no_run
/// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = pacegate_connect::from_config("pacegate.yaml").follow().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The future returns [`ConnectError`], with every mistake of the file.
pub fn from_config(path: impl AsRef<Path>) -> FromConfig {
    FromConfig { path: path.as_ref().to_owned(), follow: false }
}

/// Makes a limiter from a configuration that was read already.
///
/// # Errors
/// [`ConnectError`].
pub async fn from_parsed(config: &Config) -> Result<Limiter, ConnectError> {
    match &config.service {
        None => Ok(config.limiter_with(connect(config, false).await?)?),
        Some(service) => ask_service(config, service),
    }
}

#[cfg(feature = "service")]
fn ask_service(config: &Config, service: &ServiceConfig) -> Result<Limiter, ConnectError> {
    let service = Service::new(service, config.store_timeout)?;
    let local = config.limiter_with(pacegate::Stores::default())?;
    Ok(local.with_remote(std::sync::Arc::new(service), config.failure_mode))
}

#[cfg(not(feature = "service"))]
fn ask_service(_config: &Config, _service: &ServiceConfig) -> Result<Limiter, ConnectError> {
    Err(ConnectError::Service { field: "url", reason: needs_feature("service") })
}

/// Says that the configuration names something that was not compiled in.
#[cfg(not(all(feature = "redis", feature = "service", feature = "sql")))]
fn needs_feature(name: &str) -> String {
    format!("needs the cargo feature `{name}` of pacegate-connect")
}

/// A limiter to be made from a file; `.await` makes it. See [`from_config`].
#[derive(Debug)]
#[must_use = "nothing is read until it is awaited"]
pub struct FromConfig {
    path: PathBuf,
    follow: bool,
}

impl FromConfig {
    /// Follows changes of the file for as long as the runtime runs, as [`follow()`] does.
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
            // A change while the file is being read is noticed too.
            let watch = Watch::new([self.path.clone()]);
            let limiter = from_parsed(&Config::load(Some(&self.path))?).await?;
            if self.follow {
                tokio::spawn(follow::follow_from(watch, self.path, limiter.clone()));
            }
            Ok(limiter)
        })
    }
}
