//! The guard around a store that hangs, fails, refuses or comes back, on simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};
use tollgate_core::{Algorithm, Answer, Cost, Counter, Decision, Key, Limit, Reason, Timestamp};
use tollgate_memory::{MemoryOptions, MemoryStore};
use tollgate_store::{
    Action, ApplyFuture, Charge, Clock, Command, FailureMode, GuardedStore, Idempotency, Outcome, Store,
    StoreError, StoreHealth,
};
use tollgate_testkit::SimulatedClock;

const DEADLINE: Duration = GuardedStore::DEADLINE;
const HOUR: Duration = Duration::from_secs(3_600);
/// Both kinds of commands that are decided without the store.
const DECIDED: [Action<'static>; 2] = [Action::take(), Action::peek()];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Answer,
    AnswerAfter(Duration),
    Hang,
    Unavailable,
    Rejected,
    /// Only for keys of the identifier `foreign`.
    Foreign,
    Overloaded,
    /// Breaks its contract: no outcome at all.
    Silent,
}

/// A store that does as it is told, and counts what it is asked.
#[derive(Debug)]
struct Scripted {
    behaviour: Mutex<Behaviour>,
    calls: AtomicUsize,
    /// Commands without charges, which only the guard itself sends.
    looks: AtomicUsize,
    memory: MemoryStore,
}

impl Scripted {
    fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }
}

impl Store for Scripted {
    fn apply<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let only_looks = commands.iter().all(|command| command.charges.is_empty());
            let counter = if only_looks { &self.looks } else { &self.calls };
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

    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![("connects", 7)]
    }
}

/// A guarded store, and everything around it.
struct Setup {
    clock: Arc<SimulatedClock>,
    store: Arc<Scripted>,
    guard: Arc<GuardedStore>,
}

impl Setup {
    fn new(behaviour: Behaviour) -> Self {
        Self::with_deadline(behaviour, DEADLINE)
    }

    fn with_deadline(behaviour: Behaviour, deadline: Duration) -> Self {
        let clock = Arc::new(SimulatedClock::default());
        let memory = || MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
        let store = Arc::new(Scripted {
            behaviour: Mutex::new(behaviour),
            calls: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            memory: memory(),
        });
        let guard = GuardedStore::new("hot", store.clone(), Arc::new(memory()), deadline);
        Self { clock, store, guard }
    }

    async fn apply(&self, action: Action<'_>, rules: &[&Rule]) -> Result<Outcome, StoreError> {
        let charges: Vec<Charge<'_>> = rules.iter().map(|rule| rule.charge()).collect();
        let command = Command { action, charges: &charges, cost: Cost::ONE };
        let mut results = self.guard.apply(&[command], None).await;
        assert_eq!(results.len(), 1);
        results.remove(0)
    }

    async fn decide(&self, action: Action<'_>, rules: &[&Rule]) -> Decision {
        decided(self.apply(action, rules).await)
    }

    async fn take(&self, rules: &[&Rule]) -> Decision {
        self.decide(Action::take(), rules).await
    }

    fn figure(&self, name: &str) -> u64 {
        self.guard.figures().into_iter().find(|(other, _)| *other == name).unwrap().1
    }

    /// Time-outs until it does not ask the store any more.
    async fn open_breaker(&self) {
        self.store.set(Behaviour::Hang);
        for _ in 0..5 {
            self.take(&[&rule(FailureMode::Open)]).await;
        }
        assert_eq!(self.guard.health(), StoreHealth::Down);
    }

    /// As [`open_breaker`](Self::open_breaker), and then the store is back and was seen to be: callers may probe.
    async fn half_open_breaker(&self) {
        self.open_breaker().await;
        self.store.set(Behaviour::Answer);
        // A look that hangs is waited for to its end; the one after it succeeds.
        let before = self.store.looks();
        while self.store.looks() == before {
            sleep(Duration::from_millis(1)).await;
        }
        yield_now().await;
        assert_eq!(self.guard.health(), StoreHealth::Down);
    }

    /// Takes at the same time, and how many of them the store answered.
    async fn take_at_once(&self, takes: usize) -> usize {
        let mut tasks = JoinSet::new();
        for _ in 0..takes {
            let guard = self.guard.clone();
            tasks.spawn(async move { take_alone(&guard).await });
        }
        tasks.join_all().await.iter().filter(|decision| !decision.degraded()).count()
    }
}

async fn take_alone(guard: &GuardedStore) -> Decision {
    let rule = Rule { limit: per_hour(1_000), ..rule(FailureMode::Open) };
    let charges = [rule.charge()];
    let command = Command { action: Action::take(), charges: &charges, cost: Cost::ONE };
    decided(guard.apply(&[command], None).await.remove(0))
}

fn decided(result: Result<Outcome, StoreError>) -> Decision {
    match result {
        Ok(Outcome::Decided(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

/// A limit of two an hour, whose store may fail.
struct Rule {
    counter: Counter,
    identifier: &'static str,
    limit: Limit,
    shadow: bool,
    on_store_error: FailureMode,
}

impl Rule {
    fn charge(&self) -> Charge<'_> {
        let key = Key::new(&self.counter, self.identifier, "");
        Charge { key, limit: &self.limit, shadow: self.shadow, on_store_error: self.on_store_error }
    }
}

fn rule(on_store_error: FailureMode) -> Rule {
    named("rule", on_store_error)
}

fn named(name: &str, on_store_error: FailureMode) -> Rule {
    let counter = Counter::new(name, "user", "*");
    Rule { counter, identifier: "u", limit: per_hour(2), shadow: false, on_store_error }
}

/// A log has no edges at which a count would start anew.
fn per_hour(quota: u64) -> Limit {
    Limit::try_new(Algorithm::SlidingLog, quota, HOUR).unwrap()
}

fn reasons(decision: &Decision) -> Vec<Option<Reason>> {
    decision.answers.iter().map(|answer| answer.reason).collect()
}

fn assert_nothing_invented(answer: &Answer) {
    assert!(answer.degraded);
    assert_eq!((answer.remaining, answer.reset_at, answer.retry_at), (None, None, None));
    assert_eq!((answer.delay(), answer.queue_position()), (None, None));
    assert_eq!(
        (answer.capacity, answer.algorithm),
        (2, Algorithm::SlidingLog),
        "what is configured is known"
    );
}

fn key(key: &str, fingerprint: u8) -> Option<Idempotency<'_>> {
    Some(Idempotency { caller: "caller", key, fingerprint: [fingerprint; 16] })
}

#[tokio::test(start_paused = true)]
async fn a_healthy_store_answers_for_itself() {
    let setup = Setup::new(Behaviour::Answer);
    let rule = rule(FailureMode::Closed);
    let remaining = |decision: &Decision| (decision.allowed, decision.degraded(), decision.remaining());
    assert_eq!(remaining(&setup.take(&[&rule]).await), (true, false, Some(1)));
    assert_eq!(remaining(&setup.take(&[&rule]).await), (true, false, Some(0)));
    let denied = setup.take(&[&rule]).await;
    assert_eq!(remaining(&denied), (false, false, Some(0)));
    assert_eq!(reasons(&denied), [Some(Reason::LimitExceeded)]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!((setup.store.calls(), setup.store.looks()), (3, 0), "nobody looks at a store that answers");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_waited_for_until_the_deadline_to_the_millisecond() {
    for deadline in [DEADLINE, Duration::from_millis(7), Duration::from_secs(2)] {
        for action in DECIDED {
            let setup = Setup::with_deadline(Behaviour::Hang, deadline);
            let start = Instant::now();
            let decision = setup.decide(action, &[&rule(FailureMode::Open)]).await;
            assert_eq!(start.elapsed().as_millis(), deadline.as_millis(), "{action:?}");
            assert!(decision.degraded());
        }
        for action in [Action::Reset, Action::Refund { taken_at: None }] {
            let setup = Setup::with_deadline(Behaviour::Hang, deadline);
            let start = Instant::now();
            let error = setup.apply(action, &[&rule(FailureMode::Open)]).await.unwrap_err();
            assert_eq!(start.elapsed().as_millis(), deadline.as_millis(), "{action:?}");
            assert!(error.is_timeout() && error.may_have_run(), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_just_before_the_deadline_is_heard() {
    let setup = Setup::new(Behaviour::AnswerAfter(DEADLINE - Duration::from_millis(1)));
    assert!(!setup.take(&[&rule(FailureMode::Closed)]).await.degraded());
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_one_deadline_and_an_answer_for_every_command() {
    let setup = Setup::new(Behaviour::Hang);
    let rules: Vec<Rule> = (0..10).map(|number| named(&number.to_string(), FailureMode::Local)).collect();
    let charges: Vec<[Charge<'_>; 1]> = rules.iter().map(|rule| [rule.charge()]).collect();
    let commands: Vec<Command<'_>> =
        charges.iter().map(|charges| Command { action: Action::take(), charges, cost: Cost::ONE }).collect();
    let start = Instant::now();
    let results = setup.guard.apply(&commands, None).await;
    assert_eq!(start.elapsed().as_millis(), DEADLINE.as_millis());
    assert_eq!(results.len(), commands.len());
    for result in results {
        assert_eq!(reasons(&decided(result)), [Some(Reason::LocalFallback)]);
    }
    assert_eq!(setup.store.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_bad_command_of_a_batch_leaves_the_others_to_the_store() {
    let setup = Setup::new(Behaviour::Foreign);
    let (good, bad) = (rule(FailureMode::Open), Rule { identifier: "foreign", ..rule(FailureMode::Closed) });
    let (good, bad) = ([good.charge()], [bad.charge()]);
    let command = |charges| Command { action: Action::take(), charges, cost: Cost::ONE };
    let results = setup.guard.apply(&[command(&good), command(&bad), command(&good)], None).await;
    let summary: Vec<_> = results
        .into_iter()
        .map(decided)
        .map(|decision| (decision.allowed, decision.degraded(), decision.remaining()))
        .collect();
    assert_eq!(summary, [(true, false, Some(1)), (false, true, None), (true, false, Some(0))]);
    assert_eq!((setup.figure("errors"), setup.figure("degraded")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn open_passes_and_closed_denies_whatever_the_failure_and_no_number_is_invented() {
    for behaviour in
        [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected, Behaviour::Foreign, Behaviour::Silent]
    {
        for (mode, allowed, reason) in
            [(FailureMode::Open, true, Reason::FailOpen), (FailureMode::Closed, false, Reason::FailClosed)]
        {
            for action in DECIDED {
                let setup = Setup::new(behaviour);
                let rule = Rule { identifier: "foreign", ..rule(mode) };
                for _ in 0..3 {
                    let decision = setup.decide(action, &[&rule]).await;
                    assert_eq!(decision.allowed, allowed, "{behaviour:?} {mode:?}");
                    assert_eq!(reasons(&decision), [Some(reason)], "{behaviour:?} {mode:?}");
                    assert_eq!(decision.answers[0].allowed, allowed);
                    assert_nothing_invented(&decision.answers[0]);
                    assert_eq!(decision.retry_after(), None);
                    assert_eq!(decision.at, setup.clock.now());
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn local_counts_in_the_process_with_the_same_limit_and_denies_at_it() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let now = setup.clock.now();
    for (action, remaining) in
        [(Action::take(), 1), (Action::peek(), 1), (Action::take(), 0), (Action::peek(), 0)]
    {
        let decision = setup.decide(action, &[&rule]).await;
        assert_eq!(decision.allowed, decision.answers[0].retry_at.is_none());
        assert_eq!(decision.remaining(), Some(remaining), "{action:?}");
        assert_eq!(reasons(&decision), [Some(Reason::LocalFallback)]);
        assert_eq!(decision.answers[0].reset_at, Some(now.saturating_add(HOUR)));
        assert!(decision.degraded());
    }
    setup.clock.advance(Duration::from_secs(600));
    let denied = setup.take(&[&rule]).await;
    assert!(!denied.allowed && denied.degraded());
    assert_eq!(reasons(&denied), [Some(Reason::LocalFallback)]);
    assert_eq!(denied.answers[0].retry_at, Some(now.saturating_add(HOUR)));
    assert_eq!(denied.retry_after(), Some(HOUR - Duration::from_secs(600)));

    setup.store.set(Behaviour::Answer);
    let decision = setup.take(&[&rule]).await;
    assert_eq!(
        (decision.degraded(), decision.remaining()),
        (false, Some(1)),
        "the store's own count is its own"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_capacity_keeps_its_reason_in_the_process() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let charges = [rule.charge()];
    let command = Command { action: Action::take(), charges: &charges, cost: Cost::try_new(3).unwrap() };
    let decision = decided(setup.guard.apply(&[command], None).await.remove(0));
    assert!(!decision.allowed && decision.degraded());
    assert_eq!(reasons(&decision), [Some(Reason::CostExceedsLimit)]);
    assert_eq!(decision.retry_after(), None, "waiting never helps");
}

#[tokio::test(start_paused = true)]
async fn in_a_mixed_chain_closed_denies_and_the_local_limit_is_not_charged() {
    let setup = Setup::new(Behaviour::Unavailable);
    let (open, closed, local) =
        (named("a", FailureMode::Open), named("b", FailureMode::Closed), named("c", FailureMode::Local));
    for _ in 0..3 {
        let decision = setup.take(&[&open, &local, &closed]).await;
        assert!(!decision.allowed);
        assert_eq!(
            reasons(&decision),
            [Some(Reason::FailOpen), Some(Reason::LocalFallback), Some(Reason::FailClosed)]
        );
        let allowed: Vec<bool> = decision.answers.iter().map(|answer| answer.allowed).collect();
        assert_eq!(allowed, [true, true, false]);
        assert_eq!(decision.answers[1].remaining, Some(2), "nothing was charged");
        assert_eq!(decision.binding_index(), 2);
        assert!(decision.answers.iter().all(|answer| answer.degraded));
        assert_nothing_invented(&decision.answers[0]);
        assert_nothing_invented(&decision.answers[2]);
    }
    let without = setup.take(&[&open, &local]).await;
    assert_eq!((without.allowed, without.answers[1].remaining), (true, Some(1)));
    assert_eq!(without.binding_index(), 1, "what is known binds before what is not");
}

#[tokio::test(start_paused = true)]
async fn local_limits_are_charged_all_or_none() {
    let setup = Setup::new(Behaviour::Unavailable);
    let wide = Rule { limit: per_hour(10), ..named("wide", FailureMode::Local) };
    let (narrow, open) = (named("narrow", FailureMode::Local), named("open", FailureMode::Open));
    for _ in 0..2 {
        assert!(setup.take(&[&wide, &open, &narrow]).await.allowed);
    }
    let denied = setup.take(&[&wide, &open, &narrow]).await;
    assert!(!denied.allowed);
    assert_eq!(denied.binding_index(), 2);
    assert_eq!(setup.decide(Action::peek(), &[&wide]).await.remaining(), Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_only_watches_never_denies_whatever_its_mode() {
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        let setup = Setup::new(Behaviour::Unavailable);
        let watching = Rule { shadow: true, ..named("watching", mode) };
        let local = Rule { limit: per_hour(10), ..named("local", FailureMode::Local) };
        for taken in 1..=3 {
            let decision = setup.take(&[&watching, &local]).await;
            assert!(decision.allowed, "{mode:?}");
            assert!(decision.answers[0].shadow && decision.answers[0].degraded);
            assert!(!decision.answers[1].shadow);
            assert_eq!(decision.answers[1].remaining, Some(10 - taken), "the enforced limit is charged");
            let full = mode == FailureMode::Local && taken == 3;
            assert_eq!(decision.answers[0].allowed, !full, "{mode:?}: it says what it would have done");
        }
        assert!(setup.take(&[&watching]).await.allowed, "{mode:?}: alone as well");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_take_is_repeated_in_the_process_during_an_outage() {
    let setup = Setup::new(Behaviour::Unavailable);
    let rule = rule(FailureMode::Local);
    let rules = [&rule];
    let take = |idempotency| setup.apply(Action::Take { idempotency }, &rules);
    let first = decided(take(key("a", 1)).await);
    assert_eq!((first.replayed, first.remaining()), (false, Some(1)));
    let second = decided(take(key("a", 1)).await);
    assert_eq!((second.allowed, second.replayed, second.remaining()), (true, true, Some(1)));
    assert_eq!(reasons(&second), [Some(Reason::LocalFallback)]);
    assert!(second.degraded());
    assert!(matches!(take(key("a", 2)).await, Ok(Outcome::Mismatch)));
    let other = decided(take(key("b", 1)).await);
    assert_eq!((other.replayed, other.remaining()), (false, Some(0)), "the repetition took nothing");
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_a_closed_limit_does_not_use_up_an_idempotency_key() {
    let setup = Setup::new(Behaviour::Unavailable);
    let (local, closed) = (named("local", FailureMode::Local), named("closed", FailureMode::Closed));
    let action = Action::Take { idempotency: key("a", 1) };
    assert!(!setup.decide(action, &[&local, &closed]).await.allowed);
    let again = setup.decide(action, &[&local]).await;
    assert_eq!((again.allowed, again.replayed, again.remaining()), (true, false, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn after_five_time_outs_the_store_is_not_called_and_answers_come_at_once() {
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    let start = Instant::now();
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        for _ in 0..100 {
            assert!(setup.take(&[&rule(mode)]).await.degraded());
        }
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(setup.store.calls(), 5);
    assert_eq!(setup.figure("breaker_openings"), 1);
}

#[tokio::test(start_paused = true)]
async fn four_time_outs_and_an_answer_open_nothing() {
    let setup = Setup::new(Behaviour::Hang);
    for behaviour in [Behaviour::Hang, Behaviour::Answer, Behaviour::Hang] {
        setup.store.set(behaviour);
        for _ in 0..4 {
            setup.take(&[&rule(FailureMode::Open)]).await;
        }
    }
    assert_eq!((setup.store.calls(), setup.guard.health()), (12, StoreHealth::Up));
}

#[tokio::test(start_paused = true)]
async fn half_of_twenty_calls_failing_opens_it_and_nineteen_calls_do_not() {
    for failing in [Behaviour::Unavailable, Behaviour::Silent] {
        let setup = Setup::new(Behaviour::Answer);
        for call in 0..19 {
            setup.store.set(if call % 2 == 0 { failing } else { Behaviour::Answer });
            setup.take(&[&rule(FailureMode::Open)]).await;
        }
        assert_eq!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        setup.store.set(failing);
        setup.take(&[&rule(FailureMode::Open)]).await;
        assert_eq!(setup.guard.health(), StoreHealth::Down, "{failing:?}");
        setup.take(&[&rule(FailureMode::Open)]).await;
        assert_eq!(setup.store.calls(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_serves_within_two_seconds_of_a_minute_long_outage() {
    // The breaker's own waits would have grown to half a minute by then; with and without callers in the meantime.
    for (round, pause) in [Duration::from_millis(100), Duration::from_secs(60)].into_iter().enumerate() {
        for failing in [Behaviour::Hang, Behaviour::Unavailable] {
            let setup = Setup::new(failing);
            let outage = Instant::now();
            while outage.elapsed() < Duration::from_secs(60) {
                for _ in 0..20 {
                    take_alone(&setup.guard).await;
                }
                sleep(pause).await;
            }
            assert_eq!(setup.guard.health(), StoreHealth::Down);
            setup.store.set(Behaviour::Answer);
            let back = Instant::now();
            while take_alone(&setup.guard).await.degraded() {
                sleep(Duration::from_millis(10)).await;
            }
            let waited = back.elapsed();
            assert!(waited <= Duration::from_secs(2), "{failing:?} round {round}: {waited:?}");
            let served = setup.take_at_once(50).await;
            assert!(served >= 2, "the other probes at least");
            assert_eq!(setup.take_at_once(50).await, 50, "then everybody");
            assert_eq!(setup.guard.health(), StoreHealth::Up);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn three_probes_are_let_through_and_after_their_success_everybody_is() {
    let setup = Setup::new(Behaviour::Answer);
    setup.half_open_breaker().await;
    setup.store.set(Behaviour::AnswerAfter(Duration::from_millis(10)));
    let before = setup.store.calls();
    assert_eq!(setup.take_at_once(20).await, 3);
    assert_eq!(setup.store.calls() - before, 3);
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    assert_eq!(setup.take_at_once(20).await, 20);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_opens_it_again() {
    for failing in [Behaviour::Unavailable, Behaviour::Hang] {
        let setup = Setup::new(Behaviour::Answer);
        setup.half_open_breaker().await;
        setup.store.set(failing);
        let before = setup.store.calls();
        for _ in 0..10 {
            assert!(take_alone(&setup.guard).await.degraded());
        }
        assert_eq!(setup.store.calls() - before, 1, "{failing:?}");
        assert_eq!(setup.figure("breaker_openings"), 1, "it is still the same outage");
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_give_up_while_probing_do_not_stand_in_the_way() {
    let setup = Setup::new(Behaviour::Answer);
    setup.half_open_breaker().await;
    setup.store.set(Behaviour::Hang);
    let mut tasks = JoinSet::new();
    let before = setup.store.calls();
    for _ in 0..3 {
        let guard = setup.guard.clone();
        tasks.spawn(async move { take_alone(&guard).await });
    }
    sleep(DEADLINE / 5).await;
    assert_eq!(setup.store.calls() - before, 3);
    assert!(take_alone(&setup.guard).await.degraded(), "all places are taken");
    tasks.shutdown().await;
    setup.store.set(Behaviour::Answer);
    for _ in 0..3 {
        assert!(!take_alone(&setup.guard).await.degraded());
    }
    assert_eq!(setup.guard.health(), StoreHealth::Up);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_up_again_without_any_caller() {
    // Nobody sends requests to a node that says it is not ready.
    for failing in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected] {
        let setup = Setup::new(failing);
        for _ in 0..20 {
            take_alone(&setup.guard).await;
        }
        sleep(Duration::from_secs(60)).await;
        assert_ne!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        setup.store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(setup.guard.health(), StoreHealth::Up, "{failing:?}");
        let looks = setup.store.looks();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(setup.store.looks(), looks, "{failing:?}: nobody looks at a store that answers");
        assert!(!take_alone(&setup.guard).await.degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_outage_is_noticed_and_looked_after_like_the_first() {
    let setup = Setup::new(Behaviour::Answer);
    for outage in 1..=3 {
        setup.open_breaker().await;
        assert_eq!(setup.figure("breaker_openings"), outage);
        setup.store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        assert!(!take_alone(&setup.guard).await.degraded());
        assert_eq!(setup.guard.health(), StoreHealth::Up);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_looks_at_the_store_of_a_guard_that_is_gone() {
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    sleep(Duration::from_secs(5)).await;
    let Setup { guard, store, .. } = setup;
    assert!(store.looks() > 0);
    drop(guard);
    sleep(Duration::from_secs(5)).await;
    let looks = store.looks();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(store.looks(), looks);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_us_is_rejected_until_it_answers() {
    let setup = Setup::new(Behaviour::Rejected);
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        assert_eq!(setup.take(&[&rule(mode)]).await.allowed, allowed);
        assert_eq!(setup.guard.health(), StoreHealth::Rejected, "one is enough");
    }
    setup.store.set(Behaviour::Unavailable);
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(setup.guard.health(), StoreHealth::Rejected, "an outage does not change that");
    setup.store.set(Behaviour::Answer);
    assert!(!setup.take(&[&rule(FailureMode::Open)]).await.degraded());
    assert_eq!(setup.guard.health(), StoreHealth::Up);
    assert_eq!(setup.figure("breaker_openings"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_value_under_one_key_is_no_outage() {
    let setup = Setup::new(Behaviour::Foreign);
    let foreign = Rule { identifier: "foreign", ..rule(FailureMode::Closed) };
    for _ in 0..100 {
        assert_eq!(reasons(&setup.take(&[&foreign]).await), [Some(Reason::FailClosed)]);
        assert_eq!(setup.guard.health(), StoreHealth::Up);
    }
    assert_eq!(setup.store.calls(), 100);
    assert!(!setup.take(&[&rule(FailureMode::Closed)]).await.degraded(), "other keys are not affected");
    let figures = ["errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    assert_eq!(figures, [100, 100, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_says_so_itself_and_is_not_broken() {
    let setup = Setup::new(Behaviour::Overloaded);
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local] {
        for _ in 0..50 {
            for action in DECIDED {
                let error = setup.apply(action, &[&rule(mode)]).await.unwrap_err();
                assert!(error.is_retryable() && !error.is_outage() && !error.is_permanent());
            }
        }
    }
    assert_eq!((setup.store.calls(), setup.guard.health()), (300, StoreHealth::Up));
    let figures = ["errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    assert_eq!(figures, [300, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn resets_and_refunds_fail_with_the_store() {
    for (behaviour, is_right) in [
        (Behaviour::Unavailable, StoreError::is_outage as fn(&StoreError) -> bool),
        (Behaviour::Hang, StoreError::is_timeout),
        (Behaviour::Rejected, StoreError::is_rejection),
        (Behaviour::Foreign, StoreError::is_permanent),
        (Behaviour::Overloaded, StoreError::is_retryable),
    ] {
        let setup = Setup::new(behaviour);
        let rule = Rule { identifier: "foreign", ..rule(FailureMode::Local) };
        for action in [Action::Reset, Action::Refund { taken_at: None }] {
            let error = setup.apply(action, &[&rule]).await.unwrap_err();
            assert!(is_right(&error), "{behaviour:?}: {error}");
        }
        assert_eq!(setup.figure("degraded"), 0);
    }
    let setup = Setup::new(Behaviour::Hang);
    setup.open_breaker().await;
    let start = Instant::now();
    let error = setup.apply(Action::Reset, &[&rule(FailureMode::Open)]).await.unwrap_err();
    assert!(error.is_outage() && error.is_retryable() && !error.may_have_run(), "{error}");
    assert_eq!((start.elapsed(), setup.store.calls()), (Duration::ZERO, 5));
}

#[tokio::test(start_paused = true)]
async fn figures_count_errors_degraded_answers_and_openings_beside_the_stores_own() {
    let setup = Setup::new(Behaviour::Answer);
    let figures = || ["connects", "errors", "degraded", "breaker_openings"].map(|name| setup.figure(name));
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(figures(), [7, 0, 0, 0]);
    setup.store.set(Behaviour::Unavailable);
    assert!(setup.apply(Action::Reset, &[&rule(FailureMode::Open)]).await.is_err());
    assert_eq!(figures(), [7, 1, 0, 0], "an error that is passed on is not a degraded answer");
    setup.open_breaker().await;
    assert_eq!(figures(), [7, 6, 5, 1]);
    setup.take(&[&rule(FailureMode::Open)]).await;
    assert_eq!(figures(), [7, 6, 6, 1], "the store was not asked, so it did not fail");
}
