//! Checks through the `Store` trait, by callers with one check in flight each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pacegate_redis::{RedisOptions, RedisStore};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::USERS;
use super::recorder::options;
use super::scenario::{Scenario, user};
use crate::stopwatch::now;

/// Time after which a store counts as stuck.
const GRACE: Duration = Duration::from_secs(10);
/// Coprime to the number of users, so that a caller visits all users.
const USER_STEP: usize = 389;

/// The kind of callers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Callers {
    /// This number of tasks on one thread.
    Tasks(usize),
    /// This number of threads, each of which blocks until it has its response.
    Threads(usize),
}

/// A store and the checks on it.
#[derive(Clone, Debug)]
pub(super) struct Port(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: RedisStore,
    scenario: Scenario,
    users: Vec<String>,
}

impl Port {
    /// Returns a new store with this number of connections.
    pub(super) async fn open(port: u16, connections: usize) -> Result<Self> {
        let store = RedisStore::connect(RedisOptions { connections, ..options(port)? }).await?;
        let users = (0..USERS).map(user).collect();
        Ok(Self(Arc::new(Inner { store, scenario: Scenario::token_bucket()?, users })))
    }

    /// Runs a closed loop for `duration`. Returns the latency of each check in nanoseconds.
    pub(super) async fn run(&self, callers: Callers, duration: Duration) -> Result<Vec<u32>> {
        let deadline = now() + duration;
        let mut all = JoinSet::new();
        let (Callers::Tasks(number) | Callers::Threads(number)) = callers;
        for caller in 0..number {
            let (port, first) = (self.clone(), USERS / number * caller);
            match callers {
                Callers::Tasks(_) => all.spawn(async move { port.ask(first, deadline).await }),
                Callers::Threads(_) => all.spawn_blocking(move || port.ask_blocking(first, deadline)),
            };
        }
        let mut nanoseconds = Vec::new();
        let answers = async {
            while let Some(caller) = all.join_next().await {
                nanoseconds.extend(caller.context("a caller died")??);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(duration + GRACE, answers).await.context("the store is stuck")??;
        ensure!(!nanoseconds.is_empty(), "no responses");
        Ok(nanoseconds)
    }

    async fn ask(&self, first: usize, deadline: Instant) -> Result<Vec<u32>> {
        let (mut turn, mut times) = (first, Vec::new());
        let mut asked = now();
        while asked < deadline {
            self.check(turn).await?;
            asked = note(&mut times, asked);
            turn += USER_STEP;
        }
        Ok(times)
    }

    fn ask_blocking(&self, first: usize, deadline: Instant) -> Result<Vec<u32>> {
        let runtime = Handle::current();
        let (mut turn, mut times) = (first, Vec::new());
        let mut asked = now();
        while asked < deadline {
            runtime.block_on(self.check(turn))?;
            asked = note(&mut times, asked);
            turn += USER_STEP;
        }
        Ok(times)
    }

    async fn check(&self, turn: usize) -> Result<()> {
        let Inner { store, scenario, users } = &*self.0;
        ensure!(scenario.ask(store, &users[turn % USERS]).await?, "a check was denied");
        Ok(())
    }
}

/// Adds the time since `asked`, and returns the current time.
fn note(times: &mut Vec<u32>, asked: Instant) -> Instant {
    let answered = now();
    times.push(u32::try_from((answered - asked).as_nanos()).unwrap_or(u32::MAX));
    answered
}
