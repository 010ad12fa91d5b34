//! Load shedding: rejects checks that the node could not decide in time, above a rate and above a
//! queue length. Batches have a separate queue, because single checks do not wait for them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pacegate::{Algorithm, Cost, Limit, Limiter, Plan};
use pacegate_config::Config;
use pacegate_http::server::Full;
use tokio::time::Instant;

use crate::respond::{ApiError, Code};

/// Maximum number of unanswered checks that are always accepted.
const QUEUE_MIN: usize = 1_000;
/// Maximum number of unanswered identities of batches that are always accepted: those of two full
/// batches.
const BATCHES_QUEUE_MIN: usize = 2 * BATCH_IDENTITIES_MAX;
/// Maximum time in which the queued batches must be answered.
const BATCHES_QUEUE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of identities of one batch: 1,000 checks with 16 each.
const BATCH_IDENTITIES_MAX: usize = 16_000;
/// Maximum burst of checks: one full batch, or the checks of a twentieth of a second.
const BURST_MIN: u64 = BATCH_IDENTITIES_MAX as u64;
const BURST_SHARE: u64 = 20;
/// Period over which the throughput is measured.
const MEASURED_FOR: Duration = Duration::from_millis(100);
/// Time after which a measured throughput is stale.
const STALE_AFTER: Duration = Duration::from_secs(1);
/// `Retry-After` of a rejected request, in seconds.
const RETRY_AFTER: u64 = 1;
/// The name of the node's own limit and of its only key.
const NODE: &str = "node";

/// Decides which requests are shed.
#[derive(Debug)]
pub(crate) struct Overload {
    rate: Option<Rate>,
    checks: Queue,
    batches: Queue,
    above_rate: AtomicU64,
    queue_full: AtomicU64,
}

/// Unanswered checks, or identities of batches, and their throughput.
#[derive(Debug)]
struct Queue {
    /// This many are always accepted.
    least: usize,
    /// Maximum time in which the queue must be answered.
    time_max: Duration,
    unanswered: AtomicUsize,
    answered: AtomicU64,
    throughput: Mutex<Throughput>,
}

#[derive(Debug)]
struct Rate {
    plan: Plan,
    burst: u64,
}

/// The measured throughput of checks.
#[derive(Clone, Copy, Debug)]
struct Throughput {
    since: Instant,
    answered: u64,
    per_second: Option<f64>,
}

/// Accepted checks that are not answered yet.
#[derive(Debug)]
#[must_use = "they count as unanswered until this is dropped"]
pub(crate) struct Accepted<'a> {
    queue: &'a Queue,
    size: usize,
}

impl Drop for Accepted<'_> {
    fn drop(&mut self) {
        self.queue.unanswered.fetch_sub(self.size, Ordering::Relaxed);
        self.queue.answered.fetch_add(self.size as u64, Ordering::Relaxed);
    }
}

impl Queue {
    fn new(least: usize, time_max: Duration) -> Self {
        Self {
            least,
            time_max,
            unanswered: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            throughput: Mutex::new(Throughput { since: Instant::now(), answered: 0, per_second: None }),
        }
    }

    /// Accepts `size` more; `None` if they could not be answered in time.
    fn accept(&self, size: usize) -> Option<Accepted<'_>> {
        let waiting = self.unanswered.fetch_add(size, Ordering::Relaxed) + size;
        let accepted = Accepted { queue: self, size };
        (waiting <= self.least || self.is_answered_in_time(waiting)).then_some(accepted)
    }

    /// Returns whether `waiting` are answered in time at the recent throughput.
    #[cold]
    fn is_answered_in_time(&self, waiting: usize) -> bool {
        let (now, answered) = (Instant::now(), self.answered.load(Ordering::Relaxed));
        let mut throughput = self.throughput.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.duration_since(throughput.since);
        if elapsed >= STALE_AFTER {
            *throughput = Throughput { since: now, answered, per_second: None };
        } else if elapsed >= MEASURED_FOR {
            let per_second = answered.saturating_sub(throughput.answered) as f64 / elapsed.as_secs_f64();
            *throughput = Throughput { since: now, answered, per_second: Some(per_second) };
        }
        throughput.per_second.is_none_or(|rate| waiting as f64 <= rate * self.time_max.as_secs_f64())
    }
}

/// The memory budget for request bodies is used up.
impl From<Full> for ApiError {
    fn from(Full: Full) -> Self {
        rejection("overloaded: request bodies in flight use all of server.max_request_memory")
    }
}

impl Overload {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            rate: config.server.max_checks_per_second.and_then(Rate::new),
            checks: Queue::new(QUEUE_MIN, config.store_timeout * 2),
            batches: Queue::new(BATCHES_QUEUE_MIN, BATCHES_QUEUE_TIME),
            above_rate: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
        }
    }

    /// Accepts a check, or returns an error if the rate or the queue is exceeded.
    pub(crate) fn accept(&self) -> Result<Accepted<'_>, ApiError> {
        self.accept_in(&self.checks, 1)
    }

    /// Accepts a batch whose checks have this number of identities in total.
    pub(crate) fn accept_batch(&self, identities: usize) -> Result<Accepted<'_>, ApiError> {
        self.accept_in(&self.batches, identities.max(1))
    }

    fn accept_in<'a>(&self, queue: &'a Queue, size: usize) -> Result<Accepted<'a>, ApiError> {
        let Some(accepted) = queue.accept(size) else {
            self.queue_full.fetch_add(1, Ordering::Relaxed);
            return Err(rejection("overloaded: too many unanswered requests"));
        };
        if let Some(rate) = &self.rate
            && !rate.admits(size)
        {
            self.above_rate.fetch_add(1, Ordering::Relaxed);
            return Err(rejection(
                "overloaded: this node receives more checks than server.max_checks_per_second",
            ));
        }
        Ok(accepted)
    }

    /// Returns the number of shed requests by reason.
    pub(crate) fn shed(&self) -> [(&'static str, u64); 2] {
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
        // A batch above the burst is charged the whole burst: otherwise it could never be admitted.
        let cost = Cost::try_new((checks as u64).clamp(1, self.burst)).unwrap_or_default();
        self.plan.check_now(NODE, cost).is_ok_and(|decision| decision.allowed())
    }
}

/// Returns the error for a shed request.
pub(crate) fn rejection(message: &str) -> ApiError {
    ApiError::new(Code::Overloaded, format!("{message}; retry in {RETRY_AFTER} s")).retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overload(yaml: &str) -> Overload {
        Overload::new(&Config::parse(yaml).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn checks_above_the_rate_are_shed_and_batches_count_their_identities() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.accept_batch(8).unwrap());
        drop(overload.accept().unwrap());
        drop(overload.accept().unwrap());
        let error = overload.accept().unwrap_err();
        assert_eq!((error.code, error.retry_after), (Code::Overloaded, Some(1)));
        assert_eq!(overload.shed(), [("rate", 1), ("queue", 0)]);
        assert_eq!(
            overload.checks.unanswered.load(Ordering::Relaxed),
            0,
            "a shed check does not count as unanswered"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn batch_above_the_rate_is_admitted_on_an_idle_node() {
        let overload = overload("server: {max_checks_per_second: 10}");
        drop(overload.accept_batch(1_000).unwrap());
        assert!(overload.accept().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn largest_batch_counts_in_full_at_the_usual_rate() {
        let overload = overload("server: {max_checks_per_second: 100000}");
        drop(overload.accept_batch(BATCH_IDENTITIES_MAX).unwrap());
        assert!(overload.accept_batch(BATCH_IDENTITIES_MAX).is_err());
        tokio::time::advance(Duration::from_millis(160)).await;
        assert_eq!(overload.shed(), [("rate", 1), ("queue", 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_is_bounded_by_the_throughput_within_the_deadline() {
        let overload = overload("failure: {timeout: 50ms}");
        let mut waiting = Vec::new();
        // Without a recent answer, no more than the minimum is accepted.
        for _ in 0..QUEUE_MIN {
            waiting.push(overload.accept().unwrap());
        }
        assert!(overload.accept().is_ok(), "the throughput is not known yet");
        tokio::time::advance(STALE_AFTER).await;
        assert!(overload.accept().is_ok(), "a stale throughput is not used");
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.accept().is_err());
        assert_eq!(overload.shed(), [("rate", 0), ("queue", 1)]);
        // 2,000 answers in 100 ms allow a queue of twice the deadline.
        for _ in 0..20 {
            waiting.truncate(900);
            while waiting.len() < QUEUE_MIN {
                waiting.push(overload.accept().unwrap());
            }
        }
        tokio::time::advance(MEASURED_FOR).await;
        assert!(overload.accept().is_ok());
        drop(waiting);
        assert!(overload.accept().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn queued_batches_shed_other_batches_but_no_single_check() {
        let overload = overload("failure: {timeout: 50ms}");
        let first = overload.accept_batch(BATCH_IDENTITIES_MAX).unwrap();
        let second = overload.accept_batch(BATCH_IDENTITIES_MAX).unwrap();
        // The throughput is measured from here on, and is 0.
        drop(overload.accept_batch(1));
        tokio::time::advance(STALE_AFTER).await;
        drop(overload.accept_batch(1));
        tokio::time::advance(MEASURED_FOR).await;
        assert_eq!(overload.accept_batch(1).unwrap_err().code, Code::Overloaded);
        let single: Vec<_> = (0..QUEUE_MIN).map(|_| overload.accept()).collect();
        assert!(single.iter().all(Result::is_ok));
        drop(first);
        assert!(overload.accept_batch(1).is_ok(), "batches are accepted again");
        drop(second);
    }
}
