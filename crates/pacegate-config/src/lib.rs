//! The configuration of the service, of embedding programs and of tools: one YAML file.
//!
//! Every value can be overridden by the environment, and all errors are reported at once, each with
//! its line and path.
//!
//! ```
//! use pacegate::Check;
//! use pacegate_config::Config;
//!
//! let config = Config::parse(
//!     r#"
//! rules:
//!   - {name: per-user-minute, dimension: user, endpoint: "/api/{*rest}",
//!      algorithm: sliding_counter, limit: 100, window: 60s}
//! "#,
//! )?;
//! let limiter = config.limiter()?;
//! let decision = limiter.check_now(&Check::new("user", "u1").endpoint("/api/orders"))?;
//! assert_eq!(decision.remaining(), Some(99));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It connects to nothing: `pacegate-connect` opens the stores that a configuration names.
//!
//! A new setting is a field of the struct of its section, whose doc comment is its description in
//! [`Config::schema`]. A new field of a rule is a field of `RuleEntry` in `rule.rs` and a line of
//! its conversion.

mod ad_hoc;
mod catalog;
mod config;
mod cursor;
mod descriptor;
mod deserializer;
mod error;
mod file;
mod node;
mod part;
mod rule;
mod server;
mod service;
mod store;
mod telemetry;
mod value;

pub use ad_hoc::{AdHocCallers, AdHocConfig};
pub use catalog::{AUDIT_KEY_LENGTH_MIN, CatalogConfig, DecisionLogConfig, RetentionConfig};
pub use config::Config;
pub use error::{ConfigError, ConfigErrors};
pub use server::{ManagementConfig, Role, ServerConfig, TlsConfig};
pub use service::ServiceConfig;
pub use store::{StoreConfig, StoreTls};
pub use telemetry::{LogConfig, LogFormat, LogLevel, LoggedDecisions, LoggedKeys, TracesConfig};

/// Deserialises YAML with every error collected at its line, for tools that read other files.
///
/// ```
/// use pacegate_config::reading::Document;
///
/// #[derive(serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Limit {
///     limit: Option<u64>,
/// }
///
/// let document = Document::parse("limit: ten\nwindow: 1s\n");
/// let limit: Option<Limit> = document.root().read();
/// assert!(limit.is_some_and(|limit| limit.limit.is_none()));
/// let errors = document.finish().unwrap_err().0;
/// assert_eq!(errors[0].to_string(), "line 1: limit: expected a whole number from 0, got \"ten\"");
/// assert_eq!(errors[1].to_string(), "line 2: window: unknown field; expected one of limit");
/// ```
pub mod reading {
    pub use crate::cursor::{Cursor, Document};
    pub use crate::deserializer::AsWritten;
    pub use crate::part::Part;
}
