//! Throughput of a store on a database, compared with one transaction per check on the same server.

mod caller;
pub mod comparison;
pub mod database;
pub mod log;
mod log_rows;
mod naive;
mod turn;

/// Number of rounds.
pub const ROUNDS: usize = 3;
/// Number of keys of the checks, except for rows with one key.
pub const KEYS: usize = 10_000;
/// Number of connections with one transaction per check.
pub const NAIVE_CONNECTIONS: usize = 32;

/// Returns the name of a user. All names have the same length.
fn user(number: usize) -> String {
    format!("{number:07}")
}
