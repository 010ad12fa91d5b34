//! The cost of the service: `pacegate serve` and a minimal axum handler under the same load.

pub mod bare;
pub mod comparison;
pub mod load;
pub mod process;
mod wire;

/// Path of a check on both servers.
pub const PATH: &str = "/v1/rate-limit/check";
