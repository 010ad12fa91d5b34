//! The load: persistent connections, each with one request in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;

use super::wire::{Answer, Connection, request};
use crate::stopwatch::{now, quantile};

/// Default number of connections.
pub const CONNECTIONS: usize = 32;
/// Number of users of the requests.
pub const USERS: usize = 10_000;
/// Time after which a server counts as stuck.
const GRACE: Duration = Duration::from_secs(10);
/// Coprime to the number of users, so that a connection visits all users.
const USER_STEP: usize = 7_919;

/// The results of a load.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of responses with status 200.
    pub allowed: u64,
    /// Number of responses with status 429.
    pub denied: u64,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
    /// Total size of the bodies of responses.
    body_bytes: u64,
    /// Latency of every request, in ascending order.
    nanoseconds: Vec<u32>,
}

impl Outcome {
    /// Returns the number of responses.
    pub fn requests(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the mean size of a response body in bytes.
    pub fn body_bytes(&self) -> f64 {
        self.body_bytes as f64 / self.requests().max(1) as f64
    }

    /// Returns the quantile `fraction` of the latency, in microseconds.
    pub fn microseconds(&self, fraction: f64) -> f64 {
        f64::from(quantile(&self.nanoseconds, fraction)) / 1e3
    }

    fn record(&mut self, answer: Answer, time: Duration) -> Result<()> {
        match answer.status {
            200 => self.allowed += 1,
            429 => self.denied += 1,
            other => bail!("the server returned status {other}"),
        }
        self.body_bytes += answer.body_bytes as u64;
        self.nanoseconds.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        Ok(())
    }
}

/// A generator of load for the server on one port.
#[derive(Debug)]
pub struct Load {
    port: u16,
    connections: usize,
    requests: Arc<Vec<Vec<u8>>>,
}

impl Load {
    /// Prepares all requests, so that sending one costs little.
    pub fn new(port: u16, connections: usize) -> Self {
        let connections = connections.max(1);
        Self { port, connections, requests: Arc::new((0..USERS).map(|user| request(port, user)).collect()) }
    }

    /// Runs a closed loop for `duration`.
    ///
    /// # Errors
    /// If the server returns a status other than 200 or 429, closes a connection or is stuck.
    pub async fn run(&self, duration: Duration) -> Result<Outcome> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(self.port).await?);
        }
        let start = now();
        let mut tasks = JoinSet::new();
        for (number, connection) in connections.into_iter().enumerate() {
            let first = USERS * number / self.connections;
            tasks.spawn(drive(connection, self.requests.clone(), first, start + duration));
        }
        let mut total = Outcome::default();
        let all = async {
            while let Some(outcome) = tasks.join_next().await {
                let outcome = outcome.context("a connection's task died")??;
                total.allowed += outcome.allowed;
                total.denied += outcome.denied;
                total.body_bytes += outcome.body_bytes;
                total.nanoseconds.extend(outcome.nanoseconds);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(duration + GRACE, all).await.context("the server is stuck")??;
        total.elapsed = now() - start;
        total.nanoseconds.sort_unstable();
        ensure!(total.requests() > 0, "no responses");
        Ok(total)
    }

    /// Sends one request for each of the first `users` users.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn probe(&self, users: usize) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut connection = Connection::open(self.port).await?;
        for request in self.requests.iter().take(users) {
            let answer =
                tokio::time::timeout(GRACE, connection.ask(request)).await.context("no response")??;
            outcome.record(answer, Duration::ZERO)?;
        }
        Ok(outcome)
    }
}

async fn drive(
    mut connection: Connection,
    requests: Arc<Vec<Vec<u8>>>,
    first: usize,
    deadline: Instant,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut user = first;
    let mut sent = now();
    while sent < deadline {
        let answer = connection.ask(&requests[user]).await?;
        let answered = now();
        outcome.record(answer, answered - sent)?;
        sent = answered;
        user = (user + USER_STEP) % requests.len();
    }
    Ok(outcome)
}
