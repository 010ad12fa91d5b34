//! The cost of the gRPC services: `pacegate serve` and a bare tonic server with the same messages
//! under the same load.

pub mod bare;
pub mod load;
