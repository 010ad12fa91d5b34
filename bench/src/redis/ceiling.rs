//! The maximum rate of calls of the script that Redis processes.
//!
//! It does the same as `redis-benchmark -c 50 -P 16`, which cannot be used itself: it truncates
//! arguments at the first zero byte, and packed limits contain zero bytes.

use std::time::Duration;

use anyhow::{Context, Result};

use super::calls::Calls;
use super::cost::receive;
use super::wire::Connection;
use crate::stopwatch::now;

/// Number of connections.
pub(super) const CONNECTIONS: usize = 50;

/// Connections that always have requests in flight.
#[derive(Debug)]
pub(super) struct Pipelines<'a> {
    calls: &'a Calls,
    batches: Vec<Vec<u8>>,
    connections: Vec<Connection>,
}

impl<'a> Pipelines<'a> {
    pub(super) fn open(port: u16, calls: &'a Calls) -> Result<Self> {
        let connections = (0..CONNECTIONS).map(|_| Connection::open(port)).collect::<Result<_>>()?;
        Ok(Self { calls, batches: calls.batches(), connections })
    }

    /// Runs a closed loop for `duration`, and returns the number of calls.
    pub(super) fn run(&mut self, duration: Duration) -> Result<u64> {
        let mut batches = self.batches.iter().cycle();
        let mut send = |connection: &mut Connection| connection.send(batches.next().context("no batches")?);
        for connection in &mut self.connections {
            send(connection)?;
        }
        let deadline = now() + duration;
        let mut answered = 0;
        // While one connection waits, Redis processes the batches of the others.
        while now() < deadline {
            for connection in &mut self.connections {
                answered += receive(connection, self.calls)?;
                send(connection)?;
            }
        }
        for connection in &mut self.connections {
            answered += receive(connection, self.calls)?;
        }
        Ok(answered)
    }
}
