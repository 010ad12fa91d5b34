//! `catalog`, `decision_log` and `retention`: the database of the service and what it keeps.

use std::fmt;
use std::time::Duration;

use pacegate_core::one_of;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, DAY, FOREVER, HOUR, SECOND, Share, Span, Text, Written, written};

/// Minimum length of an audit key, in bytes.
pub const AUDIT_KEY_LENGTH_MIN: usize = 32;

/// Database of rules, users, API keys and the audit trail.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogConfig {
    /// URL of the database: `sqlite://PATH`, `sqlite::memory:`, or a URL that starts with
    /// `postgres://` or `mysql://`. It may contain a password.
    #[serde(with = "As::<Text<CatalogUrl>>")]
    pub url: String,
    /// Secret that authenticates the audit trail, at least 32 bytes. Set it by the environment
    /// variable `PACEGATE_CATALOG__AUDIT_KEY`. Defaults to a random secret, which is stored in a
    /// file next to a SQLite catalog, and in the database otherwise.
    #[serde(with = "As::<Option<Text<AuditKey>>>")]
    pub audit_key: Option<String>,
    /// Time for which cached API keys are accepted while the catalog is unavailable.
    #[serde(with = "As::<Text<Span<SECOND, DAY>>>")]
    pub key_max_age: Duration,
}

impl Default for CatalogConfig {
    fn default() -> Self {
        Self { url: "sqlite://pacegate.db".into(), audit_key: None, key_max_age: Duration::from_secs(300) }
    }
}

impl fmt::Debug for CatalogConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both fields may contain secrets.
        formatter.debug_struct("CatalogConfig").finish_non_exhaustive()
    }
}

/// A secret, which errors do not quote.
struct AuditKey;
/// A URL, which errors do not quote because it may contain a password.
struct CatalogUrl;

const SCHEMES: [&str; 5] = ["sqlite:", "postgres://", "postgresql://", "mysql://", "mariadb://"];

written! {
    CatalogUrl: String, {"type": "string"}, |url| {
        let is_known = SCHEMES.iter().any(|scheme| url.starts_with(scheme));
        let expected = || format!("expected a URL that starts with {}", one_of(&SCHEMES));
        is_known.then(|| url.to_owned()).ok_or_else(expected)
    };
    AuditKey: String [true], {"type": "string", "minLength": AUDIT_KEY_LENGTH_MIN}, |key| {
        let expected = || format!("expected at least {AUDIT_KEY_LENGTH_MIN} bytes, got {}", key.len());
        (key.len() >= AUDIT_KEY_LENGTH_MIN).then(|| key.to_owned()).ok_or_else(expected)
    };
}

/// Which decisions are recorded in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecisionLogConfig {
    /// Share of allowed requests that are recorded.
    #[serde(with = "As::<Share>")]
    pub allowed: f64,
    /// Share of denied requests that are recorded.
    #[serde(with = "As::<Share>")]
    pub denied: f64,
    /// Maximum number of rows that a node writes per second. Further decisions are counted as
    /// dropped.
    #[serde(with = "As::<Between<0, 1_000_000>>")]
    pub rows_per_second: u64,
    /// Maximum number of rows that wait to be written. Further rows are dropped.
    #[serde(with = "As::<Between<1, 1_000_000>>")]
    pub queue: usize,
}

impl Default for DecisionLogConfig {
    fn default() -> Self {
        Self { allowed: 1.0, denied: 1.0, rows_per_second: 10, queue: 10_000 }
    }
}

/// How long the catalog keeps logs and usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// How long entries of the audit trail are kept.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub audit: Duration,
    /// How long entries of the decision log are kept.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub decisions: Duration,
    /// How long usage per minute is kept.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub usage_minutes: Duration,
    /// How long usage per hour is kept.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub usage_hours: Duration,
    /// Maximum number of rows of usage. The oldest rows beyond it are deleted.
    #[serde(with = "As::<Between<10_000, 1_000_000_000>>")]
    pub usage_rows: u64,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        let days = |days| Duration::from_millis(days * DAY);
        Self {
            audit: days(90),
            decisions: days(90),
            usage_minutes: days(30),
            usage_hours: days(365),
            usage_rows: 20_000_000,
        }
    }
}
