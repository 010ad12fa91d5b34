//! `pacegate.v1.RateLimiter` as tonic's client sees it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod batch;
#[path = "../client/mod.rs"]
mod client;
mod failure;
mod health;
mod idempotency;
mod input;
mod keys;
mod messages;
mod parity;
#[path = "../scripted/mod.rs"]
mod scripted;
#[path = "../service/mod.rs"]
mod service;
mod stream;

use pacegate_proto::v1::CheckRequest;

/// The time of simulated clocks in whole seconds; they are 123,456 µs ahead of it.
const NOW: i64 = 1_790_000_000;
const NOW_US: u64 = 1_790_000_000_123_456;

/// Returns a check of the user `identifier`.
fn check(identifier: &str, endpoint: &str) -> CheckRequest {
    CheckRequest { identifier: identifier.into(), endpoint: endpoint.into(), ..CheckRequest::default() }
}
