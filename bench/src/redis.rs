//! The cost of a check in Redis, compared with minimal scripts, and the speed of a store on it,
//! compared with a pipeline without a store.

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

/// Number of rounds.
pub const ROUNDS: u32 = 3;
/// Number of requests in flight per connection without a store.
pub const DEPTH: usize = 16;
/// Number of users of the checks.
pub const USERS: usize = 1_000;

/// Returns the number of turns in all rounds of `duration` each.
fn turns(duration: Duration, turn: Duration) -> u128 {
    (duration * ROUNDS).as_millis() / turn.as_millis()
}
