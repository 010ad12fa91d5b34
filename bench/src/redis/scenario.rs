//! What is asked: the limits of a check, and whether it is a take or a peek.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pacegate_core::{Algorithm, Counter, InvalidLimit, Key, Limit};
use pacegate_redis::RedisStore;
use pacegate_store::{Action, Charge, Command, Outcome, Store};

/// A bucket's quota per hour: so few that no state expires while it is measured.
pub(super) const REFILL_PER_HOUR: u64 = 72;
/// A bucket's capacity: so much that it is never used up.
pub(super) const CAPACITY: u64 = 1_000_000;
/// A log forgets so soon that it neither is empty nor keeps growing.
const LOG_WINDOW: Duration = Duration::from_secs(5);
const LOG_QUOTA: u64 = 10_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// One kind of check.
#[derive(Debug)]
pub(super) struct Scenario {
    /// What it is called in tables.
    pub(super) name: String,
    /// Whether it is admitted; the first time it always is.
    pub(super) admitted: bool,
    action: Action<'static>,
    limits: Vec<(Counter, Limit)>,
}

impl Scenario {
    /// A take of one token from a bucket that has plenty.
    pub(super) fn token_bucket() -> Result<Self, InvalidLimit> {
        Self::admitted_by(Algorithm::TokenBucket)
    }

    /// All of them: each algorithm, then what a token bucket does otherwise.
    pub(super) fn all() -> Result<Vec<Self>, InvalidLimit> {
        let mut all = Algorithm::ALL.into_iter().map(Self::admitted_by).collect::<Result<Vec<_>, _>>()?;
        let single = Limit::try_new(Algorithm::TokenBucket, 1, HOUR)?;
        all.push(Self {
            name: "denial, token bucket".into(),
            admitted: false,
            action: Action::take(),
            limits: vec![(Counter::new("denied", "user", "*"), single)],
        });
        // Its counters are those of the take, so that there is something to look at.
        all.push(Self { name: "peek, token bucket".into(), action: Action::peek(), ..Self::token_bucket()? });
        let plenty = plenty(Algorithm::TokenBucket)?;
        let chain = ["first", "second", "third"].map(|rule| (Counter::new(rule, "user", "*"), plenty));
        all.push(Self {
            name: "chain of three token buckets".into(),
            admitted: true,
            action: Action::take(),
            limits: chain.into(),
        });
        Ok(all)
    }

    fn admitted_by(algorithm: Algorithm) -> Result<Self, InvalidLimit> {
        Ok(Self {
            name: algorithm.name().replace('_', " "),
            admitted: true,
            action: Action::take(),
            limits: vec![(Counter::new(algorithm.name(), "user", "*"), plenty(algorithm)?)],
        })
    }

    /// Asks `store` once, and says whether it was admitted.
    pub(super) async fn ask(&self, store: &RedisStore, user: &str) -> Result<bool> {
        let charges: Vec<Charge<'_>> = self
            .limits
            .iter()
            .map(|(counter, limit)| Charge::new(Key::new(counter, user, "/orders"), limit))
            .collect();
        let command = Command { action: self.action, charges: &charges };
        match store.apply(&command, None).await {
            Ok(Outcome::Decided(decision)) => Ok(decision.allowed),
            Ok(other) => bail!("not a decision: {other:?}"),
            Err(error) => Err(error).context("the store failed"),
        }
    }
}

/// A limit that admits everything.
fn plenty(algorithm: Algorithm) -> Result<Limit, InvalidLimit> {
    if algorithm.takes_burst() {
        return Limit::try_new(algorithm, REFILL_PER_HOUR, HOUR)?.with_burst(CAPACITY);
    }
    match algorithm {
        Algorithm::SlidingLog => Limit::try_new(algorithm, LOG_QUOTA, LOG_WINDOW),
        _ => Limit::try_new(algorithm, CAPACITY, HOUR),
    }
}

/// The name of a user; all have the same length.
pub(super) fn user(number: usize) -> String {
    format!("{number:07}")
}
