//! The HTTP parts that the service, the sidecar and the tower layer share.
//!
//! - [`headers`] writes the rate limit headers of a decision.
//! - [`error`] maps an error code to its HTTP status, name and gRPC code.
//! - [`request_id`] accepts or generates the id of a request in logs and responses.
//! - [`server`] (feature `server`) accepts connections: bounded, encrypted, monitored and drained.
//!
//! ```
//! use pacegate_http::error::Code;
//!
//! assert_eq!(Code::RateLimited.status(), 429);
//! assert_eq!(Code::RateLimited.name(), "RATE_LIMITED");
//! ```
//!
//! # Invariants
//!
//! - It must never make a rate limit decision, and never depend on a route, a rule or a store.
//! - Headers must never show values that are unknown because a store is unavailable; such values
//!   are omitted.
//! - A body that has not arrived must never reserve memory, whatever length it announces.
//! - A graceful shutdown must never lose an accepted request.
//!
//! # Connections
//!
//! One loop (`server/listener.rs`) serves every listener of the service and of the sidecar: plain
//! or TLS, HTTP/1 or HTTP/2. Connections are bounded in total and per address. When all slots are
//! taken, connections without a request are evicted. They are found by a scan at that moment, so
//! that requests pay nothing for keeping an order.
//!
//! `server/activity.rs` counts progress on a connection without reading a clock. A periodic poll
//! finds idle and stuck connections. A request is in flight until its response body is taken or
//! dropped, so that stream resets and unread responses are noticed. Certificates are replaced as a
//! whole, for new connections. A client's own certificate is validated again every few seconds.
//!
//! A graceful shutdown has two phases (`server/connection.rs`), because closing a keep-alive
//! connection while a request is on its way would lose that request. First, clients are asked to
//! close their connections. Then the program stops listening.
//!
//! # Request bodies
//!
//! All bodies in flight share one memory budget (`server/bodies.rs`). A body that arrives whole
//! costs nothing extra. A body that is incomplete is charged and registered by address. When memory
//! runs out, the oldest body of the address that holds most is rejected. Bodies that no handler
//! read are discarded within bounds (`server/unread.rs`), so that the client receives its response.
//!
//! # Where to go next
//!
//! `pacegate-server` serves the REST and gRPC APIs on these listeners, and `pacegate-tower` writes
//! these headers in an application.

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
