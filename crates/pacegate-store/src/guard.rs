//! A deadline and a circuit breaker around a store, and an answer for every request when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pacegate_core::{Cost, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use crate::breaker::{BreakerState, Change, SharedBreaker, Turn, Verdict};
use crate::error::StoreError;
use crate::failure::decide_without_store;
use crate::figure::{Figure, Figures};
use crate::store::{Action, ApplyFuture, Command, Outcome, Store};

/// How often an unreachable store is looked at. Callers wait for the breaker; this finds a store that is back sooner, with one harmless command.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a store may search for counters to forget: an operator waits for it, and no request does.
const SEARCH_DEADLINE: Duration = Duration::from_secs(10);
/// The target of spans that are meant for traces alone: one around every call of a store.
pub const TRACES: &str = "pacegate_traces";
/// An error that lasts is logged this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A store that always answers within its deadline: from the store it guards, or by the failure mode of each limit.
///
/// Commands that only make sense on the store itself, resets and refunds, fail with the store.
#[derive(Debug)]
pub struct GuardedStore {
    name: Box<str>,
    store: Arc<dyn Store>,
    /// Decides for limits that fall back to this process, and tells the time when nobody else does.
    local: Arc<dyn Store>,
    deadline: Duration,
    breaker: SharedBreaker,
    /// The store refuses to work for us: until it answers again, somebody has to act.
    rejected: AtomicBool,
    looking: AtomicBool,
    errors: AtomicU64,
    degraded: AtomicU64,
    breaker_openings: AtomicU64,
    logged: Mutex<Option<Instant>>,
    own: Weak<Self>,
}

/// Whether a store can be relied on now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreHealth {
    /// It answers.
    Up,
    /// It fails, and requests are answered by the failure mode; it is looked at until it is back.
    Down,
    /// It refuses to work for us: somebody has to change its configuration or ours.
    Rejected,
}

impl GuardedStore {
    /// How long a store may take when nothing else is configured.
    pub const DEADLINE: Duration = Duration::from_millis(50);

    /// Guards `store`, which is called `name` in logs. `local` stands in for limits that fall back to this process.
    pub fn new(name: &str, store: Arc<dyn Store>, local: Arc<dyn Store>, deadline: Duration) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            name: name.into(),
            store,
            local,
            deadline,
            breaker: SharedBreaker::new(),
            rejected: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            errors: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            breaker_openings: AtomicU64::new(0),
            logged: Mutex::new(None),
            own: own.clone(),
        })
    }

    /// The same store for callers who wait for at most `deadline`. It has a breaker of its own: what is too slow for them may be fast enough for others.
    pub fn within(&self, deadline: Duration) -> Arc<Self> {
        Self::new(&self.name, self.store.clone(), self.local.clone(), deadline.min(self.deadline))
    }

    /// What the configuration calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can be relied on now.
    pub fn health(&self) -> StoreHealth {
        if self.rejected.load(Ordering::Relaxed) {
            StoreHealth::Rejected
        } else if self.breaker.lock().is_closed() {
            StoreHealth::Up
        } else {
            StoreHealth::Down
        }
    }

    /// Whether it is asked at all.
    pub fn breaker(&self) -> BreakerState {
        self.breaker.lock().state()
    }

    async fn call(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
        deadline: Duration,
    ) -> Vec<Result<Outcome, StoreError>> {
        let Some(turn) = self.breaker.turn() else {
            let refused =
                || Err(StoreError::unavailable("the store failed too often; it is left alone for a while"));
            return commands.iter().map(|_| refused()).collect();
        };
        let results = match timeout(deadline, self.store.apply(commands, now)).await {
            Ok(mut results) => {
                // What is missing counts as the failure it is.
                results.resize_with(commands.len(), || Err(StoreError::unanswered()));
                results
            }
            Err(_) => {
                let late = || Err(StoreError::timed_out(format!("no answer within {deadline:?}")));
                commands.iter().map(|_| late()).collect()
            }
        };
        self.record(turn, &results);
        results
    }

    fn record(&self, turn: Turn<'_>, results: &[Result<Outcome, StoreError>]) {
        let errors = || results.iter().filter_map(|result| result.as_ref().err());
        let verdict = match errors().find(|error| error.is_outage() || error.is_rejection()) {
            None => Verdict::Succeeded,
            Some(error) if error.is_timeout() => Verdict::TimedOut,
            Some(_) => Verdict::Failed,
        };
        self.errors.fetch_add(errors().count() as u64, Ordering::Relaxed);
        // One thing at a time: the lock is gone before anything is logged or started.
        let change = turn.finish(verdict);
        if verdict == Verdict::Succeeded {
            self.rejected.store(false, Ordering::Relaxed);
        } else if errors().any(StoreError::is_rejection) {
            self.rejected.store(true, Ordering::Relaxed);
        }
        if let Some(error) = errors().find(|error| error.is_permanent()) {
            self.log_lasting(error);
        }
        match change {
            Change::None => {}
            Change::Opened => {
                self.breaker_openings.fetch_add(1, Ordering::Relaxed);
                let error = errors().next().map(ToString::to_string).unwrap_or_default();
                tracing::error!(
                    store = &*self.name,
                    error,
                    "the store fails; requests are answered by the failure mode"
                );
            }
            Change::Closed => tracing::info!(store = &*self.name, "the store answers again"),
        }
        if self.health() != StoreHealth::Up {
            self.look_until_back();
        }
    }

    /// An error that needs somebody is logged loudly, but not once per request.
    fn log_lasting(&self, error: &StoreError) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY) {
            *logged = Some(now);
            drop(logged);
            tracing::error!(store = &*self.name, %error, "the store needs attention; requests are answered by the failure mode");
        }
    }

    fn look_until_back(&self) {
        if self.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (own, deadline) = (self.own.clone(), self.deadline);
        tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
                let Some(guard) = own.upgrade() else { return };
                if guard.health() == StoreHealth::Up {
                    guard.looking.swap(false, Ordering::AcqRel);
                    // It may have failed again in between, when nobody else could start to look.
                    if guard.health() == StoreHealth::Up || guard.looking.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                let look = Command { action: Action::peek(), charges: &[], cost: Cost::ONE };
                if !guard.breaker.lock().is_open() {
                    // A node that is not ready gets no requests, so nobody else may come to find out.
                    guard.call(&[look], None, deadline).await;
                    continue;
                }
                let looked = timeout(deadline.max(LOOK_EVERY), guard.store.apply(&[look], None)).await;
                if looked.is_ok_and(|results| results.iter().all(Result::is_ok)) {
                    guard.breaker.lock().half_open();
                }
            }
        });
    }

    async fn answer(
        &self,
        command: &Command<'_>,
        result: Result<Outcome, StoreError>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        match (result, command.action) {
            (Err(error), Action::Take { .. } | Action::Peek { .. })
                if error.is_outage() || error.is_permanent() =>
            {
                self.degraded.fetch_add(1, Ordering::Relaxed);
                decide_without_store(command, &*self.local, now).await
            }
            (result, _) => result,
        }
    }
}

impl GuardedStore {
    /// As [`apply`](Store::apply), for a caller who has only so much time left.
    pub async fn apply_within(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Vec<Result<Outcome, StoreError>> {
        let span =
            tracing::info_span!(target: TRACES, "store", store = &*self.name, commands = commands.len());
        let searches = |command: &Command<'_>| matches!(command.action, Action::ResetVariants);
        let deadline = if commands.iter().any(searches) { SEARCH_DEADLINE } else { self.deadline };
        let called = self.call(commands, now, deadline.min(at_most)).instrument(span).await;
        let mut results = called.into_iter();
        let mut answers = Vec::with_capacity(commands.len());
        for command in commands {
            let result = results.next().unwrap_or_else(|| Err(StoreError::unanswered()));
            answers.push(self.answer(command, result, now).await);
        }
        answers
    }
}

impl GuardedStore {
    /// Applies a command that is worth nothing without the store: it fails with the store instead of
    /// being answered by the failure mode.
    ///
    /// # Errors
    /// That of the store, or that it is not asked for now.
    pub async fn apply_or_fail(&self, command: &Command<'_>) -> Result<Outcome, StoreError> {
        let span = tracing::info_span!(target: TRACES, "store", store = &*self.name, commands = 1);
        let called = self.call(std::slice::from_ref(command), None, self.deadline).instrument(span);
        called.await.pop().unwrap_or_else(|| Err(StoreError::unanswered()))
    }
}

impl Store for GuardedStore {
    fn apply<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(self.apply_within(commands, now, self.deadline))
    }

    fn figures(&self) -> Figures {
        let mut figures = self.store.figures();
        figures.extend([
            ("errors", Figure::Count(self.errors.load(Ordering::Relaxed))),
            ("degraded", Figure::Count(self.degraded.load(Ordering::Relaxed))),
            ("breaker_openings", Figure::Count(self.breaker_openings.load(Ordering::Relaxed))),
        ]);
        figures
    }
}
