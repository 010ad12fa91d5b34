//! The guard around a store that hangs, fails, rejects or recovers, on simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod breaker;
mod pieces;
mod setup;
