//! The port between deciding and keeping: what a store is asked, what it answers, and where time comes from.
//!
//! A store applies a [`Command`], or a batch of them, each atomically, with the arithmetic of `pacegate-core`. The `pacegate-testkit` crate
//! has the behaviour suite that a store must pass; `pacegate-memory` is the one that needs nothing.
//!
//! ```
//! use pacegate_core::{Counter, Key, Limit};
//! use pacegate_store::{Charge, Command};
//!
//! let counter = Counter::new("logins", "ip", "");
//! let limit = Limit::per_minute(5).build()?;
//! let charges = [Charge::new(Key::new(&counter, "10.0.0.1", ""), &limit)];
//! let command = Command::take(&charges);
//! assert_eq!(command.charges.len(), 1);
//! # Ok::<(), pacegate_core::InvalidLimit>(())
//! ```
//!
//! Around a store that can fail, [`GuardedStore`] puts a deadline, a circuit breaker and the failure mode of each limit, so that every request gets an
//! answer in time; a large batch is decided in pieces, with a deadline each. Commands whose keys live in several places go through [`apply_in_parts`],
//! and batches with such commands through [`apply_spread`]. [`Batcher`] gathers the
//! requests of concurrent callers for stores that need few round trips.
//!
//! It knows no backend and no protocol.

mod batcher;
mod breaker;
mod calls;
mod clock;
mod detached;
mod error;
mod failure;
mod figure;
mod guard;
mod owned;
mod parts;
mod pieces;
mod shards;
mod spread;
mod store;

pub use batcher::{Asked, Batcher, Lane};
pub use breaker::BreakerState;
pub use calls::GuardedCalls;
pub use clock::Clock;
pub use detached::{Caller, Detachable, detachable};
pub use error::StoreError;
pub use failure::FailureMode;
pub use figure::{Figure, Figures, Gauge, Present};
pub use guard::{GuardedStore, StoreHealth, TRACES};
pub use owned::OwnedCharge;
pub use parts::{Part, apply_in_parts};
pub use pieces::PIECE_KEYS_MAX;
pub use shards::{ShardedStore, first_success};
pub use spread::{Spread, apply_spread, spread_piece};
pub use store::{
    Action, ApplyFuture, BatchFuture, Charge, Command, Idempotency, Outcome, ProbeFuture, Store,
};
