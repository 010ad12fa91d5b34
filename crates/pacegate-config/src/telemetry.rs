//! `log` and `traces`: what the service reports about itself.

use pacegate_core::named;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, HttpUrl, Share, Text, Word};

/// How the service logs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The format of log lines.
    #[serde(with = "As::<Word<LogFormat>>")]
    pub format: LogFormat,
    /// The least severe lines that are logged.
    #[serde(with = "As::<Word<LogLevel>>")]
    pub level: LogLevel,
    /// Which decisions have a line.
    #[serde(with = "As::<Word<LoggedDecisions>>")]
    pub decisions: LoggedDecisions,
    /// How identifiers are written in these lines.
    #[serde(with = "As::<Word<LoggedKeys>>")]
    pub keys: LoggedKeys,
    /// How many decisions have a line in one second; the others are counted.
    #[serde(with = "As::<Between<0, 1_000_000>>")]
    pub lines_per_second: u64,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines: one JSON object a line.
    Json,
}

named!(LogFormat { Pretty => "pretty", Json => "json" });

/// How severe a line must be to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing is logged.
    Off,
    /// Errors.
    Error,
    /// Warnings and errors.
    Warn,
    /// What happens to the service as a whole.
    Info,
    /// What happens inside it.
    Debug,
    /// Everything.
    Trace,
}

named!(LogLevel {
    Off => "off",
    Error => "error",
    Warn => "warn",
    Info => "info",
    Debug => "debug",
    Trace => "trace",
});

/// Which decisions have a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedDecisions {
    /// None.
    None,
    /// Those that deny, or were made without their store.
    Denied,
    /// All.
    All,
}

named!(LoggedDecisions { None => "none", Denied => "denied", All => "all" });

/// How identifiers are written in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedKeys {
    /// As the start of their SHA-256: the same key can be followed, and is not shown.
    Hashed,
    /// As they are.
    Plain,
}

named!(LoggedKeys { Hashed => "hashed", Plain => "plain" });

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Pretty,
            level: LogLevel::Info,
            decisions: LoggedDecisions::Denied,
            keys: LoggedKeys::Hashed,
            lines_per_second: 10,
        }
    }
}

/// Where traces are sent.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector, which speaks OTLP over gRPC: http:// or https://.
    #[serde(with = "As::<Text<HttpUrl>>")]
    pub otlp: String,
    /// The share of traces that begin here and are kept, from 0 to 1. Callers decide about theirs.
    #[serde(default = "all", with = "As::<Share>")]
    pub sample: f64,
    /// The name of the service in traces.
    #[serde(default = "service_name")]
    pub service_name: String,
}

fn all() -> f64 {
    1.0
}

fn service_name() -> String {
    "pacegate".into()
}
