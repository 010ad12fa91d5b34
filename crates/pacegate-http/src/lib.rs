//! What the service, the sidecar and the tower layer share of HTTP.
//!
//! [`headers`] writes what a decision says about a client's limits.

pub mod headers;

pub use headers::HeaderFamily;
