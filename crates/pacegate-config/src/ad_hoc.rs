//! `ad_hoc`: limits that requests bring along.

use std::time::Duration;

use pacegate::MemoryOptions;
use pacegate_core::named;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::{As, Between, DAY, SECOND, Span, Text, Word};

/// Which ad-hoc limits requests may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdHocConfig {
    /// Whose requests may send one.
    #[serde(with = "As::<Word<AdHocCallers>>")]
    pub allow: AdHocCallers,
    /// The longest window, 1s to 366d.
    #[serde(with = "As::<Text<Span<SECOND, { 366 * DAY }>>>")]
    pub max_window: Duration,
    /// How many counters a store in memory keeps for them; a tenth of its max_keys unless it is
    /// set.
    #[serde(with = "As::<Option<Between<1, { MemoryOptions::KEYS_MAX as u64 }>>>")]
    pub max_keys: Option<usize>,
}

/// Whose requests may send ad-hoc limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdHocCallers {
    /// All.
    Always,
    /// Those with an API key, or a certificate with a role.
    WithKey,
    /// None.
    Never,
}

named!(AdHocCallers { Always => "always", WithKey => "with_key", Never => "never" });

impl Default for AdHocConfig {
    fn default() -> Self {
        Self { allow: AdHocCallers::Always, max_window: Duration::from_millis(DAY), max_keys: None }
    }
}

impl AdHocConfig {
    /// The bounds of a store in memory with these limits.
    pub fn bound(&self, memory: MemoryOptions) -> MemoryOptions {
        memory.with_ad_hoc_keys(self.max_keys)
    }
}
