//! The cost of the service: `pacegate serve` and a bare axum handler under the same load.

pub mod bare;
pub mod comparison;
pub mod load;
pub mod process;
mod wire;

/// Where a check is posted to, on both servers.
pub const PATH: &str = "/v1/rate-limit/check";
