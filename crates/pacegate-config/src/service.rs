//! `service`: the service that an embedding program calls.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::StoreTls;
use crate::value::{As, HttpUrl, Text};

/// The service that an embedding program calls.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// URL of its gRPC services, which starts with `http://` or `https://`.
    #[serde(with = "As::<Text<HttpUrl>>")]
    pub url: String,
    /// API key to send with checks.
    pub key: Option<String>,
    /// Files for TLS connections, in PEM format.
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
