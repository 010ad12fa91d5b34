//! What every store is tested with, those of this repository and those of others.
//!
//! - [`model`]: a naive reference model of the six algorithms that shares no code with the core;
//! - [`history`]: generators of histories, with equal and backward times, changing limits and extreme values;
//! - [`replay()`]: runs a history on a store and on the model, and reports the first difference;
//! - [`store_suite!`]: one named test per behaviour for a store of your own;
//! - [`admission`]: concurrent callers, of which exactly as many must pass as the limit says;
//! - [`load`]: callers that keep a store busy while something happens to it;
//! - [`REPORT_SPELLINGS`]: one path in many spellings;
//! - [`SimulatedClock`]: time that moves only when told;
//! - [`server`]: real Redis and database servers as child processes, and a proxy that misbehaves on demand.
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
//! It is for tests only: nothing in it is fast.

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
