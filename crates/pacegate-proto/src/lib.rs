//! The messages and services of Pacegate's gRPC interfaces, generated from the files in `proto/`.
//!
//! ```
//! use pacegate_proto::v1::CheckRequest;
//!
//! let request = CheckRequest { identifier: "u1".into(), endpoint: "/orders".into(), ..CheckRequest::default() };
//! assert_eq!(request.cost, 0, "which means 1");
//! ```
//!
//! Apart from the bounds of requests, all of it is generated. Envoy's messages are the few that its rate limit protocol needs, under its names and numbers.

/// Everything generated, by package.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/all.rs"));
}

pub use generated::envoy;
pub use generated::pacegate::v1;

/// What the reflection service tells clients: all files, encoded.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The most checks of one `BatchCheck`.
pub const BATCH_CHECKS_MAX: usize = 1_000;
/// The longest request message, in bytes.
pub const REQUEST_BYTES_MAX: usize = 256 * 1024;
