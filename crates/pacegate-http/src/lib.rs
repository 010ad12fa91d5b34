//! What the service, the sidecar and the tower layer share of HTTP.
//!
//! - [`headers`] writes what a decision says about a client's limits;
//! - [`error`] is the one table from an error to its HTTP status, name and gRPC code;
//! - [`request_id`] takes or makes the id that a request has in logs and answers;
//! - [`server`] (feature `server`) accepts connections: bounded, encrypted, watched, drained.
//!
//! ```
//! use pacegate_http::error::Code;
//!
//! assert_eq!(Code::RateLimited.status(), 429);
//! assert_eq!(Code::RateLimited.name(), "RATE_LIMITED");
//! ```
//!
//! It decides nothing, and knows neither rules nor stores.

mod bounds;
mod certificate;
pub mod error;
pub mod headers;
pub mod request_id;
#[cfg(feature = "server")]
pub mod server;

pub use bounds::{Bounds, TlsFiles};
pub use certificate::{CertificateName, InvalidCertificateName};
pub use headers::HeaderFamily;
