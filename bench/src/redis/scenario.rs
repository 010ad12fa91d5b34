//! Scenarios: the limits of a check, and whether it is a take or a peek.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use pacegate_core::{Algorithm, Counter, InvalidLimit, Key, Limit};
use pacegate_redis::RedisStore;
use pacegate_store::{Action, Charge, Command, Outcome, Store};

/// Quota per hour of a bucket, so low that no state expires during a measurement.
pub(super) const REFILL_PER_HOUR: u64 = 72;
/// Capacity of a bucket, so large that it is never empty.
pub(super) const CAPACITY: u64 = 1_000_000;
/// Window of a log, short enough that its size stays constant and above zero.
const LOG_WINDOW: Duration = Duration::from_secs(5);
const LOG_QUOTA: u64 = 10_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// One kind of check.
#[derive(Debug)]
pub(super) struct Scenario {
    /// Returns its name in tables.
    pub(super) name: String,
    /// Whether it is admitted. The first check always is.
    pub(super) admitted: bool,
    action: Action<'static>,
    limits: Vec<(Counter, Limit)>,
}

impl Scenario {
    /// Returns a take of one token from a full bucket.
    pub(super) fn token_bucket() -> Result<Self, InvalidLimit> {
        Self::admitted_by(Algorithm::TokenBucket)
    }

    /// Returns all scenarios: each algorithm, then other operations on a token bucket.
    pub(super) fn all() -> Result<Vec<Self>, InvalidLimit> {
        let mut all = Algorithm::ALL.into_iter().map(Self::admitted_by).collect::<Result<Vec<_>, _>>()?;
        let single = Limit::try_new(Algorithm::TokenBucket, 1, HOUR)?;
        all.push(Self {
            name: "denial, token bucket".into(),
            admitted: false,
            action: Action::take(),
            limits: vec![(Counter::new("denied", "user", "*"), single)],
        });
        // It uses the counters of the take, so that they exist.
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

    /// Sends one check to `store`, and returns whether it was admitted.
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

/// Returns a limit that admits everything.
fn plenty(algorithm: Algorithm) -> Result<Limit, InvalidLimit> {
    if algorithm.takes_burst() {
        return Limit::try_new(algorithm, REFILL_PER_HOUR, HOUR)?.with_burst(CAPACITY);
    }
    match algorithm {
        Algorithm::SlidingLog => Limit::try_new(algorithm, LOG_QUOTA, LOG_WINDOW),
        _ => Limit::try_new(algorithm, CAPACITY, HOUR),
    }
}

/// Returns the name of a user. All names have the same length.
pub(super) fn user(number: usize) -> String {
    format!("{number:07}")
}
