//! A deadline and a circuit breaker around a store, and an answer for every request when it fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pacegate_core::Timestamp;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use crate::breaker::{BreakerState, Change, SharedBreaker, Turn, Verdict};
use crate::error::StoreError;
use crate::failure::{FailureMode, WithoutStore, decide_without_store};
use crate::figure::{Figure, Figures};
use crate::parts::{Part, apply_in_parts};
use crate::pieces::{PIECE_KEYS_MAX, keys};
use crate::store::{Action, ApplyFuture, BatchFuture, Command, Outcome, Store};

/// How often a store that answers is probed, so that an outage is noticed without traffic.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How soon a failed probe is repeated.
const PROBE_AGAIN: Duration = Duration::from_millis(250);
/// This many failed probes in a row open the breaker.
const PROBES_FAILED: u32 = 2;
/// How often a store that fails is probed. Callers wait for the breaker; this finds a store that is back sooner.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a store may search for counters to forget: an operator waits for it, and no request does.
const SEARCH_DEADLINE: Duration = Duration::from_secs(10);
/// A call that touches no more keys than this, as a single check does, is made at once; a larger one takes turns with others.
const AT_ONCE_KEYS_MAX: usize = 16;
/// So many calls that take turns are under way in a store at once.
const TURNS_MAX: usize = 2;
/// How long a batch may wait for its turns, all of them together.
const TURNS_WAIT: Duration = Duration::from_secs(5);
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
    /// What the pieces of batches wait for, first come, first served.
    turns: Arc<Semaphore>,
    /// The store refuses to work for us: until it answers again, somebody has to act.
    rejected: AtomicBool,
    /// Whether the task that probes the store runs.
    probing: AtomicBool,
    /// The guard whose callers can wait longer. It probes the store for both, and while its breaker is not closed this one asks nothing either.
    patient: Option<Arc<Self>>,
    errors: AtomicU64,
    degraded: AtomicU64,
    breaker_openings: AtomicU64,
    /// Commands that needed a key for which the store had no memory, and those that needed one beyond the budget.
    full: AtomicU64,
    over_budget: AtomicU64,
    logged: Mutex<Option<Instant>>,
    logged_new_keys: Mutex<Option<Instant>>,
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
    ///
    /// While the guard exists, the store is probed every second. That needs a Tokio runtime: the current one, or that of the first call.
    pub fn new(name: &str, store: Arc<dyn Store>, local: Arc<dyn Store>, deadline: Duration) -> Arc<Self> {
        let turns = Arc::new(Semaphore::new(TURNS_MAX));
        let guard = Self::build(name, store, local, deadline, turns, None);
        guard.start_probing();
        guard
    }

    fn build(
        name: &str,
        store: Arc<dyn Store>,
        local: Arc<dyn Store>,
        deadline: Duration,
        turns: Arc<Semaphore>,
        patient: Option<Arc<Self>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            name: name.into(),
            store,
            local,
            deadline,
            breaker: SharedBreaker::new(),
            turns,
            rejected: AtomicBool::new(false),
            probing: AtomicBool::new(false),
            patient,
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

    /// The same store for callers who wait for at most `deadline`. It has a breaker of its own: what is too slow for them may be fast enough for
    /// others. Whether the store is up is for the guard with the full deadline to say.
    pub fn within(&self, deadline: Duration) -> Arc<Self> {
        let deadline = deadline.min(self.deadline);
        let (store, local, turns) = (self.store.clone(), self.local.clone(), self.turns.clone());
        Self::build(&self.name, store, local, deadline, turns, self.own.upgrade())
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

    /// Makes one call of the store, which ends in time and counts for the breaker. An error is the answer to every command of the call.
    async fn call<R: AsRef<[Result<Outcome, StoreError>]>>(
        &self,
        call: impl Future<Output = R>,
        commands: &[Command<'_>],
        deadline: Duration,
    ) -> Result<R, StoreError> {
        self.start_probing();
        if deadline.is_zero() {
            return Err(StoreError::unavailable("no time is left for the store"));
        }
        let down = self.patient.as_ref().is_some_and(|patient| !patient.breaker.lock().is_closed());
        let Some(turn) = (if down { None } else { self.breaker.turn() }) else {
            return Err(StoreError::unavailable("the circuit breaker is open"));
        };
        let Ok(results) = timeout(deadline, call).await else {
            let late = StoreError::timed_out(format!("no answer within {deadline:?}"));
            if self.counts_for_breaker(commands, deadline) {
                self.record(turn, &[Err::<Outcome, _>(late.again())]);
                self.errors.fetch_add(commands.len().saturating_sub(1) as u64, Ordering::Relaxed);
            } else {
                self.errors.fetch_add(commands.len() as u64, Ordering::Relaxed);
            }
            return Err(late);
        };
        self.record(turn, results.as_ref());
        Ok(results)
    }

    /// Whether a timeout of the call means that the store is too slow, and not that the call was too large or had less time than others
    /// have. A tenth of the deadline may have been spent before the call.
    fn counts_for_breaker(&self, commands: &[Command<'_>], deadline: Duration) -> bool {
        keys(commands) <= PIECE_KEYS_MAX && deadline >= self.deadline.mul_f64(0.9)
    }

    fn record<T>(&self, turn: Turn<'_>, results: &[Result<T, StoreError>]) {
        // A store that takes no new keys has answered.
        let errors = || {
            results
                .iter()
                .filter_map(|result| result.as_ref().err())
                .filter(|error| !error.takes_no_new_key())
        };
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
        self.note(change, errors().next());
        if self.patient.is_some() && self.health() != StoreHealth::Up {
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
                tracing::error!(
                    store,
                    ?deadline,
                    error,
                    "store unavailable; requests are answered by the failure mode"
                );
            }
            Change::Closed => {
                tracing::info!(store = &*self.name, deadline = ?self.deadline, "store available again");
            }
        }
    }

    /// An error that an operator has to act on is logged loudly, but not once per request.
    fn log_lasting(&self, error: &StoreError) {
        if is_due(&self.logged) {
            tracing::error!(store = &*self.name, %error, "the store needs attention; requests are answered by the failure mode");
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
            tracing::error!(store, %error, "the store is full; checks that need a new key are answered by the failure mode");
        } else {
            tracing::warn!(store, %error, "counters in this process decide on further new keys");
        }
    }

    /// Starts the probes of a guard that decides whether the store is up, unless they run or there is no runtime yet.
    fn start_probing(&self) {
        if self.patient.is_none() && !self.probing.load(Ordering::Relaxed) {
            self.probe_in_background();
        }
    }

    /// Probes the store as long as the guard exists; for callers in a hurry, as long as their breaker is not closed.
    fn probe_in_background(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.probing.swap(true, Ordering::AcqRel) {
            return;
        }
        let own = self.own.clone();
        let mut failed = 0;
        let mut pause = if self.patient.is_none() { PROBE_EVERY } else { LOOK_EVERY };
        runtime.spawn(async move {
            loop {
                sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
                let Some(guard) = own.upgrade() else { return };
                if guard.patient.is_some() && guard.health() == StoreHealth::Up {
                    guard.probing.swap(false, Ordering::AcqRel);
                    // It may have failed again in between, when no other task could start to look.
                    if guard.health() == StoreHealth::Up || guard.probing.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
                pause = guard.probe(&mut failed).await;
            }
        });
    }

    /// Probes the store once, and says when to do so again. `failed` counts the probes that failed in a row while the breaker was closed.
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
                self.log_lasting(&error);
                return LOOK_EVERY;
            }
            if !error.is_outage() {
                *failed = 0;
                return PROBE_EVERY;
            }
            *failed += 1;
            if *failed < PROBES_FAILED {
                return PROBE_AGAIN;
            }
            let change = self.breaker.lock().trip(Instant::now(), fastrand::f64());
            self.note(change, Some(&error));
            return LOOK_EVERY;
        }
        *failed = 0;
        if self.breaker.lock().is_open() {
            let patience = self.deadline.max(LOOK_EVERY);
            // Until the next probe has ended, so that no caller has to wait to find out what this one will.
            self.breaker.lock().stay_open(Instant::now() + patience + 2 * LOOK_EVERY);
            if self.probe_within(patience).await.is_ok() {
                self.breaker.lock().half_open();
            }
        } else if let Some(turn) = self.breaker.turn() {
            // A node that is not ready gets no requests, so no caller may come to find out.
            let probed = self.probe_within(self.deadline).await;
            self.record(turn, &[probed]);
        }
        LOOK_EVERY
    }

    async fn probe_within(&self, deadline: Duration) -> Result<(), StoreError> {
        let late = |_| Err(StoreError::timed_out(format!("no answer within {deadline:?}")));
        timeout(deadline, self.store.probe()).await.unwrap_or_else(late)
    }

    async fn answer(
        &self,
        command: &Command<'_>,
        result: Result<Outcome, StoreError>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        match (result, command.action) {
            (Err(error), Action::Take { .. } | Action::Peek { .. }) if error.takes_no_new_key() => {
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
    /// Has the store decide on the charges that it has keys for, and answers the others by their failure mode, or by counters in this process
    /// where the budget of new keys is spent. All of them are charged, or none is.
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
        // The record of an idempotency key goes with the last part: there is no memory for it in the store. Without new charges it was all
        // that was refused.
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

    /// As [`apply`](Store::apply), for a caller that has at most this much time left.
    ///
    /// # Errors
    /// That of the store, for commands that the failure mode cannot answer.
    pub async fn apply_within(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let started = Instant::now();
        let _turn = if command.keys() <= AT_ONCE_KEYS_MAX {
            None
        } else {
            match timeout(at_most.min(TURNS_WAIT), self.turns.acquire()).await {
                Ok(turn) => Some(turn),
                Err(_) => return self.answer(command, Err(too_many_batches()), now).await,
            }
        };
        let result = self.call_one(command, now, at_most.saturating_sub(started.elapsed())).await;
        self.answer(command, result, now).await
    }

    /// As [`apply_batch`](Store::apply_batch), for a caller that has at most this much time left.
    ///
    /// Batches are applied in [pieces](Store::piece), each with the full deadline, and take turns: a single check never waits for more than a few pieces.
    pub async fn apply_batch_within(
        &self,
        commands: &[Command<'_>],
        now: Option<Timestamp>,
        at_most: Duration,
    ) -> Vec<Result<Outcome, StoreError>> {
        let mut piece = if commands.len() < 2 { commands.len() } else { self.store.piece(commands) };
        if piece == commands.len() && keys(commands) <= AT_ONCE_KEYS_MAX {
            let called = self.call_piece(commands, now, at_most).await;
            return self.answer_all(commands, called, now).await;
        }
        let mut answers = Vec::with_capacity(commands.len());
        let (started, mut waited) = (Instant::now(), Duration::ZERO);
        while answers.len() < commands.len() {
            let (own, rest) = commands[answers.len()..].split_at(piece);
            let waits_from = Instant::now();
            let left = at_most.saturating_sub(started.elapsed());
            let turn = timeout(left.min(TURNS_WAIT.saturating_sub(waited)), self.turns.acquire()).await;
            waited += waits_from.elapsed();
            let Ok(turn) = turn else {
                // Nothing else of the batch is decided in time either.
                let undecided = &commands[answers.len()..];
                answers.extend(self.answer_all(undecided, Err(too_many_batches()), now).await);
                break;
            };
            let left = at_most.saturating_sub(started.elapsed());
            let called = self.call_piece(own, now, left).await;
            drop(turn);
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
            // What is missing counts as the failure it is.
            results.resize_with(commands.len(), || Err(StoreError::unanswered()));
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
        let results = called.unwrap_or_else(|error| commands.iter().map(|_| Err(error.again())).collect());
        let mut answers = Vec::with_capacity(commands.len());
        for (command, result) in commands.iter().zip(results) {
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
    StoreError::unavailable("too many batches wait for the store")
}

/// Whether a line about an error that lasts is due; if so, the next one is due later.
fn is_due(logged: &Mutex<Option<Instant>>) -> bool {
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let due = logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY);
    if due {
        *logged = Some(now);
    }
    due
}
