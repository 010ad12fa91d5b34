//! The configuration file of Pacegate: its types, its reader and its JSON Schema.
//!
//! One YAML file configures the service, programs that embed the library, and tools. Environment
//! variables override its values.
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
//! # Invariants
//!
//! - This crate connects to nothing. `pacegate-connect` opens the stores of a configuration.
//! - All errors are reported at once, sorted by line. Each has the line and the path of the field.
//!   An error never hides another one, and is reported once.
//! - Errors do not quote values that may contain a password or a secret.
//! - The JSON Schema and the reference (`docs/configuration.md`) are derived from the types that
//!   the file is deserialized into, so all three agree on fields, bounds and defaults.
//! - A value that is valid and can never match is a warning in [`Config::warnings`], not an error.
//!
//! # Structure
//!
//! Each section of the file has a module (`server`, `store`, `rule`, ...) with serde types. `value`
//! has the forms of single values. `cursor` deserializes a YAML tree (`node`) and collects every
//! error. `warning` finds values that can never match. `reference` writes the Markdown page.
//!
//! A new setting is a field in the struct of its section, whose doc comment is its description in
//! [`Config::schema`] and in the reference. A new field of a rule is a field of `RuleEntry` in
//! `rule.rs` and a line of its conversion. `pacegate config schema --markdown` regenerates the
//! reference.
//!
//! # Where to go next
//!
//! - [`Config::load`] loads a file and the environment; [`Config::limiter`] returns a limiter.
//! - [`reading`] has the reader for tools that read other YAML files.
//! - `docs/configuration.md` describes every field of the file.

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
mod reference;
mod rule;
mod server;
mod service;
mod store;
mod telemetry;
mod value;
mod warning;

pub use ad_hoc::{AdHocCallers, AdHocConfig};
pub use catalog::{AUDIT_KEY_LENGTH_MIN, CatalogConfig, DecisionLogConfig, RetentionConfig};
pub use config::Config;
pub use error::{ConfigError, ConfigErrors};
pub use server::{ManagementConfig, Role, ServerConfig, TlsConfig};
pub use service::ServiceConfig;
pub use store::{StoreConfig, StoreTls};
pub use telemetry::{LogConfig, LogFormat, LogLevel, LoggedDecisions, LoggedKeys, TracesConfig};

/// The reader, for tools that read other YAML files: it collects every error with its line.
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
/// assert_eq!(errors[0].to_string(), "line 1: limit: expected a whole number of at least 0, got \"ten\"");
/// assert_eq!(errors[1].to_string(), "line 2: window: unknown field; expected one of limit");
/// ```
pub mod reading {
    pub use crate::cursor::{Cursor, Document};
    pub use crate::deserializer::AsWritten;
    pub use crate::part::Part;
}
