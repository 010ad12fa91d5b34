//! Replays an access log against a rule file, offline, and reports what would have been blocked.
//!
//! [`simulate`] reads a log, calls the real [`Limiter`](pacegate::Limiter) at the time of each
//! line, and returns a [`Report`] as text, JSON or HTML. With two rule files it compares them.
//!
//! ```
//! use pacegate_config::Config;
//! use pacegate_simulate::{Options, RuleFile, Source, simulate};
//!
//! let log = "192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] \"GET /a HTTP/1.1\" 200 1\n".repeat(3);
//! let source = Source { name: "access.log".into(), reader: Box::new(std::io::Cursor::new(log)) };
//! let rules = "rules: [{name: two, dimension: user, algorithm: fixed_window, limit: 2, window: 1m}]";
//! let rules = RuleFile { name: "rules.yaml".into(), config: Config::parse(rules)? };
//! let report = simulate(vec![source], &[rules], &Options::default(), &mut |_| {})?;
//! println!("{}", report.to_text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - The simulation uses no network and no system clock. Time is the time of the log.
//! - Memory is bounded. Every table has a maximum size; further entries are counted together, and
//!   the report has a warning about it.
//! - The same log and rules give the same report.
//! - A line that is not a request is counted and shown, and never stops the replay.
//! - Text of the log never becomes markup or a control sequence of a terminal.
//!
//! A simulation cannot know how clients would have reacted to being blocked. Most retry later, so a
//! real limit blocks more requests of the same customers.
//!
//! # Structure
//!
//! `log` parses lines (formats, field mapping), `order` sorts them by time, `replay` calls the
//! limiter on a clock with the time of the log, `tally` counts in bounded memory, `build` makes the
//! report, and `text` and `html` render it.
//!
//! # Where to go next
//!
//! - [`Options`] has the options of `pacegate simulate`.
//! - [`report`] has the fields of the JSON report.
//! - `docs/simulate.md` explains how to choose a limit with a report.

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
