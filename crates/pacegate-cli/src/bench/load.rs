//! The load: when requests are due, which caller sends them, and when it ends.
//!
//! With a rate, the loop is open: request n is due at n ÷ rate, whether or not earlier ones have a
//! response, and its latency counts from then. If the service pauses for a second, every request
//! that was due in that second is late, not only the few in flight. Without a rate, the loop is
//! closed: every caller sends a request, waits for the response, and sends the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::keys::Keys;
use super::record::{Decision, Fault, Records, Times};

/// Time that a caller waits after it failed to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time to wait for requests in flight after an interrupt.
const INTERRUPTED_WAIT: Duration = Duration::from_secs(1);
/// Time after the end within which requests that were due before it are still sent.
const LATE_MAX: Duration = Duration::from_millis(50);
/// Maximum sleep of the pacing thread, so that it ends soon after the load.
const PACE_SLEEP_MAX: Duration = Duration::from_millis(20);

/// Sends requests one after another.
pub(super) trait Caller: Send + 'static {
    /// Checks a request for this key.
    fn check(&mut self, key: u64) -> impl Future<Output = Result<Decision, Fault>> + Send;

    /// Drops a connection with an outstanding response.
    fn disconnect(&mut self);
}

/// The load to generate.
#[derive(Debug)]
pub(super) struct Plan {
    /// Requests per second. Without it, callers send as fast as the service responds.
    pub(super) rate: Option<u64>,
    /// Maximum number of requests.
    pub(super) requests: Option<u64>,
    /// Time during which requests are sent, after the warm-up.
    pub(super) duration: Duration,
    /// Time during which requests are sent but not recorded.
    pub(super) warmup: Duration,
    /// Time after which a request fails.
    pub(super) timeout: Duration,
    pub(super) keys: Keys,
}

/// A running load.
#[derive(Debug)]
pub(super) struct Load {
    plan: Plan,
    start: Instant,
    /// Number of requests that callers have begun.
    begun: AtomicU64,
    /// Number of requests that became due.
    released: AtomicU64,
    /// Has a permit for each request that is due. Closed at the end.
    gate: Semaphore,
    pub(super) records: Records,
}

/// How a load ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// From the end of the warm-up to the last response.
    pub(super) elapsed: Duration,
    /// Time that sending the requests takes at the requested rate.
    pub(super) planned: Duration,
    /// Number of requests that were due and not sent because all callers were busy.
    pub(super) unsent: u64,
    /// Whether it was interrupted.
    pub(super) interrupted: bool,
    /// Why the service rejects all requests, if it does.
    pub(super) rejected: Option<String>,
}

/// A request that is due.
struct Turn {
    number: u64,
    due: Instant,
}

impl Load {
    /// Starts a load.
    pub(super) fn start(plan: Plan) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            plan,
            start: Instant::now(),
            begun: AtomicU64::new(0),
            released: AtomicU64::new(0),
            gate: Semaphore::new(0),
            records: Records::new()?,
        }))
    }

    /// Runs all callers until the plan is done or `interrupt` completes.
    pub(super) async fn run<C: Caller>(
        self: &Arc<Self>,
        callers: impl IntoIterator<Item = C>,
        interrupt: impl Future<Output = ()>,
    ) -> Ended {
        let (reject, mut rejections) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for (number, caller) in callers.into_iter().enumerate() {
            tasks.spawn(self.clone().call(number, caller, reject.clone()));
        }
        drop(reject);
        let mut rejected = None;
        let mut interrupted = tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => false,
            () = interrupt => true,
            Some(reason) = rejections.recv() => {
                rejected = Some(reason);
                false
            }
        };
        if interrupted || rejected.is_some() {
            self.gate.close();
            let _ = timeout(INTERRUPTED_WAIT, async { while tasks.join_next().await.is_some() {} }).await;
            tasks.abort_all();
        }
        // If both happen at once, the rejection is reported.
        rejected = rejected.or_else(|| rejections.try_recv().ok());
        interrupted &= rejected.is_none();
        self.gate.close();
        let elapsed = self.start.elapsed().saturating_sub(self.plan.warmup);
        let begun = self.begun.load(Ordering::Relaxed);
        let planned = self.length(begun);
        Ended {
            elapsed: elapsed.max(planned),
            planned,
            unsent: self.released.load(Ordering::Relaxed).saturating_sub(begun),
            interrupted,
            rejected,
        }
    }

    /// The completed fraction, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        let of_time = self.start.elapsed().as_secs_f64() / self.end().as_secs_f64();
        let requests = self.plan.requests.unwrap_or(u64::MAX);
        of_time.max(self.begun.load(Ordering::Relaxed) as f64 / requests as f64).min(1.0)
    }

    /// The time since the end of the warm-up, `None` before it.
    pub(super) fn measured(&self) -> Option<Duration> {
        self.start.elapsed().checked_sub(self.plan.warmup)
    }

    /// Releases the requests that are due. Returns when the next one is due, `None` after the end.
    pub(super) fn release(&self, now: Instant) -> Option<Instant> {
        let rate = self.plan.rate.filter(|_| !self.gate.is_closed())?;
        let elapsed = now.saturating_duration_since(self.start);
        if elapsed >= self.end() + LATE_MAX {
            self.gate.close();
        }
        // Request n is due at n ÷ rate, so the first one is due immediately.
        let due = (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000).saturating_add(1);
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.total());
        let fresh = due.saturating_sub(self.released.swap(due, Ordering::Relaxed));
        self.gate.add_permits(usize::try_from(fresh).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS));
        Some(self.due(due, rate).clamp(now, now + PACE_SLEEP_MAX))
    }

    /// Releases requests when they are due, on a separate thread: the timer of the runtime has a
    /// resolution of a millisecond, which is longer than most checks take.
    pub(super) fn pace(self: &Arc<Self>) {
        let load = self.clone();
        std::thread::spawn(move || {
            while let Some(next) = load.release(Instant::now()) {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
    }

    async fn call<C: Caller>(self: Arc<Self>, number: usize, mut caller: C, reject: mpsc::Sender<String>) {
        while let Some(turn) = self.turn().await {
            let (sent, counted_from) = (Instant::now(), self.start + self.plan.warmup);
            // The backlog of the warm-up is not measured.
            if turn.due < counted_from && sent >= counted_from {
                continue;
            }
            let key = self.plan.keys.of(turn.number);
            let outcome = match timeout(self.plan.timeout, caller.check(key)).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    caller.disconnect();
                    Err(Fault::Timeout)
                }
            };
            if turn.due >= counted_from {
                let times = Times { latency: turn.due.elapsed(), service: sent.elapsed() };
                self.records.add(number, &outcome, times);
            }
            match outcome {
                Err(Fault::Connect(_)) => sleep(CONNECT_PAUSE).await,
                Err(Fault::Rejected(reason)) => drop(reject.try_send(reason)),
                _ => {}
            }
        }
    }

    /// The next request, when it is due.
    async fn turn(&self) -> Option<Turn> {
        if self.plan.rate.is_some() {
            self.gate.acquire().await.ok()?.forget();
        }
        let now = Instant::now();
        let over = self.plan.rate.is_none() && now >= self.start + self.end();
        if over || self.gate.is_closed() {
            return None;
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        if number >= self.total() {
            self.begun.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        if number + 1 == self.total() {
            // Wakes all callers that wait for a turn.
            self.gate.close();
        }
        Some(Turn { number, due: self.plan.rate.map_or(now, |rate| self.due(number, rate)) })
    }

    fn due(&self, number: u64, rate: u64) -> Instant {
        let nanoseconds = u128::from(number) * 1_000_000_000 / u128::from(rate);
        self.start + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The total number of requests, as far as the plan determines it.
    fn total(&self) -> u64 {
        let in_time = self.plan.rate.map_or(u64::MAX, |rate| {
            let requests = self.end().as_nanos() * u128::from(rate) / 1_000_000_000;
            u64::try_from(requests).unwrap_or(u64::MAX).max(1)
        });
        in_time.min(self.plan.requests.unwrap_or(u64::MAX))
    }

    /// The time from the start to the end of sending.
    fn end(&self) -> Duration {
        self.plan.warmup + self.plan.duration
    }

    /// The time that `requests` take at the requested rate, without the warm-up.
    fn length(&self, requests: u64) -> Duration {
        let Some(rate) = self.plan.rate else { return Duration::ZERO };
        self.due(requests, rate).saturating_duration_since(self.start + self.plan.warmup)
    }
}

#[cfg(test)]
mod tests;
