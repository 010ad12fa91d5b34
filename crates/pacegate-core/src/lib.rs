//! Pure rate-limiting decisions: six exact algorithms, chains of limits, and nothing else.
//!
//! A store hands in a [`Limit`], the [`State`] it keeps for a key and the time; an [`Evaluation`] says whether the request has
//! room, and [`charge`](Evaluation::charge) produces the next state. Several limits are all evaluated before any is charged:
//!
//! ```
//! use std::time::Duration;
//! use pacegate_core::{Algorithm, Cost, Evaluation, Limit, Timestamp};
//!
//! let limit = Limit::try_new(Algorithm::SlidingLog, 2, Duration::from_secs(60))?;
//! let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
//!
//! let mut state = Evaluation::new(&limit, None, at(0), Cost::ONE).into_state();
//! assert_eq!(Evaluation::new(&limit, Some(&state), at(10), Cost::ONE).charge(&mut state).remaining, Some(0));
//! let denied = Evaluation::new(&limit, Some(&state), at(20), Cost::ONE).answer(Some(&state));
//! assert_eq!(denied.retry_at, Some(at(60)));
//! # Ok::<(), pacegate_core::InvalidLimit>(())
//! ```
//!
//! # What each algorithm promises
//!
//! | algorithm | at most this is admitted | state |
//! | --- | --- | --- |
//! | token bucket, leaky bucket, GCRA | burst + quota × t/window in any interval t | two integers |
//! | sliding log | quota in any window | one entry per admitted request |
//! | sliding counter | quota by the weighted estimate; up to 2 × quota in an unlucky window | three integers |
//! | fixed window | quota in each aligned window; 2 × quota across an edge | two integers |
//!
//! All arithmetic is on integers below 2^53, so that Lua and SQL reach the same answers bit for bit.
//!
//! # What it does not do
//!
//! It has no clock, no I/O, no async, and knows no store and no protocol. Stores are behind the `pacegate-store` crate; programs
//! use the `pacegate` crate.

mod algorithm;
pub mod chain;
mod cost;
mod decision;
mod evaluation;
mod hexadecimal;
mod key;
mod limit;
mod limit_builder;
mod named;
mod standing;
mod state;
mod time;

pub use chain::{AsDemand, Demand, Fit, States};
pub use cost::{Cost, InvalidCost};
pub use decision::{Answer, Answers, ChainDecision, Reason, Taken};
pub use evaluation::{Evaluation, refund};
pub use hexadecimal::hexadecimal;
pub use key::{Counter, Identity, Key, Origin, Variants};
pub use limit::{Algorithm, InvalidLimit, Limit, Scale, UnknownAlgorithm};
pub use limit_builder::LimitBuilder;
pub use named::{Named, one_of};
pub use standing::Standing;
pub use state::{InvalidState, State};
pub use time::Timestamp;
