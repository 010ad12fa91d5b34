//! Benchmarks of Pacegate and its peers: time, memory and instructions per check in one process,
//! and the cost of the service, of Redis and of databases.
//!
//! The programs are `in_process`, `growth`, `rules`, `layer`, `http`, `grpc`, `proxy`, `redis` and
//! `sql`. The README explains how to run them and what the figures mean. No other crate depends on
//! this one.

pub mod contender;
pub mod growth;
pub mod grpc;
pub mod machine;
pub mod memory;
pub mod pause;
pub mod plot;
pub mod proxy;
pub mod redis;
pub mod service;
pub mod speed;
pub mod sql;
pub mod stopwatch;
pub mod table;
pub mod workload;
