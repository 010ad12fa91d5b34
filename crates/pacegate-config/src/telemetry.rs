//! `log`, `traces` and `metrics`: what the service says about itself.

use pacegate_core::named;

use crate::read::bounded;
use crate::reader::{Field, Fields, Mistakes};

/// How the service logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// The least important lines that are logged: `off`, `error`, `warn`, `info`, `debug` or `trace`.
    pub level: &'static str,
    /// Which decisions have a line.
    pub decisions: LoggedDecisions,
    /// How identifiers stand in those lines.
    pub keys: LoggedKeys,
    /// How many decisions have a line in one second; the others are counted.
    pub lines_per_second: u64,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines: one JSON object a line.
    Json,
}

named!(LogFormat { Pretty => "pretty", Json => "json" });

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

/// How identifiers stand in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedKeys {
    /// As the start of their SHA-256: the same key can be followed, and is not shown.
    Hashed,
    /// As they are.
    Plain,
}

named!(LoggedKeys { Hashed => "hashed", Plain => "plain" });

/// Where traces go.
#[derive(Clone, Debug, PartialEq)]
pub struct TracesConfig {
    /// The collector, which speaks OTLP over gRPC: `http://` or `https://`.
    pub otlp: String,
    /// Which share of the traces that begin here is kept, between 0 and 1. Callers decide about theirs.
    pub sample: f64,
    /// What the service is called in traces.
    pub service_name: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Pretty,
            level: "info",
            decisions: LoggedDecisions::Denied,
            keys: LoggedKeys::Hashed,
            lines_per_second: 10,
        }
    }
}

pub(super) fn read_log(field: Field, log: &mut LogConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(format) = fields.take("format").and_then(|field| field.named(mistakes)) {
        log.format = format;
    }
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    if let Some(level) = fields.take("level").and_then(|field| field.word(&levels, mistakes)) {
        log.level = level;
    }
    if let Some(decisions) = fields.take("decisions").and_then(|field| field.named(mistakes)) {
        log.decisions = decisions;
    }
    if let Some(keys) = fields.take("keys").and_then(|field| field.named(mistakes)) {
        log.keys = keys;
    }
    if let Some(field) = fields.take("lines_per_second")
        && let Some(lines) = bounded(&field, 0, 1_000_000, mistakes)
    {
        log.lines_per_second = lines as u64;
    }
    fields.finish(mistakes);
}

pub(super) fn read_traces(field: Field, mistakes: &mut Mistakes) -> Option<TracesConfig> {
    let mut fields = Fields::new(field, mistakes)?;
    let otlp = fields.require("otlp", mistakes).and_then(|field| {
        let url = field.text(mistakes)?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            mistakes.add(&field.node.place, &field.path, "must start with http:// or https://");
        }
        Some(url)
    });
    let sample = fields.take("sample").and_then(|field| field.share(mistakes)).unwrap_or(1.0);
    let name = fields.take("service_name").and_then(|field| field.text(mistakes));
    fields.finish(mistakes);
    Some(TracesConfig { otlp: otlp?, sample, service_name: name.unwrap_or_else(|| "pacegate".into()) })
}
