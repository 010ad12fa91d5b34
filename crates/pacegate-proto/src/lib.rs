//! The messages and services of Pacegate's gRPC interfaces, generated from the files in `proto/`.
//!
//! ```
//! use pacegate_proto::v1::CheckRequest;
//!
//! let request = CheckRequest {
//!     identifier: "u1".into(),
//!     endpoint: "/orders".into(),
//!     ..CheckRequest::default()
//! };
//! assert_eq!(request.cost, 0, "0 means 1");
//! ```
//!
//! # Invariants
//!
//! - Apart from the bounds of requests, the crate must never contain anything that is not
//!   generated.
//! - Names and numbers of Envoy's messages must never differ from Envoy's own files.
//!
//! `proto/envoy` has only the messages that Envoy's rate limit protocol needs. The generated
//! code is checked in, so that a build needs no protobuf compiler; a test keeps it current.
//!
//! # Where to go next
//!
//! `proto/pacegate/v1/rate_limiter.proto` documents every message. `pacegate-server` implements the
//! services.

/// The generated code, by package.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    include!("generated/all.rs");
}

pub use generated::envoy;
pub use generated::pacegate::v1;

/// The encoded file descriptors, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// Maximum number of checks in one `BatchCheck`.
pub const BATCH_CHECKS_MAX: usize = 1_000;
/// Maximum size of a request message, in bytes.
pub const REQUEST_BYTES_MAX: usize = 256 * 1024;
