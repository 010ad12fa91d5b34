//! Pure rate-limiting decisions: six exact algorithms and chains of limits.
//!
//! A store passes a [`Limit`], the [`State`] it holds for a key and the time. An [`Evaluation`]
//! decides whether the limit allows the request, and [`charge`](Evaluation::charge) produces the
//! next state. All limits of a request are evaluated before any of them is charged.
//!
//! ```
//! use std::time::Duration;
//! use pacegate_core::{Algorithm, Cost, Evaluation, Limit, Timestamp};
//!
//! let limit = Limit::try_new(Algorithm::SlidingLog, 2, Duration::from_secs(60))?;
//! let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
//!
//! let mut state = Evaluation::new(&limit, None, at(0), Cost::ONE).into_state();
//! let second = Evaluation::new(&limit, Some(&state), at(10), Cost::ONE).charge(&mut state);
//! assert_eq!(second.remaining, Some(0));
//! let denied = Evaluation::new(&limit, Some(&state), at(20), Cost::ONE).answer(Some(&state));
//! assert_eq!(denied.retry_at, Some(at(60)));
//! # Ok::<(), pacegate_core::InvalidLimit>(())
//! ```
//!
//! # Invariants
//!
//! - The crate must never read a clock, do I/O, use async or derive serde traits.
//! - It must never panic, whatever the input.
//! - A denied chain must never charge any of its limits.
//! - It must never compute with anything but integers below 2^53 (wider only for refunds and
//!   changed limits), so that Lua and SQL produce the same decisions bit for bit.
//! - It must never know a store or a protocol.
//!
//! # Guarantees of the algorithms
//!
//! | algorithm | admits at most | state |
//! | --- | --- | --- |
//! | token bucket, leaky bucket, GCRA | burst + quota × t/window in any interval t | two integers |
//! | sliding log | quota in any window | one entry per admitted request |
//! | sliding counter | quota by the weighted estimate; 2 × quota in the worst window | three integers |
//! | fixed window | quota per aligned window; 2 × quota across an edge | two integers |
//!
//! The three buckets share one counter.
//!
//! # Arithmetic
//!
//! With g = gcd(quota, window), a token is window/g units, and quota/g units come back per tick. A
//! tick is one microsecond unless burst × window/g would reach 2^53. In that case it is 10, 100, …
//! µs, the window is rounded up to whole ticks, and `now` is rounded down to a tick. The guarantee
//! of such a limit holds in ticks: over an interval it admits at most the burst plus what comes
//! back in the ticks that begin in that interval. Windows compare products instead of dividing.
//! They are aligned in exact microseconds; only the weight of the sliding counter is counted in
//! ticks. All constants are computed when a limit is built.
//!
//! # Time
//!
//! A [`Timestamp`] is a number of microseconds since the Unix epoch, at most 2^53 − 1. Time never
//! goes back for a key, with one exception: a counter whose time is more than one window ahead of
//! `now` was written before the clock was set back. What is in use then counts as taken at `now`. A
//! take stores this correction even if it is denied, because otherwise every later request would
//! get the same wait again.
//!
//! # State
//!
//! A bucket stores what is in use, not what remains, so that a changed burst keeps the usage. A
//! state also stores the quota, window and tick it was written under. If the quota has changed, the
//! state is first brought to `now` under the old numbers; then the whole tokens in use are carried
//! over, rounded up. A change of the algorithm or the window restarts the counter.
//! [`State::encode`] is versioned, and every state has exactly one encoding.
//!
//! # Debt
//!
//! [`Fit`] is how much of a charge has to fit: all of its cost, 1 (`overdraw: true`) or nothing (a
//! late charge). What exceeds the remaining capacity is debt, up to one capacity; the rest is
//! [`Answer::uncharged`]. Debt needs no state of its own: more than the capacity is in use, and it
//! drains or expires like any other usage. [`Cost::ZERO`] checks whether 1 would fit.
//!
//! # Refunds
//!
//! A refund names the time of its charge ([`Answer::refund_at`]). If it always refunded the newest
//! charge, a request that was admitted in between would in effect move to an earlier time and
//! expire too soon.
//!
//! # Hashes
//!
//! Long identifiers and rule names are replaced by their SHA-256. With a weak hash, a caller could
//! choose an identifier that shares the counter of another one.
//!
//! # Where to go next
//!
//! `evaluation.rs` decides one limit, [`chain`] decides several, and `algorithm/` has the
//! algorithms. Stores implement the `Store` trait of `pacegate-store`; programs use the `pacegate`
//! crate.

mod algorithm;
pub mod chain;
mod cost;
mod decision;
mod divisor;
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
