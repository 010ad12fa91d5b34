//! The Redis store: the same counters for a whole fleet, on a single server, with Sentinel or in a
//! Redis Cluster.
//!
//! One script (`check.lua`) decides next to the data, atomically and in one round trip, with the
//! arithmetic of `pacegate-core`.
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
//! # Invariants
//!
//! - A charge must never be sent again if it may have run, unless it has an idempotency key.
//! - The crate must never decide how long a request waits or what a failure means for it. That is
//!   the task of `pacegate_store::GuardedStore`.
//! - Decisions must never depend on the expiry of keys: their time to live only reclaims memory.
//! - Time is the server's.
//!
//! # The script
//!
//! Redis runs a script without interruption, so one script does everything in one round trip. It
//! reads and decides first and writes last. A chain is evaluated in two passes: first all limits,
//! then each one again to charge it. This costs a second GET, but one piece of code without
//! functions covers every case. Redis executes the whole file for each call, and creating a Lua
//! function costs about a thousand instructions. The common path therefore has none, and rare cases
//! create theirs when needed. An entry of a sliding log carries the running total, so that the live
//! sum needs only the first and the last live entry. The reply is packed binary, which is cheaper
//! for both sides than twelve integers.
//!
//! # What is sent again
//!
//! Every error is classified. A command with an error reply did not run (NOSCRIPT, MOVED, ASK,
//! TRYAGAIN, LOADING, READONLY …). It is sent again, at most three times within 42 ms. A command
//! without a connection did not run either. After the first byte is written, a command may have
//! run, and its failure is final, unless an idempotency key, a peek or a reset makes it repeatable.
//! The driver task of each connection reports when it ends, so that nothing is written into a
//! connection that is known to be dead.
//!
//! # Connections
//!
//! Two connections per server, chosen by the identity's slot, keep Redis busy while replies are in
//! flight. There is no pool and no batching timer: commands of concurrent callers that meet at a
//! connection's writer leave in one packet, and a single one leaves at once.
//!
//! # Cluster
//!
//! All limits of one identity share a hash tag, so they are charged in one step. A chain over
//! several identities is charged part by part and refunded exactly if a later part denies. The
//! crate routes commands itself, because the cluster connection of the client library has its own
//! retries.
//!
//! # Where to go next
//!
//! `check.lua` has the decision, `script.rs` its arguments and replies, `keys.rs` key names and
//! slots, `connection.rs` a connection that reconnects, `sentinel.rs` and `cluster.rs` the
//! discovery of primaries, and `store.rs` the routing. `docs/redis.md` describes operation.

mod cluster;
mod connection;
mod connector;
mod error;
mod keys;
mod new_keys;
mod script;
mod sentinel;
mod store;
mod url;
mod variants;

pub use connector::{RedisOptions, TlsFiles};
pub use store::RedisStore;
pub use url::{InvalidRedisUrl, RedisUrl};
