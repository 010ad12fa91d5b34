//! The tests that every store must pass, in this repository or outside it.
//!
//! ```
//! use proptest::strategy::{Strategy, ValueTree};
//! use pacegate_core::Algorithm;
//! use pacegate_testkit::{Seed, history};
//!
//! let mut runner = Seed(7).runner();
//! let history = history::of(Algorithm::Gcra).new_tree(&mut runner).unwrap().current();
//! assert!(!history.operations.is_empty());
//! ```
//!
//! - [`model`]: a naive reference model of the six algorithms.
//! - [`history`]: generators of histories, with equal and backward times, changing limits and
//!   extreme values.
//! - [`replay()`]: runs a history on a store and on the model, and reports the first difference.
//! - [`store_suite!`]: defines one test per behaviour for a store.
//! - [`admission`]: concurrent callers, of which exactly the limit must be admitted.
//! - [`load`]: callers that keep a store busy during a fault.
//! - [`REPORT_SPELLINGS`]: one path in many spellings.
//! - [`SimulatedClock`]: a clock that moves only on request.
//! - [`server`]: real Redis and database servers as child processes, and a proxy that loses
//!   replies.
//!
//! # Invariants
//!
//! - The model must never share code with `pacegate-core`; a test checks its imports.
//! - No crate may have the test kit as a normal dependency: it is for tests only, and nothing in it
//!   is fast.
//! - Every random choice must follow from a [`Seed`] that is printed on failure.
//!
//! # Where to go next
//!
//! A new store starts with [`store_suite!`]. [`suite`] lists the behaviours that it checks.

pub mod admission;
mod clock;
mod effort;
pub mod history;
pub mod load;
pub mod model;
mod replay;
mod seed;
pub mod server;
mod spellings;
pub mod suite;

pub use clock::SimulatedClock;
pub use effort::effort;
pub use replay::{Difference, replay};
pub use seed::Seed;
pub use spellings::REPORT_SPELLINGS;
