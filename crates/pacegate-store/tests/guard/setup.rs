//! A guarded store with scripted behaviour, and helpers.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pacegate_core::{Algorithm, Answer, ChainDecision, Counter, Key, Limit, Reason, Timestamp};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{
    Action, ApplyFuture, BatchFuture, Charge, Command, FailureMode, Figure, Figures, GuardedStore,
    Idempotency, Outcome, Store, StoreError, StoreHealth,
};
use pacegate_testkit::SimulatedClock;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

pub(crate) const DEADLINE: Duration = GuardedStore::DEADLINE;
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// Both kinds of commands that are decided without the store.
pub(crate) const DECIDED: [Action<'static>; 2] = [Action::take(), Action::peek()];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Behaviour {
    Answer,
    AnswerAfter(Duration),
    Hang,
    Unavailable,
    Rejected,
    /// Only for keys of the identifier `foreign`.
    Foreign,
    Overloaded,
    /// Breaks its contract: returns no outcome.
    Silent,
}

/// A store with scripted behaviour that counts its calls.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) behaviour: Mutex<Behaviour>,
    pub(crate) calls: AtomicUsize,
    /// Number of commands without charges, which only the guard itself sends.
    pub(crate) probes: AtomicUsize,
    pub(crate) memory: MemoryStore,
}

impl Scripted {
    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn probes(&self) -> usize {
        self.probes.load(Ordering::SeqCst)
    }
}

impl Store for Scripted {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let outcome = self.apply_batch(std::slice::from_ref(command), now).await.pop();
            outcome.unwrap_or_else(|| Err(StoreError::missing_outcome()))
        })
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let is_probe = commands.iter().all(|command| command.charges.is_empty());
            let counter = if is_probe { &self.probes } else { &self.calls };
            counter.fetch_add(1, Ordering::SeqCst);
            let behaviour = *self.behaviour.lock().unwrap();
            match behaviour {
                Behaviour::Hang => pending::<()>().await,
                Behaviour::AnswerAfter(time) => sleep(time).await,
                Behaviour::Silent => return Vec::new(),
                _ => {}
            }
            let is_foreign = |command: &Command<'_>| {
                command.charges.iter().any(|charge| charge.key.identifier() == "foreign")
            };
            let answer = |command: &Command<'_>| match behaviour {
                Behaviour::Unavailable => Err(StoreError::unavailable("connection refused")),
                Behaviour::Rejected => Err(StoreError::rejected("wrong password")),
                Behaviour::Overloaded => Err(StoreError::overloaded()),
                Behaviour::Foreign if is_foreign(command) => Err(StoreError::foreign("not ours")),
                _ => self.memory.apply_now(command, now),
            };
            commands.iter().map(answer).collect()
        })
    }

    fn figures(&self) -> Figures {
        vec![("connects", Figure::Count(7))]
    }
}

/// A guarded store and its parts.
pub(crate) struct Setup {
    pub(crate) clock: Arc<SimulatedClock>,
    pub(crate) store: Arc<Scripted>,
    pub(crate) guard: Arc<GuardedStore>,
}

impl Setup {
    pub(crate) fn new(behaviour: Behaviour) -> Self {
        Self::with_deadline(behaviour, DEADLINE)
    }

    pub(crate) fn with_deadline(behaviour: Behaviour, deadline: Duration) -> Self {
        let clock = Arc::new(SimulatedClock::default());
        let memory = || MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
        let store = Arc::new(Scripted {
            behaviour: Mutex::new(behaviour),
            calls: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            memory: memory(),
        });
        let guard = GuardedStore::new("hot", store.clone(), Arc::new(memory()), deadline);
        Self { clock, store, guard }
    }

    pub(crate) async fn apply(&self, action: Action<'_>, rules: &[&Rule]) -> Result<Outcome, StoreError> {
        let charges: Vec<Charge<'_>> = rules.iter().map(|rule| rule.charge()).collect();
        let command = Command { action, charges: &charges };
        self.guard.apply(&command, None).await
    }

    pub(crate) async fn decide(&self, action: Action<'_>, rules: &[&Rule]) -> ChainDecision {
        decided(self.apply(action, rules).await)
    }

    pub(crate) async fn take(&self, rules: &[&Rule]) -> ChainDecision {
        self.decide(Action::take(), rules).await
    }

    pub(crate) fn figure(&self, name: &str) -> u64 {
        self.guard.figures().into_iter().find(|(other, _)| *other == name).unwrap().1.value()
    }

    /// Causes timeouts until the store is no longer called.
    pub(crate) async fn open_breaker(&self) {
        self.store.set(Behaviour::Hang);
        for _ in 0..5 {
            self.take(&[&rule(FailureMode::Open)]).await;
        }
        assert_eq!(self.guard.health(), StoreHealth::Down);
    }

    /// Like [`open_breaker`](Self::open_breaker), and then the store recovers and a probe succeeds:
    /// callers may probe.
    pub(crate) async fn half_open_breaker(&self) {
        self.open_breaker().await;
        self.store.set(Behaviour::Answer);
        // A hanging probe is waited for; the next one succeeds.
        let before = self.store.probes();
        while self.store.probes() == before {
            sleep(Duration::from_millis(1)).await;
        }
        yield_now().await;
        assert_eq!(self.guard.health(), StoreHealth::Down);
    }

    /// Makes concurrent takes and returns how many of them the store decided.
    pub(crate) async fn take_at_once(&self, takes: usize) -> usize {
        let mut tasks = JoinSet::new();
        for _ in 0..takes {
            let guard = self.guard.clone();
            tasks.spawn(async move { take_alone(&guard).await });
        }
        tasks.join_all().await.iter().filter(|decision| !decision.degraded()).count()
    }
}

pub(crate) async fn take_alone(guard: &GuardedStore) -> ChainDecision {
    let rule = Rule { limit: per_hour(1_000), ..rule(FailureMode::Open) };
    let charges = [rule.charge()];
    let command = Command::take(&charges);
    decided(guard.apply(&command, None).await)
}

pub(crate) fn decided(result: Result<Outcome, StoreError>) -> ChainDecision {
    match result {
        Ok(Outcome::Decided(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

/// A limit of two per hour with a failure mode.
pub(crate) struct Rule {
    pub(crate) counter: Counter,
    pub(crate) identifier: &'static str,
    pub(crate) limit: Limit,
    pub(crate) shadow: bool,
    pub(crate) on_store_error: FailureMode,
}

impl Rule {
    pub(crate) fn charge(&self) -> Charge<'_> {
        let key = Key::new(&self.counter, self.identifier, "");
        Charge { shadow: self.shadow, on_store_error: self.on_store_error, ..Charge::new(key, &self.limit) }
    }
}

pub(crate) fn rule(on_store_error: FailureMode) -> Rule {
    named("rule", on_store_error)
}

pub(crate) fn named(name: &str, on_store_error: FailureMode) -> Rule {
    let counter = Counter::new(name, "user", "*");
    Rule { counter, identifier: "u", limit: per_hour(2), shadow: false, on_store_error }
}

/// A log has no window edges at which a count would restart.
pub(crate) fn per_hour(quota: u64) -> Limit {
    Limit::try_new(Algorithm::SlidingLog, quota, HOUR).unwrap()
}

pub(crate) fn reasons(decision: &ChainDecision) -> Vec<Option<Reason>> {
    decision.answers.iter().map(|answer| answer.reason).collect()
}

pub(crate) fn assert_counts_unknown(answer: &Answer) {
    assert!(answer.degraded);
    assert_eq!((answer.remaining, answer.reset_at, answer.retry_at), (None, None, None));
    assert_eq!((answer.delay(), answer.queue_position()), (None, None));
    assert_eq!(
        (answer.capacity, answer.algorithm),
        (2, Algorithm::SlidingLog),
        "the configured values are known"
    );
}

pub(crate) fn key(key: &str, fingerprint: u8) -> Option<Idempotency<'_>> {
    Some(Idempotency { caller: "caller", key, fingerprint: [fingerprint; 16], home: None, sender: None })
}

/// The error lines of the log, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn errors(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
