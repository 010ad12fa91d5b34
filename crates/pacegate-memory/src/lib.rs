//! The store inside the process: sharded, bounded, expiring as it goes, and synchronous.
//!
//! ```
//! use pacegate_core::{Cost, Counter, Key, Limit};
//! use pacegate_memory::MemoryStore;
//! use pacegate_store::Charge;
//!
//! let store = MemoryStore::default();
//! let counter = Counter::new("logins", "ip", "");
//! let limit = Limit::per_minute(1).build()?;
//! let charge = Charge::new(Key::new(&counter, "10.0.0.1", ""), &limit);
//! assert!(store.take(&charge, None)?.allowed);
//! assert!(!store.take(&charge, None)?.allowed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it keeps its promises
//!
//! A command locks the shards of its keys in ascending order, so that commands with several limits are atomic and cannot deadlock.
//! Keys whose state equals a fresh one are dropped a few at a time by the commands that pass by. The number of keys is bounded, and a
//! key that is limiting someone is never evicted: when all are live, new keys of a rule share one overflow counter.
//! What callers make up (ad-hoc limits, dimensions) has bounds of its own, so that it uses up neither the
//! places of rules nor their overflow counters. A limit without any place is answered by its failure mode,
//! and an idempotency key without a place is not recorded: limits hold, whatever callers send.
//!
//! It keeps nothing through a restart.

mod clock;
mod idempotency;
mod shard;
mod store;
mod sync;

pub use clock::{SystemClock, WallClock};
pub use store::{MemoryOptions, MemoryStore};
