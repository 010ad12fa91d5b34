//! What hostile callers do to a service, run against the real binary on loopback. Each attack has the figure that the
//! service must keep, and prints it as `PASS attack_NAME key=value`. `scripts/attack` runs them in full; here they are short.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a test fails by panicking, and an attack prints its figures"
)]

#[path = "../process/mod.rs"]
mod process;

mod bodies;
mod brought_limits;
mod callers;
mod connections;
mod full_redis;
mod give_backs;
mod keys;
mod large_batches;
mod lookups;
mod paths;
mod usage;
