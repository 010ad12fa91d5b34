//! `log` and `traces`: what the service reports about itself.

use pacegate_core::named;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, HttpUrl, Share, Text, Word};

/// Format and contents of the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Format of log lines: text for people (`pretty`) or one JSON object per line (`json`).
    #[serde(with = "As::<Word<LogFormat>>")]
    pub format: LogFormat,
    /// Lowest level of log lines that are written.
    #[serde(with = "As::<Word<LogLevel>>")]
    pub level: LogLevel,
    /// Which decisions are logged. `denied` includes decisions made while a store was unavailable.
    #[serde(with = "As::<Word<LoggedDecisions>>")]
    pub decisions: LoggedDecisions,
    /// How identifiers are logged: as the start of their SHA-256 (`hashed`) or unchanged (`plain`).
    #[serde(with = "As::<Word<LoggedKeys>>")]
    pub keys: LoggedKeys,
    /// Maximum number of decisions logged per second. Further decisions are counted only.
    #[serde(with = "As::<Between<0, 1_000_000>>")]
    pub lines_per_second: u64,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Pretty,
    /// One JSON object per line.
    Json,
}

named!(LogFormat { Pretty => "pretty", Json => "json" });

/// The lowest level of log lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Nothing is logged.
    Off,
    /// Errors.
    Error,
    /// Warnings and errors.
    Warn,
    /// Events of the service as a whole.
    Info,
    /// Internal events.
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

/// Which decisions are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedDecisions {
    /// None.
    None,
    /// Denied requests, and decisions made while a store was unavailable.
    Denied,
    /// All.
    All,
}

named!(LoggedDecisions { None => "none", Denied => "denied", All => "all" });

/// How identifiers are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedKeys {
    /// As the start of their SHA-256, so that one key can be followed without being shown.
    Hashed,
    /// Unchanged.
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

/// Collector of traces.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// URL of a collector for OTLP over gRPC, which starts with `http://` or `https://`.
    #[serde(with = "As::<Text<HttpUrl>>")]
    pub otlp: String,
    /// Share of traces started by this service that are recorded. Callers decide about traces that
    /// they start.
    #[serde(default = "all", with = "As::<Share>")]
    pub sample: f64,
    /// Name of the service in traces.
    #[serde(default = "service_name")]
    pub service_name: String,
}

fn all() -> f64 {
    1.0
}

fn service_name() -> String {
    "pacegate".into()
}
