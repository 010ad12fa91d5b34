//! Refuses checks at once when the node could not answer them in time: above a rate, and when too many are unanswered. Batches have a queue
//! of their own, because single checks do not wait for them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pacegate::{Algorithm, Cost, Limit, Limiter, Plan};
use pacegate_config::Config;
use pacegate_http::server::Full;
use tokio::time::Instant;

use crate::respond::{ApiError, Code};

/// So many unanswered checks are no queue yet.
const QUEUE_MIN: usize = 1_000;
/// So many unanswered identities of batches are no queue yet: those of two full batches.
const BATCHES_QUEUE_MIN: usize = 2 * BATCH_IDENTITIES_MAX;
/// How long the batches in their queue may need to be answered.
const BATCHES_PATIENCE: Duration = Duration::from_secs(2);
/// The most identities of one batch: of 1,000 checks, 16 each.
const BATCH_IDENTITIES_MAX: usize = 16_000;
/// How many checks may come at one moment: those of one full batch, or of a twentieth of a second.
const BURST_MIN: u64 = BATCH_IDENTITIES_MAX as u64;
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
    checks: Queue,
    batches: Queue,
    above_rate: AtomicU64,
    queue_full: AtomicU64,
}

/// Checks, or identities of batches, that are not answered yet, and how fast they are.
#[derive(Debug)]
struct Queue {
    /// So many are always taken on.
    least: usize,
    /// How long those in the queue may need to be answered.
    patience: Duration,
    unanswered: AtomicUsize,
    answered: AtomicU64,
    throughput: Mutex<Throughput>,
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
    queue: &'a Queue,
    size: usize,
}

impl Drop for TakenOn<'_> {
    fn drop(&mut self) {
        self.queue.unanswered.fetch_sub(self.size, Ordering::Relaxed);
        self.queue.answered.fetch_add(self.size as u64, Ordering::Relaxed);
    }
}

impl Queue {
    fn new(least: usize, patience: Duration) -> Self {
        Self {
            least,
            patience,
            unanswered: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            throughput: Mutex::new(Throughput { since: Instant::now(), answered: 0, per_second: None }),
        }
    }

    /// A place for so many more; `None` when they could not be answered in time.
    fn take_on(&self, size: usize) -> Option<TakenOn<'_>> {
        let waiting = self.unanswered.fetch_add(size, Ordering::Relaxed) + size;
        let taken_on = TakenOn { queue: self, size };
        (waiting <= self.least || self.is_answered_in_time(waiting)).then_some(taken_on)
    }

    /// Whether so many are answered within the patience, as fast as others were answered lately.
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
}

/// There is no memory left for the body of a request.
impl From<Full> for ApiError {
    fn from(Full: Full) -> Self {
        refusal("the bodies of requests under way take all of server.max_request_memory")
    }
}

impl Overload {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            rate: config.server.max_checks_per_second.and_then(Rate::new),
            checks: Queue::new(QUEUE_MIN, config.store_timeout * 2),
            batches: Queue::new(BATCHES_QUEUE_MIN, BATCHES_PATIENCE),
            above_rate: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
        }
    }

    /// Takes on a check, or says that checks come too fast or that too many wait.
    pub(crate) fn take_on(&self) -> Result<TakenOn<'_>, ApiError> {
        self.take_on_in(&self.checks, 1)
    }

    /// The same for a batch, whose checks have so many identities together.
    pub(crate) fn take_on_batch(&self, identities: usize) -> Result<TakenOn<'_>, ApiError> {
        self.take_on_in(&self.batches, identities.max(1))
    }

    fn take_on_in<'a>(&self, queue: &'a Queue, size: usize) -> Result<TakenOn<'a>, ApiError> {
        let Some(taken_on) = queue.take_on(size) else {
            self.queue_full.fetch_add(1, Ordering::Relaxed);
            return Err(refusal("too many requests wait for an answer"));
        };
        if let Some(rate) = &self.rate
            && !rate.admits(size)
        {
            self.above_rate.fetch_add(1, Ordering::Relaxed);
            return Err(refusal("this node gets more checks than server.max_checks_per_second"));
        }
        Ok(taken_on)
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
        self.plan.check_now(NODE, cost).is_ok_and(|decision| decision.allowed())
    }
}

/// What a request is answered that the node does not take on.
pub(crate) fn refusal(message: &str) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{message}; retry in {RETRY_AFTER} s")).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overload(yaml: &str) -> Overload {
        Overload::new(&Config::parse(yaml).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn checks_above_the_rate_are_refused_and_batches_count_their_identities() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.take_on_batch(8).unwrap());
        drop(overload.take_on().unwrap());
        drop(overload.take_on().unwrap());
        let error = overload.take_on().unwrap_err();
        assert_eq!((error.code, error.retry_after), (Code::Overloaded, Some(1)));
        assert_eq!(overload.refused(), [("rate", 1), ("queue", 0)]);
        assert_eq!(overload.checks.unanswered.load(Ordering::Relaxed), 0, "what is refused does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn batch_above_the_rate_is_admitted_when_nothing_else_was() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.take_on_batch(1_000).unwrap());
        assert!(overload.take_on().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn largest_batch_counts_in_full_at_the_usual_rate() {
        let overload = overload("server: {max_checks_per_second: 100000}");
        drop(overload.take_on_batch(BATCH_IDENTITIES_MAX).unwrap());
        assert!(overload.take_on_batch(BATCH_IDENTITIES_MAX).is_err());
        tokio::time::advance(Duration::from_millis(160)).await;
        assert_eq!(overload.refused(), [("rate", 1), ("queue", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_by_what_is_answered_within_the_deadline() {
        let overload = overload("failure: {timeout: 50ms}");
        let mut waiting = Vec::new();
        // Without an answer for a while, no more than the least is taken on.
        for _ in 0..QUEUE_MIN {
            waiting.push(overload.take_on().unwrap());
        }
        assert!(overload.take_on().is_ok(), "the rate of answers is not known yet");
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(overload.take_on().is_ok(), "nor is an old one");
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.take_on().is_err());
        assert_eq!(overload.refused(), [("rate", 0), ("queue", 1)]);
        // 2,000 answers in 100 ms are as many as twice the deadline allows in the queue.
        for _ in 0..20 {
            waiting.truncate(900);
            while waiting.len() < QUEUE_MIN {
                waiting.push(overload.take_on().unwrap());
            }
        }
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.take_on().is_ok());
        drop(waiting);
        assert!(overload.take_on().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn batches_that_wait_refuse_other_batches_and_no_single_check() {
        let overload = overload("failure: {timeout: 50ms}");
        let first = overload.take_on_batch(BATCH_IDENTITIES_MAX).unwrap();
        let second = overload.take_on_batch(BATCH_IDENTITIES_MAX).unwrap();
        // The rate of answers is measured from here on, and is 0.
        drop(overload.take_on_batch(1));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        drop(overload.take_on_batch(1));
        tokio::time::advance(MEASURED_FOR).await;
        assert_eq!(overload.take_on_batch(1).unwrap_err().code, Code::Overloaded);
        let single: Vec<_> = (0..QUEUE_MIN).map(|_| overload.take_on()).collect();
        assert!(single.iter().all(Result::is_ok));
        drop(first);
        assert!(overload.take_on_batch(1).is_ok(), "there is room again");
        drop(second);
    }
}
