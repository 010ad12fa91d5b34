//! The load: connections that are kept alive, each with one request in flight at any time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;

use super::wire::{Answer, Connection, request};
use crate::stopwatch::{now, quantile};

/// How many connections there are unless told otherwise.
pub const CONNECTIONS: usize = 32;
/// How many users the requests are spread over.
pub const USERS: usize = 10_000;
/// How long a stuck server is waited for.
const GRACE: Duration = Duration::from_secs(10);
/// Coprime to the number of users, so that a connection visits all of them.
const USER_STEP: usize = 7_919;

/// What a load met with.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many answers said 200.
    pub allowed: u64,
    /// How many answers said 429.
    pub denied: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// All answers' bodies together.
    body_bytes: u64,
    /// Of every request, ascending.
    nanoseconds: Vec<u32>,
}

impl Outcome {
    /// How many requests were answered.
    pub fn requests(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Requests per second.
    pub fn rate(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64()
    }

    /// The bytes of an answer's body, on average.
    pub fn body_bytes(&self) -> f64 {
        self.body_bytes as f64 / self.requests().max(1) as f64
    }

    /// The time within which `fraction` of the requests were answered, in microseconds.
    pub fn microseconds(&self, fraction: f64) -> f64 {
        f64::from(quantile(&self.nanoseconds, fraction)) / 1e3
    }

    fn record(&mut self, answer: Answer, time: Duration) -> Result<()> {
        match answer.status {
            200 => self.allowed += 1,
            429 => self.denied += 1,
            other => bail!("the server answered with status {other}"),
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

    /// Asks as often as the server answers for `duration`.
    ///
    /// # Errors
    /// When the server answers with another status than 200 or 429, closes a connection or
    /// gets stuck.
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
        ensure!(total.requests() > 0, "nothing was answered");
        Ok(total)
    }

    /// Asks once for each of the first `users` users.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn probe(&self, users: usize) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut connection = Connection::open(self.port).await?;
        for request in self.requests.iter().take(users) {
            let answer =
                tokio::time::timeout(GRACE, connection.ask(request)).await.context("no answer")??;
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
