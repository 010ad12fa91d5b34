//! What a check costs Redis, next to minimal scripts, and how fast a store on it is, next to a
//! pipeline without a store.

pub mod calls;
mod ceiling;
pub mod cost;
mod port;
mod recorder;
mod scenario;
pub mod server;
pub mod throughput;
mod wire;

use std::time::Duration;

/// How many rounds there are.
pub const ROUNDS: u32 = 3;
/// How many requests a connection has in flight where it is loaded without a store.
pub const DEPTH: usize = 16;
/// How many users the checks are spread over.
pub const USERS: usize = 1_000;

/// How many turns make up all rounds of `duration` each.
fn turns(duration: Duration, turn: Duration) -> u128 {
    (duration * ROUNDS).as_millis() / turn.as_millis()
}
