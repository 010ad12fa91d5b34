//! How many checks a store on a database answers, next to one transaction for each check on the
//! same server.

mod caller;
pub mod comparison;
pub mod database;
pub mod log;
mod log_rows;
mod naive;
mod turn;

/// How many rounds there are.
pub const ROUNDS: usize = 3;
/// How many keys the checks are spread over, unless all are of one.
pub const KEYS: usize = 10_000;
/// How many connections have a transaction for each check.
pub const NAIVE_CONNECTIONS: usize = 32;

/// The name of a user; all have the same length.
fn user(number: usize) -> String {
    format!("{number:07}")
}
