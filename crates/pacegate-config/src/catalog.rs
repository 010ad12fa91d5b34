//! `catalog`, `decision_log` and `retention`: what the database of the service keeps.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, DAY, FOREVER, HOUR, SECOND, Share, Span, Text, Written, written};

/// The shortest audit key, in bytes.
pub const AUDIT_KEY_LENGTH_MIN: usize = 32;

/// The database of rules, users, keys and the audit trail.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogConfig {
    /// sqlite://PATH, sqlite::memory:, postgres:// or mysql://. It may hold a password.
    pub url: String,
    /// The secret that the audit trail is keyed with, at least 32 bytes, better set as
    /// PACEGATE_CATALOG__AUDIT_KEY. Without one, a random secret is kept in a file beside a SQLite
    /// catalog, or in the catalog itself.
    #[serde(with = "As::<Option<Text<AuditKey>>>")]
    pub audit_key: Option<String>,
    /// How long an API key that was looked up is accepted while the catalog does not answer, 1s to
    /// 1d.
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
        // Neither a password nor the key.
        formatter.debug_struct("CatalogConfig").finish_non_exhaustive()
    }
}

/// A secret, which errors do not quote.
struct AuditKey;

written! {
    AuditKey: String [true], {"type": "string", "minLength": AUDIT_KEY_LENGTH_MIN}, |key| {
        let expected = || format!("expected at least {AUDIT_KEY_LENGTH_MIN} bytes, got {}", key.len());
        (key.len() >= AUDIT_KEY_LENGTH_MIN).then(|| key.to_owned()).ok_or_else(expected)
    };
}

/// Which decisions are kept in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DecisionLogConfig {
    /// The share of the requests that passed, from 0 to 1.
    #[serde(with = "As::<Share>")]
    pub allowed: f64,
    /// The share of the requests that were denied, from 0 to 1.
    #[serde(with = "As::<Share>")]
    pub denied: f64,
    /// The most rows that a node writes a second; further decisions are counted as dropped.
    #[serde(with = "As::<Between<0, 1_000_000>>")]
    pub rows_per_second: u64,
    /// How many rows wait to be written; further ones are dropped.
    #[serde(with = "As::<Between<1, 1_000_000>>")]
    pub queue: usize,
}

impl Default for DecisionLogConfig {
    fn default() -> Self {
        Self { allowed: 1.0, denied: 1.0, rows_per_second: 10, queue: 10_000 }
    }
}

/// How long the catalog keeps what is not configuration; at least 1h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// The audit trail.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub audit: Duration,
    /// The decision log.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub decisions: Duration,
    /// Usage by the minute.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub usage_minutes: Duration,
    /// Usage by the hour.
    #[serde(with = "As::<Text<Span<HOUR, FOREVER>>>")]
    pub usage_hours: Duration,
    /// How many rows of usage are kept at most; beyond that, the oldest are deleted.
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
