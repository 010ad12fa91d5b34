//! What a check costs in Redis, and how fast a store on it is: next to minimal scripts and to a pipeline without a store.

pub mod ceiling;
pub mod cost;
pub mod goals;
pub mod port;
mod recorder;
pub mod scenario;
pub mod server;
mod wire;

/// How often each cell is measured; the cells take turns.
pub const ROUNDS: usize = 3;
/// How many requests one connection has in flight where it is loaded without a store.
pub const DEPTH: usize = 16;
/// How many users the checks are spread over.
pub const USERS: usize = 1_000;
