//! Replays an access log against a rule file, offline, and tells who would have been blocked, when and by which rule, next to what a second
//! rule file would have done.
//!
//! [`simulate`] reads a log, asks the real [`Limiter`](pacegate::Limiter) at the time of each line, and returns a [`Report`], which
//! renders as text, JSON and HTML. Its example is a whole run.
//!
//! # How it keeps its promises
//!
//! Every table has a bound; what does not fit is counted together, and the report says so. The log is read line by line in bounded memory, put in
//! order within a few seconds, and a line that is no request is counted and shown, never fatal.
//!
//! # What it does not do
//!
//! It knows no network and no clock: time is what the log says. It cannot know how clients would have behaved had they been blocked; most come
//! again later, so that a real limit blocks more requests of the same customers.

mod build;
mod error;
mod html;
mod log;
mod options;
mod order;
mod reading;
mod replay;
pub mod report;
mod tally;
mod text;
mod time;
mod words;

pub use error::SimulateError;
pub use log::lines::{LINE_LENGTH_MAX, Source};
pub use log::mapping::FieldMap;
pub use log::{Format, LogOptions};
pub use options::{Options, RuleFile, StatusFilter, Tiers, random_secret};
pub use replay::{Progress, simulate};
pub use report::Report;
