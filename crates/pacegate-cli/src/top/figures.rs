//! The figures that a service sends every second.

use serde::Deserialize;

/// The figures of a service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Figures {
    pub(super) version: String,
    pub(super) uptime_seconds: u64,
    pub(super) ready: bool,
    pub(super) connections: u64,
    pub(super) allowed_per_second: f64,
    pub(super) blocked_per_second: f64,
    pub(super) degraded_per_second: f64,
    pub(super) latency: Latency,
    pub(super) heaviest: Vec<KeyFigures>,
    pub(super) most_blocked: Vec<KeyFigures>,
    pub(super) rules: Vec<RuleFigures>,
    pub(super) stores: Vec<StoreFigures>,
}

/// Latency of checks. `None` without checks.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) p50_ms: Option<f64>,
    pub(super) p95_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyFigures {
    pub(super) dimension: String,
    pub(super) identifier: String,
    pub(super) allowed: u64,
    pub(super) blocked: u64,
}

/// Totals of a rule since the service started.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RuleFigures {
    pub(super) rule: String,
    pub(super) algorithm: String,
    pub(super) allowed: u64,
    pub(super) blocked: u64,
    pub(super) shadow_blocked: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StoreFigures {
    pub(super) name: String,
    pub(super) health: String,
    pub(super) breaker: String,
    /// `None` for a store outside the process of the service.
    pub(super) keys: Option<u64>,
    pub(super) errors: u64,
    pub(super) degraded: u64,
}
