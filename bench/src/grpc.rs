//! The cost of the gRPC services: `pacegate serve` and a minimal tonic server under the same load.

pub mod bare;
pub mod load;
