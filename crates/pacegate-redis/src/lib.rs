//! Counters in Redis: the same decisions across a fleet, on a single server, under Sentinel or in a Cluster.
//!
//! One script (`check.lua`) decides next to the data, atomically and in one round trip, with the arithmetic of `pacegate-core`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use pacegate_redis::{RedisOptions, RedisStore};
//! use pacegate_store::Store;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = RedisOptions::new("redis://127.0.0.1:6379".parse()?);
//! let store: Arc<dyn Store> = Arc::new(RedisStore::connect(options).await?);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - A charge is sent at most once. What surely did not run (no connection, NOSCRIPT, MOVED, ASK, TRYAGAIN, LOADING, READONLY …) is sent again, at most
//!   three times; what may have run is not, unless it has an idempotency key.
//! - All limits of one identity share a hash tag, so they are charged in one step on a Cluster too. A chain over several identities is, there, charged
//!   part by part and given back exactly when a later part denies.
//! - Time is the server's. Keys have a time to live that only collects garbage.
//!
//! # What it does not do
//!
//! It does not decide what a failure means for a request, nor how long a request may wait: that is `pacegate_store::GuardedStore`'s.

mod cluster;
mod connection;
mod connector;
mod error;
mod forget;
mod keys;
mod new_keys;
mod script;
mod sentinel;
mod store;
mod url;

pub use connector::{RedisOptions, TlsFiles};
pub use store::RedisStore;
pub use url::{InvalidRedisUrl, RedisUrl};
