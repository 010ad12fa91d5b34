//! Refuses checks at once when the node could not answer them in time: above a rate, and when too many are unanswered.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pacegate::{Algorithm, Config, Cost, Limit, Limiter, Plan};
use tokio::time::Instant;

use crate::respond::{ApiError, Code};

/// So many unanswered checks are no queue yet.
const QUEUE_MIN: usize = 1_000;
/// How many checks may come at one moment: those of one full batch, or of a twentieth of a second.
const BURST_MIN: u64 = 1_000;
const BURST_SHARE: u64 = 20;
/// Over this long the rate of answers is measured, and after that long it is forgotten.
const MEASURED_FOR: Duration = Duration::from_millis(100);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);
/// When a refused caller may come again, in seconds.
const RETRY_AFTER: u64 = 1;
/// The name of the node's own limit and of its only key.
const NODE: &str = "node";

/// What the node does not take on.
#[derive(Debug)]
pub(crate) struct Overload {
    rate: Option<Rate>,
    /// How long the checks in the queue may need to be answered.
    patience: Duration,
    unanswered: AtomicUsize,
    answered: AtomicU64,
    throughput: Mutex<Throughput>,
    above_rate: AtomicU64,
    queue_full: AtomicU64,
}

#[derive(Debug)]
struct Rate {
    plan: Plan,
    burst: u64,
}

/// How many checks are answered, as far as that was measured.
#[derive(Clone, Copy, Debug)]
struct Throughput {
    since: Instant,
    answered: u64,
    per_second: Option<f64>,
}

/// Checks that the node took on and has not answered yet.
#[derive(Debug)]
#[must_use = "they count as unanswered until this is dropped"]
pub(crate) struct TakenOn<'a> {
    overload: &'a Overload,
    checks: usize,
}

impl Drop for TakenOn<'_> {
    fn drop(&mut self) {
        self.overload.unanswered.fetch_sub(self.checks, Ordering::Relaxed);
        self.overload.answered.fetch_add(self.checks as u64, Ordering::Relaxed);
    }
}

impl Overload {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            rate: config.server.max_checks_per_second.and_then(Rate::new),
            patience: config.store_timeout * 2,
            unanswered: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            throughput: Mutex::new(Throughput { since: Instant::now(), answered: 0, per_second: None }),
            above_rate: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
        }
    }

    /// Takes on so many checks, or says that they come too fast or that too many wait.
    pub(crate) fn take_on(&self, checks: usize) -> Result<TakenOn<'_>, ApiError> {
        let waiting = self.unanswered.fetch_add(checks, Ordering::Relaxed) + checks;
        let taken_on = TakenOn { overload: self, checks };
        if waiting > QUEUE_MIN && !self.is_answered_in_time(waiting) {
            self.queue_full.fetch_add(1, Ordering::Relaxed);
            return Err(refusal("too many requests wait for an answer"));
        }
        if let Some(rate) = &self.rate
            && !rate.admits(checks)
        {
            self.above_rate.fetch_add(1, Ordering::Relaxed);
            return Err(refusal("this node gets more checks than server.max_checks_per_second"));
        }
        Ok(taken_on)
    }

    /// Whether so many checks are answered within the deadline, as fast as checks were answered lately.
    #[cold]
    fn is_answered_in_time(&self, waiting: usize) -> bool {
        let (now, answered) = (Instant::now(), self.answered.load(Ordering::Relaxed));
        let mut throughput = self.throughput.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.duration_since(throughput.since);
        if elapsed >= FORGOTTEN_AFTER {
            *throughput = Throughput { since: now, answered, per_second: None };
        } else if elapsed >= MEASURED_FOR {
            let per_second = answered.saturating_sub(throughput.answered) as f64 / elapsed.as_secs_f64();
            *throughput = Throughput { since: now, answered, per_second: Some(per_second) };
        }
        throughput.per_second.is_none_or(|rate| waiting as f64 <= rate * self.patience.as_secs_f64())
    }

    /// How many requests were refused, by reason.
    pub(crate) fn refused(&self) -> [(&'static str, u64); 2] {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("rate", count(&self.above_rate)), ("queue", count(&self.queue_full))]
    }
}

impl Rate {
    fn new(per_second: u64) -> Option<Self> {
        let burst = (per_second / BURST_SHARE).max(BURST_MIN.min(per_second));
        let limit = Limit::try_new(Algorithm::Gcra, per_second, Duration::from_secs(1)).ok()?;
        let limit = limit.with_burst(burst).ok()?;
        let plan = Limiter::builder().plan(NODE, [limit]).build().ok()?.plan(NODE).ok()?;
        Some(Self { plan, burst })
    }

    fn admits(&self, checks: usize) -> bool {
        // A batch above the burst takes all of it: it would never fit otherwise.
        let cost = Cost::try_new((checks as u64).clamp(1, self.burst)).unwrap_or_default();
        self.plan.check_now(NODE, cost).is_ok_and(|decision| decision.allowed)
    }
}

fn refusal(message: &str) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{message}; retry in {RETRY_AFTER} s")).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overload(yaml: &str) -> Overload {
        Overload::new(&Config::parse(yaml).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn checks_above_the_rate_are_refused_and_batches_count_their_checks() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.take_on(8).unwrap());
        drop(overload.take_on(2).unwrap());
        let error = overload.take_on(1).unwrap_err();
        assert_eq!((error.code, error.retry_after), (Code::Overloaded, Some(1)));
        assert_eq!(overload.refused(), [("rate", 1), ("queue", 0)]);
        assert_eq!(overload.unanswered.load(Ordering::Relaxed), 0, "what is refused does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn batch_above_the_rate_is_admitted_when_nothing_else_was() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.take_on(1_000).unwrap());
        assert!(overload.take_on(1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_by_what_is_answered_within_the_deadline() {
        let overload = overload("failure: {timeout: 50ms}");
        let mut waiting = Vec::new();
        // Without an answer for a while, no more than the least is taken on.
        for _ in 0..QUEUE_MIN {
            waiting.push(overload.take_on(1).unwrap());
        }
        assert!(overload.take_on(1).is_ok(), "the rate of answers is not known yet");
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(overload.take_on(1).is_ok(), "nor is an old one");
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.take_on(1).is_err());
        assert_eq!(overload.refused(), [("rate", 0), ("queue", 1)]);
        // 2,000 answers in 100 ms are as many as twice the deadline allows in the queue.
        for _ in 0..20 {
            waiting.truncate(900);
            while waiting.len() < QUEUE_MIN {
                waiting.push(overload.take_on(1).unwrap());
            }
        }
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.take_on(1).is_ok());
        drop(waiting);
        assert!(overload.take_on(QUEUE_MIN).is_ok());
    }
}
