//! The load: when requests are due, who sends them, and when it ends.
//!
//! With a rate the loop is open: request number n is due at n ÷ rate, whether or not earlier ones have been answered, and its latency counts from
//! then. A service that stands still for a second is so charged for every request that was due in that second, and not only for the few that were under way.
//! Without a rate the loop is closed: every caller asks, waits for the answer, and asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::keys::Keys;
use super::record::{Answer, Fault, Records, Times};

/// How long a caller that cannot connect waits before its next request, so that a service that is away is not hammered.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// The longest that requests under way are waited for when the load is interrupted.
const INTERRUPTED_WAIT: Duration = Duration::from_secs(1);
/// How long after the end of sending the last requests that were due before may still be sent.
const LATE_MAX: Duration = Duration::from_millis(50);
/// The longest that the pace sleeps at once, so that it notices soon when the load has ended.
const PACE_LOOK: Duration = Duration::from_millis(20);

/// Sends requests one after another.
pub(super) trait Caller: Send + 'static {
    /// Asks whether a request for this key may pass.
    fn ask(&mut self, key: u64) -> impl Future<Output = Result<Answer, Fault>> + Send;

    /// Forgets a connection on which an answer is still to come.
    fn hang_up(&mut self);
}

/// What load there is to be.
#[derive(Debug)]
pub(super) struct Plan {
    /// Requests per second; callers ask as fast as they are answered without it.
    pub(super) rate: Option<u64>,
    /// How many requests there are at most.
    pub(super) requests: Option<u64>,
    /// How long requests are sent, after the warm-up.
    pub(super) duration: Duration,
    /// How long requests are sent before any of them counts.
    pub(super) warmup: Duration,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    pub(super) keys: Keys,
}

/// A load that runs.
#[derive(Debug)]
pub(super) struct Load {
    plan: Plan,
    start: Instant,
    /// How many requests callers have begun.
    begun: AtomicU64,
    /// How many requests the pace has let go.
    released: AtomicU64,
    /// Callers pass it when a request is due; closed at the end.
    gate: Semaphore,
    pub(super) records: Records,
}

/// How a load ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// From the end of the warm-up to the last answer.
    pub(super) elapsed: Duration,
    /// How long the requests should have taken to send, at the rate asked for.
    pub(super) planned: Duration,
    /// How many requests were due and not sent, because all callers were busy until the end.
    pub(super) unsent: u64,
    /// Whether somebody ended it early.
    pub(super) interrupted: bool,
    /// What the service said when it refused to answer at all.
    pub(super) refused: Option<String>,
}

/// A request that is due.
struct Turn {
    number: u64,
    due: Instant,
}

impl Load {
    /// A load that starts now.
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

    /// Has all callers ask until the plan is done or `interrupt` completes.
    pub(super) async fn run<C: Caller>(
        self: &Arc<Self>,
        callers: impl IntoIterator<Item = C>,
        interrupt: impl Future<Output = ()>,
    ) -> Ended {
        let (refuse, mut refusals) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for (number, caller) in callers.into_iter().enumerate() {
            tasks.spawn(self.clone().call(number, caller, refuse.clone()));
        }
        drop(refuse);
        let mut refused = None;
        let mut interrupted = tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => false,
            () = interrupt => true,
            Some(reason) = refusals.recv() => {
                refused = Some(reason);
                false
            }
        };
        if interrupted || refused.is_some() {
            self.gate.close();
            let _ = timeout(INTERRUPTED_WAIT, async { while tasks.join_next().await.is_some() {} }).await;
            tasks.abort_all();
        }
        // Both can come at once, and what was refused counts more.
        refused = refused.or_else(|| refusals.try_recv().ok());
        interrupted &= refused.is_none();
        self.gate.close();
        let elapsed = self.start.elapsed().saturating_sub(self.plan.warmup);
        let begun = self.begun.load(Ordering::Relaxed);
        let planned = self.length(begun);
        Ended {
            elapsed: elapsed.max(planned),
            planned,
            unsent: self.released.load(Ordering::Relaxed).saturating_sub(begun),
            interrupted,
            refused,
        }
    }

    /// How much of it is done, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        let of_time = self.start.elapsed().as_secs_f64() / self.end().as_secs_f64();
        let requests = self.plan.requests.unwrap_or(u64::MAX);
        of_time.max(self.begun.load(Ordering::Relaxed) as f64 / requests as f64).min(1.0)
    }

    /// Since the end of the warm-up; none before.
    pub(super) fn measured(&self) -> Option<Duration> {
        self.start.elapsed().checked_sub(self.plan.warmup)
    }

    /// Lets go what is due, and says when to come again; nothing once it is over.
    pub(super) fn release(&self, now: Instant) -> Option<Instant> {
        let rate = self.plan.rate.filter(|_| !self.gate.is_closed())?;
        let elapsed = now.saturating_duration_since(self.start);
        if elapsed >= self.end() + LATE_MAX {
            self.gate.close();
        }
        // Number n is due at n ÷ rate, so that the first is due at once.
        let due = (elapsed.as_nanos() * u128::from(rate) / 1_000_000_000).saturating_add(1);
        let due = u64::try_from(due).unwrap_or(u64::MAX).min(self.total());
        let fresh = due.saturating_sub(self.released.swap(due, Ordering::Relaxed));
        self.gate.add_permits(usize::try_from(fresh).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS));
        Some(self.due(due, rate).clamp(now, now + PACE_LOOK))
    }

    /// Lets requests go when they are due, on a thread of its own: the runtime's timer counts in milliseconds, which is longer than most answers take.
    pub(super) fn pace(self: &Arc<Self>) {
        let load = self.clone();
        std::thread::spawn(move || {
            while let Some(next) = load.release(Instant::now()) {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
    }

    async fn call<C: Caller>(self: Arc<Self>, number: usize, mut caller: C, refuse: mpsc::Sender<String>) {
        while let Some(turn) = self.turn().await {
            let (sent, counted_from) = (Instant::now(), self.start + self.plan.warmup);
            // What the warm-up could not get done is no part of what is measured.
            if turn.due < counted_from && sent >= counted_from {
                continue;
            }
            let key = self.plan.keys.of(turn.number);
            let outcome = match timeout(self.plan.timeout, caller.ask(key)).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    caller.hang_up();
                    Err(Fault::Timeout)
                }
            };
            if turn.due >= counted_from {
                let times = Times { latency: turn.due.elapsed(), service: sent.elapsed() };
                self.records.add(number, &outcome, times);
            }
            match outcome {
                Err(Fault::Connect(_)) => sleep(CONNECT_PAUSE).await,
                Err(Fault::Refused(reason)) => drop(refuse.try_send(reason)),
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
            // Whoever waits for a turn waits no longer.
            self.gate.close();
        }
        Some(Turn { number, due: self.plan.rate.map_or(now, |rate| self.due(number, rate)) })
    }

    fn due(&self, number: u64, rate: u64) -> Instant {
        let nanoseconds = u128::from(number) * 1_000_000_000 / u128::from(rate);
        self.start + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// How many requests there are in all, as far as that is known before.
    fn total(&self) -> u64 {
        let in_time = self.plan.rate.map_or(u64::MAX, |rate| {
            let requests = self.end().as_nanos() * u128::from(rate) / 1_000_000_000;
            u64::try_from(requests).unwrap_or(u64::MAX).max(1)
        });
        in_time.min(self.plan.requests.unwrap_or(u64::MAX))
    }

    /// How long sending takes, from the start.
    fn end(&self) -> Duration {
        self.plan.warmup + self.plan.duration
    }

    /// How long so many requests take at the rate asked for, without the warm-up.
    fn length(&self, requests: u64) -> Duration {
        let Some(rate) = self.plan.rate else { return Duration::ZERO };
        self.due(requests, rate).saturating_duration_since(self.start + self.plan.warmup)
    }
}

#[cfg(test)]
mod tests;
