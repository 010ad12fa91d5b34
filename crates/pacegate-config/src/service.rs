//! `service`: the service that decides for an embedding program.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::StoreTls;
use crate::value::{As, HttpUrl, Text};

/// A service that decides for an embedding program.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// The address of its gRPC interface: http:// or https://.
    #[serde(with = "As::<Text<HttpUrl>>")]
    pub url: String,
    /// The API key to send.
    pub key: Option<String>,
    /// Files for encrypted connections, in PEM; cert and key go together.
    #[serde(default)]
    #[schemars(with = "Option<StoreTls>")]
    pub tls: StoreTls,
}

impl fmt::Debug for ServiceConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        formatter.debug_struct("ServiceConfig").field("url", &self.url).finish_non_exhaustive()
    }
}
