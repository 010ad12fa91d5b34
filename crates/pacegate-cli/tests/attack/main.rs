//! Attacks of hostile callers against the real binary on loopback. Each attack asserts a bound and
//! prints its figures as `PASS attack_NAME key=value`. `scripts/attack` runs them at full size;
//! here they are short.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a test fails by panicking, and an attack prints its figures"
)]

#[path = "../process/mod.rs"]
mod process;

mod ad_hoc_limits;
mod bodies;
mod callers;
mod connections;
mod full_redis;
mod keys;
mod large_batches;
mod lookups;
mod paths;
mod refunds;
mod usage;
