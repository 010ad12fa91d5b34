//! A deadline and a circuit breaker around a store, and a decision for every request when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pacegate_core::Timestamp;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use crate::breaker::{BreakerState, Change, PermittedCall, SharedBreaker, Verdict};
use crate::error::StoreError;
use crate::failure::{FailureMode, WithoutStore, decide_without_store};
use crate::figure::{Figure, Figures};
use crate::parts::{Part, apply_in_parts};
use crate::pieces::{PIECE_KEYS_MAX, keys};
use crate::store::{Action, ApplyFuture, BatchFuture, Command, Outcome, Store};

/// Interval between probes of a store that responds, so that an outage is noticed without traffic.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Time after which a failed probe is repeated.
const PROBE_RETRY_AFTER: Duration = Duration::from_millis(250);
/// Number of consecutive failed probes that opens the breaker.
const FAILED_PROBES_MAX: u32 = 2;
/// Interval between probes of a failing store. Callers wait for the breaker; probing detects
/// recovery sooner.
const FAILING_PROBE_EVERY: Duration = Duration::from_millis(500);
/// Deadline for searching the counters to reset. Only an operator waits for it.
const SEARCH_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of keys of a call that is made at once, like a single check; larger calls queue.
const UNQUEUED_KEYS_MAX: usize = 16;
/// Maximum number of queued calls that run concurrently in a store.
const QUEUED_CALLS_MAX: usize = 2;
/// Maximum total time that a batch waits in the queue.
const QUEUE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The target of spans that are recorded only in traces: one around every call to a store.
pub const TRACES: &str = "pacegate_traces";
/// Interval at which a persistent error is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A store that always responds within its deadline: from the guarded store, or by the failure mode
/// of each limit.
///
/// Resets and refunds have no failure mode: they fail with the store.
#[derive(Debug)]
pub struct GuardedStore {
    name: Box<str>,
    store: Arc<dyn Store>,
    /// Decides limits that fall back to local counters, and provides the time if nothing else does.
    local: Arc<dyn Store>,
    deadline: Duration,
    breaker: SharedBreaker,
    /// Admits the pieces of batches, first come, first served.
    batch_slots: Arc<Semaphore>,
    /// Whether the store rejects our requests; until it accepts them again, an operator has to act.
    rejected: AtomicBool,
    /// Whether the task that probes the store is running.
    probing: AtomicBool,
    /// The guard with the full deadline. It probes the store for both, and while its breaker is not
    /// closed, this guard makes no calls either.
    parent: Option<Arc<Self>>,
    errors: AtomicU64,
    degraded: AtomicU64,
    breaker_openings: AtomicU64,
    /// Commands that needed a new key when the store was out of memory, and when the budget was
    /// used up.
    full: AtomicU64,
    over_budget: AtomicU64,
    logged: Mutex<Option<Instant>>,
    logged_new_keys: Mutex<Option<Instant>>,
    own: Weak<Self>,
}

/// Whether a store is usable now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreHealth {
    /// It responds.
    Up,
    /// It is unavailable and failure modes apply; it is probed until it responds again.
    Down,
    /// It rejects our requests: an operator has to change its configuration or ours.
    Rejected,
}

impl GuardedStore {
    /// The default deadline of a store.
    pub const DEADLINE: Duration = Duration::from_millis(50);

    /// Guards `store`, which is called `name` in logs. `local` decides limits that fall back to
    /// local counters.
    ///
    /// While the guard exists, the store is probed every second. This needs a Tokio runtime: the
    /// current one, or that of the first call.
    pub fn new(name: &str, store: Arc<dyn Store>, local: Arc<dyn Store>, deadline: Duration) -> Arc<Self> {
        let batch_slots = Arc::new(Semaphore::new(QUEUED_CALLS_MAX));
        let guard = Self::build(name, store, local, deadline, batch_slots, None);
        guard.start_probing();
        guard
    }

    fn build(
        name: &str,
        store: Arc<dyn Store>,
        local: Arc<dyn Store>,
        deadline: Duration,
        batch_slots: Arc<Semaphore>,
        parent: Option<Arc<Self>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            name: name.into(),
            store,
            local,
            deadline,
            breaker: SharedBreaker::new(),
            batch_slots,
            rejected: AtomicBool::new(false),
            probing: AtomicBool::new(false),
            parent,
            errors: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            breaker_openings: AtomicU64::new(0),
            full: AtomicU64::new(0),
            over_budget: AtomicU64::new(0),
            logged: Mutex::new(None),
            logged_new_keys: Mutex::new(None),
            own: own.clone(),
        })
    }

    /// A guard of the same store for callers that wait for at most `deadline`. It has a separate
    /// breaker: what is too slow for them may be fast enough for others. Only the guard with the
    /// full deadline reports whether the store is up.
    pub fn within(&self, deadline: Duration) -> Arc<Self> {
        let deadline = deadline.min(self.deadline);
        let (store, local, batch_slots) = (self.store.clone(), self.local.clone(), self.batch_slots.clone());
        Self::build(&self.name, store, local, deadline, batch_slots, self.own.upgrade())
    }

    /// The store's name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the store is usable now.
    pub fn health(&self) -> StoreHealth {
        if self.rejected.load(Ordering::Relaxed) {
            StoreHealth::Rejected
        } else if self.breaker.lock().is_closed() {
            StoreHealth::Up
        } else {
            StoreHealth::Down
        }
    }

    /// The state of the circuit breaker.
    pub fn breaker(&self) -> BreakerState {
        self.breaker.lock().state()
    }

    /// Makes one call to the store within the deadline and records it in the breaker. An error
    /// applies to every command of the call.
    async fn call<R: AsRef<[Result<Outcome, StoreError>]>>(
        &self,
        call: impl Future<Output = R>,
        commands: &[Command<'_>],
        deadline: Duration,
    ) -> Result<R, StoreError> {
        self.start_probing();
        if deadline.is_zero() {
            return Err(StoreError::unavailable("deadline exceeded before the store was called"));
        }
        let down = self.parent.as_ref().is_some_and(|parent| !parent.breaker.lock().is_closed());
        let Some(permitted) = (if down { None } else { self.breaker.try_call() }) else {
            return Err(StoreError::unavailable("circuit breaker is open"));
        };
        let Ok(results) = timeout(deadline, call).await else {
            let late = StoreError::timed_out(format!("no response within {deadline:?}"));
            if self.counts_for_breaker(commands, deadline) {
                self.record(permitted, &[Err::<Outcome, _>(late.without_source())]);
                self.errors.fetch_add(commands.len().saturating_sub(1) as u64, Ordering::Relaxed);
            } else {
                self.errors.fetch_add(commands.len() as u64, Ordering::Relaxed);
            }
            return Err(late);
        };
        self.record(permitted, results.as_ref());
        Ok(results)
    }

    /// Whether a timeout of the call means that the store is too slow, rather than that the call
    /// was too large or had less time than usual. Up to a tenth of the deadline may have been spent
    /// before the call.
    fn counts_for_breaker(&self, commands: &[Command<'_>], deadline: Duration) -> bool {
        keys(commands) <= PIECE_KEYS_MAX && deadline >= self.deadline.mul_f64(0.9)
    }

    fn record<T>(&self, permitted: PermittedCall<'_>, results: &[Result<T, StoreError>]) {
        // A store that rejects new keys has responded.
        let errors = || {
            results
                .iter()
                .filter_map(|result| result.as_ref().err())
                .filter(|error| !error.rejects_new_keys())
        };
        let verdict = match errors().find(|error| error.is_outage() || error.is_rejection()) {
            None => Verdict::Succeeded,
            Some(error) if error.is_timeout() => Verdict::TimedOut,
            Some(_) => Verdict::Failed,
        };
        self.errors.fetch_add(errors().count() as u64, Ordering::Relaxed);
        // The lock is released before anything is logged or started.
        let change = permitted.finish(verdict);
        if verdict == Verdict::Succeeded {
            self.rejected.store(false, Ordering::Relaxed);
        } else if errors().any(StoreError::is_rejection) {
            self.rejected.store(true, Ordering::Relaxed);
        }
        if let Some(error) = errors().find(|error| error.is_permanent()) {
            self.log_permanent(error);
        }
        self.note(change, errors().next());
        if self.parent.is_some() && self.health() != StoreHealth::Up {
            self.probe_in_background();
        }
    }

    fn note(&self, change: Change, error: Option<&StoreError>) {
        match change {
            Change::None => {}
            Change::Opened => {
                self.breaker_openings.fetch_add(1, Ordering::Relaxed);
                let error = error.map(ToString::to_string).unwrap_or_default();
                let (store, deadline) = (&*self.name, self.deadline);
                tracing::error!(store, ?deadline, error, "store unavailable; failure mode applies");
            }
            Change::Closed => {
                tracing::info!(store = &*self.name, deadline = ?self.deadline, "store available again");
            }
        }
    }

    /// Logs an error that an operator has to act on, but not once per request.
    fn log_permanent(&self, error: &StoreError) {
        if is_due(&self.logged) {
            tracing::error!(store = &*self.name, %error, "store error requires operator action; failure mode applies");
        }
    }

    fn note_new_key(&self, error: &StoreError) {
        let counted = if error.is_full() { &self.full } else { &self.over_budget };
        counted.fetch_add(1, Ordering::Relaxed);
        if !is_due(&self.logged_new_keys) {
            return;
        }
        let store = &*self.name;
        if error.is_full() {
            tracing::error!(store, %error, "store full; failure mode applies to checks that need a new key");
        } else {
            tracing::warn!(store, %error, "new-key budget used up; further new keys use local counters");
        }
    }

    /// Starts the probes of a guard with the full deadline, unless they run or there is no runtime
    /// yet.
    fn start_probing(&self) {
        if self.parent.is_none() && !self.probing.load(Ordering::Relaxed) {
            self.probe_in_background();
        }
    }

    /// Probes the store as long as the guard exists; for a guard made by `within`, as long as its
    /// breaker is not closed.
    fn probe_in_background(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let own = self.own.clone();
        let mut failed = 0;
        let mut pause = if self.parent.is_none() { PROBE_EVERY } else { FAILING_PROBE_EVERY };
        runtime.spawn(async move {
            loop {
                sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
                let Some(guard) = own.upgrade() else { return };
                if guard.parent.is_some() && guard.health() == StoreHealth::Up {
                    guard.probing.swap(false, Ordering::AcqRel);
                    // It may have failed again in between, while no other task could start.
                    if guard.health() == StoreHealth::Up || guard.probing.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                pause = guard.probe(&mut failed).await;
            }
        });
    }

    /// Probes the store once and returns the time until the next probe. `failed` counts the
    /// consecutive failed probes while the breaker was closed.
    async fn probe(&self, failed: &mut u32) -> Duration {
        if self.health() == StoreHealth::Up {
            let probed = self.probe_within(self.deadline).await;
            let Err(error) = probed else {
                *failed = 0;
                return PROBE_EVERY;
            };
            self.errors.fetch_add(1, Ordering::Relaxed);
            if error.is_rejection() {
                self.rejected.store(true, Ordering::Relaxed);
                self.log_permanent(&error);
                return FAILING_PROBE_EVERY;
            }
            if !error.is_outage() {
                *failed = 0;
                return PROBE_EVERY;
            }
            *failed += 1;
            if *failed < FAILED_PROBES_MAX {
                return PROBE_RETRY_AFTER;
            }
            let change = self.breaker.lock().trip(Instant::now(), fastrand::f64());
            self.note(change, Some(&error));
            return FAILING_PROBE_EVERY;
        }
        *failed = 0;
        if self.breaker.lock().is_open() {
            let probe_deadline = self.deadline.max(FAILING_PROBE_EVERY);
            // Stays open until the next probe has ended, so that no caller has to wait for its
            // result.
            self.breaker.lock().stay_open(Instant::now() + probe_deadline + 2 * FAILING_PROBE_EVERY);
            if self.probe_within(probe_deadline).await.is_ok() {
                self.breaker.lock().half_open();
            }
        } else if let Some(permitted) = self.breaker.try_call() {
            // An unready node gets no requests, so there may be no caller to probe with.
            let probed = self.probe_within(self.deadline).await;
            self.record(permitted, &[probed]);
        }
        FAILING_PROBE_EVERY
    }

    async fn probe_within(&self, deadline: Duration) -> Result<(), StoreError> {
        let late = |_| Err(StoreError::timed_out(format!("no response within {deadline:?}")));
        timeout(deadline, self.store.probe()).await.unwrap_or_else(late)
    }

    async fn answer(
        &self,
        command: &Command<'_>,
        result: Result<Outcome, StoreError>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        match (result, command.action) {
            (Err(error), Action::Take { .. } | Action::Peek { .. }) if error.rejects_new_keys() => {
                self.note_new_key(&error);
                self.degraded.fetch_add(1, Ordering::Relaxed);
                Box::pin(self.answer_without_new_keys(command, &error, now)).await
            }
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
    /// Lets the store decide the charges of existing keys. The others are decided by their failure
    /// mode, or by local counters if the budget of new keys is used up. All of them are charged, or
    /// none is.
    async fn answer_without_new_keys(
        &self,
        command: &Command<'_>,
        error: &StoreError,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let mode = (!error.is_full()).then_some(FailureMode::Local);
        let without_store = WithoutStore { local: self.local.clone(), mode };
        let (new, known): (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) =
            (0..command.charges.len()).partition(|index| error.is_new_key(*index));
        let Some(own) = self.own.upgrade().filter(|_| !known.is_empty()) else {
            return without_store.decide(command, now).await;
        };
        // The record of an idempotency key goes with the last part, because the store is out of
        // memory for it. Without new charges, only the record was rejected.
        if new.is_empty() && command.idempotency().is_none() {
            return without_store.decide(command, now).await;
        }
        let parts =
            vec![Part { store: own, charges: known }, Part { store: Arc::new(without_store), charges: new }];
        match timeout(self.deadline, apply_in_parts(parts, command, now)).await {
            Ok(answered) => answered,
            Err(_) => decide_without_store(command, &*self.local, now).await,
        }
    }

    /// Like [`apply`](Store::apply), for a caller that has at most this much time left.
    ///
    /// # Errors
    /// The store's error, for commands without a failure mode.
    pub async fn apply_within(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let started = Instant::now();
        let _slot = if command.keys() <= UNQUEUED_KEYS_MAX {
            None
        } else {
            match timeout(at_most.min(QUEUE_WAIT_MAX), self.batch_slots.acquire()).await {
                Ok(slot) => Some(slot),
                Err(_) => return self.answer(command, Err(too_many_batches()), now).await,
            }
        };
        let result = self.call_one(command, now, at_most.saturating_sub(started.elapsed())).await;
        self.answer(command, result, now).await
    }

    /// Like [`apply_batch`](Store::apply_batch), for a caller that has at most this much time left.
    ///
    /// Batches are applied in [pieces](Store::piece), each with the full deadline, and queue for a
    /// slot: a single check never waits for more than a few pieces.
    pub async fn apply_batch_within(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Vec<Result<Outcome, StoreError>> {
        let mut piece = if commands.len() < 2 { commands.len() } else { self.store.piece(commands) };
        if piece == commands.len() && keys(commands) <= UNQUEUED_KEYS_MAX {
            let called = self.call_piece(commands, now, at_most).await;
            return self.answer_all(commands, called, now).await;
        }
        let mut answers = Vec::with_capacity(commands.len());
        let (started, mut waited) = (Instant::now(), Duration::ZERO);
        while answers.len() < commands.len() {
            let (own, rest) = commands[answers.len()..].split_at(piece);
            let waits_from = Instant::now();
            let left = at_most.saturating_sub(started.elapsed());
            let slot =
                timeout(left.min(QUEUE_WAIT_MAX.saturating_sub(waited)), self.batch_slots.acquire()).await;
            waited += waits_from.elapsed();
            let Ok(slot) = slot else {
                // The rest of the batch cannot be decided in time either.
                let undecided = &commands[answers.len()..];
                answers.extend(self.answer_all(undecided, Err(too_many_batches()), now).await);
                break;
            };
            let left = at_most.saturating_sub(started.elapsed());
            let called = self.call_piece(own, now, left).await;
            drop(slot);
            answers.extend(self.answer_all(own, called, now).await);
            piece = if rest.is_empty() { 0 } else { self.store.piece(rest).clamp(1, rest.len()) };
        }
        answers
    }

    async fn call_one(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let commands = std::slice::from_ref(command);
        let call = async { [self.store.apply(command, now).await] };
        let called = self.call(call, commands, self.deadline_of(commands).min(at_most));
        let [result] = called.instrument(self.span(1)).await?;
        result
    }

    async fn call_piece(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
        let call = async {
            let mut results = self.store.apply_batch(commands, now).await;
            // A missing outcome counts as a failure.
            results.resize_with(commands.len(), || Err(StoreError::missing_outcome()));
            results
        };
        let called = self.call(call, commands, self.deadline_of(commands).min(at_most));
        called.instrument(self.span(commands.len())).await
    }

    fn deadline_of(&self, commands: &[Command<'_>]) -> Duration {
        let searches = |command: &Command<'_>| matches!(command.action, Action::ResetVariants);
        if commands.iter().any(searches) { SEARCH_DEADLINE } else { self.deadline }
    }

    fn span(&self, commands: usize) -> tracing::Span {
        tracing::info_span!(target: TRACES, "store", store = &*self.name, commands)
    }

    async fn answer_all(
        &self,
        commands: &[Command<'_>],
        called: Result<Vec<Result<Outcome, StoreError>>, StoreError>,
        now: Option<Timestamp>,
    ) -> Vec<Result<Outcome, StoreError>> {
        let results =
            called.unwrap_or_else(|error| commands.iter().map(|_| Err(error.without_source())).collect());
        let mut answers = Vec::with_capacity(commands.len());
        for (command, result) in commands.iter().zip(results) {
            answers.push(self.answer(command, result, now).await);
        }
        answers
    }
}

impl GuardedStore {
    /// Applies a command that is pointless without the store: it fails with the store, and no
    /// failure mode applies.
    ///
    /// # Errors
    /// The store's error, or that the breaker is open.
    pub async fn apply_or_fail(&self, command: &Command<'_>) -> Result<Outcome, StoreError> {
        self.call_one(command, None, Duration::MAX).await
    }
}

impl Store for GuardedStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(self.apply_within(command, now, Duration::MAX))
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(self.apply_batch_within(commands, now, Duration::MAX))
    }

    fn figures(&self) -> Figures {
        let mut figures = self.store.figures();
        figures.extend([
            ("errors", Figure::Count(self.errors.load(Ordering::Relaxed))),
            ("degraded", Figure::Count(self.degraded.load(Ordering::Relaxed))),
            ("breaker_openings", Figure::Count(self.breaker_openings.load(Ordering::Relaxed))),
            ("full", Figure::Count(self.full.load(Ordering::Relaxed))),
            ("over_budget", Figure::Count(self.over_budget.load(Ordering::Relaxed))),
        ]);
        figures
    }
}

fn too_many_batches() -> StoreError {
    StoreError::unavailable("too many batches queued for the store")
}

/// Whether it is time to log a persistent error again; if so, restarts the interval.
fn is_due(logged: &Mutex<Option<Instant>>) -> bool {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let due = logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY);
    if due {
        *logged = Some(now);
    }
    due
}
