//! The guard around a store that hangs, fails, refuses or comes back, on simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod breaker;
mod pieces;
mod setup;
