//! The interface between the limiter and its stores: commands, outcomes, errors and the clock.
//!
//! A store applies a [`Command`], or a batch of them, each atomically, with the arithmetic of
//! `pacegate-core`.
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
//! # Invariants
//!
//! - This crate must never know a backend or a protocol.
//! - A [`GuardedStore`] must never let a single check wait longer than its deadline.
//! - A take in several parts must never admit more than the limits allow. If it fails half-way, too
//!   little remains, never too much.
//! - What a store has to guarantee is listed at [`Store`].
//!
//! # When a store fails
//!
//! [`GuardedStore`] gives each call a deadline and counts failures in a circuit breaker. It decides
//! takes and peeks by the [`FailureMode`] of their limits when the store does not. The breaker
//! stays open twice as long each time, up to 30 s.
//!
//! One task per guard probes the store ([`Store::probe`], one harmless command). While the store
//! responds, it is probed every second, and two failures in a row open the breaker, so that an
//! outage is noticed without traffic. While it fails, it is probed every half second. The first
//! success half-opens the breaker, so that a fleet recovers within two seconds without a stampede.
//! Guards made by [`GuardedStore::within`] are not probed: they follow the breaker of their parent
//! in addition to their own, and they do not affect readiness.
//!
//! A rejection (such as a wrong password) makes the node unready. A foreign value under one key is
//! logged as an error but does not: one key must not take a fleet out of its load balancer.
//!
//! # Large batches
//!
//! A batch is applied in pieces of at most 32 keys ([`Store::piece`]), each with a full deadline.
//! Calls on more than 16 keys share a fair semaphore of two permits, piece by piece. A single check
//! therefore waits behind at most two pieces, and batches share the store evenly. A piece that
//! misses its deadline counts as a failure of the store only if it has at most 32 keys and had the
//! full deadline: neither a large call nor an impatient caller opens the breaker that others share.
//! An all-or-nothing batch is one command and is never split.
//!
//! If the keys are spread over several locations, such as the nodes of a cluster or
//! [shards](ShardedStore), [`apply_spread`] runs the commands of a piece concurrently unless they
//! share an identity. A piece takes at most 16 round trips.
//!
//! # Commands in several parts
//!
//! Limits of one check may live in different stores or cluster slots. [`apply_in_parts`] charges
//! them in a fixed order and refunds exactly if a later part denies. The record of an idempotency
//! key is stored with the last part, which alone knows that all parts were admitted; it is looked
//! up first. Its location does not depend on the rules ([`Idempotency::home`]). The record contains
//! a digest of the limits; if they have changed, a repetition is answered by a peek at those in
//! force.
//!
//! Takes and refunds in parts own their data and are [`detachable`]. After a deadline or a
//! disconnect they continue in a bounded task, which waits for the call in progress and refunds
//! what was taken. A part whose outcome stays unknown stays charged.
//!
//! # Where to go next
//!
//! [`Store`] is the trait to implement, and the `pacegate-testkit` crate has the test suite that
//! every store must pass. [`Batcher`] collects concurrent requests for stores in which round trips
//! are expensive. `pacegate-memory` is the store without dependencies.

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

pub use batcher::{Batcher, Lane, Submitted};
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
