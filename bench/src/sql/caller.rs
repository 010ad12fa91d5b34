//! Callers, each with one check in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pacegate_core::{Algorithm, Cost, Counter, Key, Limit};
use pacegate_sql::SqlStore;
use pacegate_store::{Charge, Command, Outcome, Store};
use tokio::task::JoinSet;

use super::naive::Naive;
use super::{KEYS, user};
use crate::stopwatch::now;

/// Time after which a database counts as stuck.
const GRACE: Duration = Duration::from_secs(20);
/// Coprime to the number of keys, so that a caller visits all keys.
const KEY_STEP: usize = 389;
/// Large enough that it is never exceeded.
const CAPACITY: u64 = 1_000_000_000;
const REFILL_PER_SECOND: u64 = 1_000;
/// Cost of the first check. It is refilled within an hour, so that no row becomes idle. Each
/// further check adds a millisecond: as for most limits, the minute in which a row expires, which
/// is indexed, rarely changes.
const FIRST_COST: u64 = 3_600_000;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A check that takes one token from a bucket in a store.
#[derive(Debug)]
pub(super) struct Check {
    store: Arc<SqlStore>,
    counter: Counter,
    limit: Limit,
    first: Cost,
    admitted: bool,
}

impl Check {
    /// Returns a check on a full bucket.
    pub(super) fn admitted(store: &Arc<SqlStore>, rule: &str) -> Result<Self> {
        let limit =
            Limit::try_new(Algorithm::TokenBucket, REFILL_PER_SECOND, SECOND)?.with_burst(CAPACITY)?;
        let (first, counter) = (Cost::try_new(FIRST_COST)?, Counter::new(rule, "user", "*"));
        Ok(Self { store: store.clone(), counter, limit, first, admitted: true })
    }

    /// Returns a check on a bucket that [`fill`](Self::fill) empties.
    pub(super) fn denied(store: &Arc<SqlStore>, rule: &str) -> Result<Self> {
        let limit = Limit::try_new(Algorithm::TokenBucket, 1, HOUR)?;
        Ok(Self { limit, first: Cost::ONE, admitted: false, ..Self::admitted(store, rule)? })
    }

    /// Checks each key once, so that all keys have a row.
    pub(super) async fn fill(self: &Arc<Self>) -> Result<()> {
        let mut all = JoinSet::new();
        for first in 0..100 {
            let check = self.clone();
            all.spawn(async move {
                for number in (first..KEYS).step_by(100) {
                    ensure!(check.ask(&user(number), check.first).await?, "the first check was denied");
                }
                anyhow::Ok(())
            });
        }
        while let Some(result) = all.join_next().await {
            result.context("a caller died")??;
        }
        Ok(())
    }

    async fn ask(&self, user: &str, cost: Cost) -> Result<bool> {
        let charge = Charge::new(Key::new(&self.counter, user, "/orders"), &self.limit);
        match self.store.apply(&Command::take(&[Charge { cost, ..charge }]), None).await {
            Ok(Outcome::Decided(decision)) => Ok(decision.allowed),
            Ok(other) => bail!("not a decision: {other:?}"),
            Err(error) => Err(error).context("the store failed"),
        }
    }
}

/// A caller.
pub(super) enum Caller {
    Naive(Naive),
    Store(Arc<Check>),
}

/// The results of callers.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Latency of each check.
    pub(super) nanoseconds: Vec<u32>,
    /// Number of failed checks.
    pub(super) failed: usize,
    /// Reason of the first failure.
    pub(super) failure: Option<String>,
}

impl Caller {
    async fn ask(&mut self, user: &str) -> Result<()> {
        let as_expected = match self {
            Self::Naive(naive) => naive.check(user).await?,
            Self::Store(check) => check.ask(user, Cost::ONE).await? == check.admitted,
        };
        ensure!(as_expected, "a check was decided differently than expected");
        Ok(())
    }

    async fn keep_asking(&mut self, first: usize, users: &[String], deadline: Instant) -> Seen {
        let (mut turn, mut seen) = (first, Seen::default());
        let mut asked = now();
        while asked < deadline {
            let result = self.ask(&users[turn % users.len()]).await;
            let answered = now();
            match result {
                Ok(()) => {
                    seen.nanoseconds.push(u32::try_from((answered - asked).as_nanos()).unwrap_or(u32::MAX));
                }
                Err(error) => {
                    seen.failed += 1;
                    seen.failure.get_or_insert_with(|| format!("{error:#}"));
                }
            }
            asked = answered;
            turn += KEY_STEP;
        }
        seen
    }
}

/// Runs all callers in a closed loop for `duration`.
pub(super) async fn run(
    callers: &mut Vec<Caller>,
    users: &Arc<Vec<String>>,
    duration: Duration,
) -> Result<Seen> {
    let deadline = now() + duration;
    let number = callers.len();
    let mut all = JoinSet::new();
    for (position, mut caller) in callers.drain(..).enumerate() {
        let (users, first) = (users.clone(), KEYS / number * position);
        all.spawn(async move {
            let seen = caller.keep_asking(first, &users, deadline).await;
            (caller, seen)
        });
    }
    let mut total = Seen::default();
    let answers = async {
        while let Some(result) = all.join_next().await {
            let (caller, seen) = result.context("a caller died")?;
            callers.push(caller);
            total.nanoseconds.extend(seen.nanoseconds);
            total.failed += seen.failed;
            total.failure = total.failure.take().or(seen.failure);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(duration + GRACE, answers).await.context("the database is stuck")??;
    ensure!(!total.nanoseconds.is_empty(), "no responses: {:?}", total.failure);
    Ok(total)
}
