//! `ad_hoc`: limits that are part of a request.

use std::time::Duration;

use pacegate::MemoryOptions;
use pacegate_core::named;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, DAY, SECOND, Span, Text, Word};

/// Which callers can send ad-hoc limits, and their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdHocConfig {
    /// Which callers can send ad-hoc limits: all (`always`), those with an API key or with a
    /// certificate that has a role (`with_key`), or none (`never`).
    #[serde(with = "As::<Word<AdHocCallers>>")]
    pub allow: AdHocCallers,
    /// Maximum length of the window of an ad-hoc limit.
    #[serde(with = "As::<Text<Span<SECOND, { 366 * DAY }>>>")]
    pub max_window: Duration,
    /// Maximum number of counters of ad-hoc limits in a store in memory. Defaults to a tenth of the
    /// `max_keys` of the store.
    #[serde(with = "As::<Option<Between<1, { MemoryOptions::KEYS_MAX as u64 }>>>")]
    pub max_keys: Option<usize>,
}

/// Which callers can send ad-hoc limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdHocCallers {
    /// All callers.
    Always,
    /// Callers with an API key, or with a certificate that has a role.
    WithKey,
    /// No caller.
    Never,
}

named!(AdHocCallers { Always => "always", WithKey => "with_key", Never => "never" });

impl Default for AdHocConfig {
    fn default() -> Self {
        Self { allow: AdHocCallers::Always, max_window: Duration::from_millis(DAY), max_keys: None }
    }
}

impl AdHocConfig {
    /// Returns `memory` with the bound on counters of ad-hoc limits.
    pub fn bound(&self, memory: MemoryOptions) -> MemoryOptions {
        memory.with_ad_hoc_keys(self.max_keys)
    }
}
