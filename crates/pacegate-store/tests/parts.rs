//! Commands over several stores: all or nothing, refunded exactly, charged at most once. Every
//! store has its own clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pacegate_core::{Algorithm, Answer, ChainDecision, Cost, Counter, Key, Limit, Timestamp};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{
    Action, ApplyFuture, Charge, Clock, Command, FailureMode, GuardedStore, Idempotency, Outcome, Part,
    ShardedStore, Store, StoreError, apply_in_parts,
};
use pacegate_testkit::SimulatedClock;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_millis(50);

/// A store and its clock.
#[derive(Clone)]
struct Backend {
    clock: Arc<SimulatedClock>,
    memory: Arc<MemoryStore>,
}

/// Stores whose clocks differ by some seconds, like those of different machines.
fn backends<const N: usize>() -> [Backend; N] {
    std::array::from_fn(|number| {
        let clock = Arc::new(SimulatedClock::default());
        clock.advance(Duration::from_secs([0, 14, 7][number]));
        let memory = Arc::new(MemoryStore::with_clock(MemoryOptions::default(), clock.clone()));
        Backend { clock, memory }
    })
}

fn stores<const N: usize>(backends: &[Backend; N]) -> [Arc<dyn Store>; N] {
    std::array::from_fn(|number| backends[number].memory.clone() as Arc<dyn Store>)
}

fn advance(backends: &[Backend], by: Duration) {
    for backend in backends {
        backend.clock.advance(by);
    }
}

/// A limit and the index of the store that holds it.
#[derive(Clone)]
struct Rule {
    counter: Counter,
    limit: Limit,
    shadow: bool,
    store: usize,
}

impl Rule {
    fn new(store: usize, algorithm: Algorithm, quota: u64) -> Self {
        let counter = Counter::new(&format!("{store} {algorithm} {quota}"), "user", "*");
        Self { counter, limit: Limit::try_new(algorithm, quota, MINUTE).unwrap(), shadow: false, store }
    }

    fn window(store: usize, quota: u64) -> Self {
        Self::new(store, Algorithm::FixedWindow, quota)
    }

    fn charge(&self) -> Charge<'_> {
        Charge { shadow: self.shadow, ..Charge::new(Key::new(&self.counter, "u", ""), &self.limit) }
    }
}

async fn apply_at(
    stores: &[Arc<dyn Store>],
    rules: &[Rule],
    action: Action<'_>,
    cost: Cost,
) -> Result<Outcome, StoreError> {
    let charges: Vec<Charge<'_>> = rules.iter().map(|rule| Charge { cost, ..rule.charge() }).collect();
    let of_store =
        |store: usize| (0..rules.len()).filter(move |charge| rules[*charge].store == store).collect();
    let parts: Vec<Part> = stores
        .iter()
        .enumerate()
        .map(|(number, store)| Part { store: store.clone(), charges: of_store(number) })
        .filter(|part| !part.charges.is_empty())
        .collect();
    apply_in_parts(parts, &Command { action, charges: &charges }, None).await
}

async fn apply(stores: &[Arc<dyn Store>], rules: &[Rule], action: Action<'_>) -> Result<Outcome, StoreError> {
    apply_at(stores, rules, action, Cost::ONE).await
}

async fn take(stores: &[Arc<dyn Store>], rules: &[Rule]) -> ChainDecision {
    decided(apply(stores, rules, Action::take()).await)
}

async fn take_once(
    stores: &[Arc<dyn Store>],
    rules: &[Rule],
    fingerprint: u8,
) -> Result<Outcome, StoreError> {
    apply(stores, rules, Action::Take { idempotency: Some(key(fingerprint)) }).await
}

/// What remains in each store, read there directly.
fn remaining(backends: &[Backend], rules: &[Rule]) -> Vec<u32> {
    rules.iter().map(|rule| look(backends, rule).remaining.unwrap()).collect()
}

fn look(backends: &[Backend], rule: &Rule) -> Answer {
    directly(backends, rule, Action::peek(), Cost::ONE).answers[0]
}

/// Takes from the store directly, not through the parts.
fn take_directly(backends: &[Backend], rule: &Rule, cost: u64) {
    assert!(directly(backends, rule, Action::take(), Cost::try_new(cost).unwrap()).allowed);
}

fn directly(backends: &[Backend], rule: &Rule, action: Action<'_>, cost: Cost) -> ChainDecision {
    let command = Command { action, charges: &[Charge { cost, ..rule.charge() }] };
    decided(backends[rule.store].memory.apply_now(&command, None))
}

fn decided(result: Result<Outcome, StoreError>) -> ChainDecision {
    match result {
        Ok(Outcome::Decided(decision)) => decision,
        other => panic!("{other:?}"),
    }
}

fn key(fingerprint: u8) -> Idempotency<'static> {
    Idempotency { caller: "caller", key: "key", fingerprint: [fingerprint; 16], home: None, sender: None }
}

/// Runs an action just before the first take, like a concurrent request on another machine.
struct Interrupted {
    store: Arc<MemoryStore>,
    interruption: Mutex<Option<Interruption>>,
}

type Interruption = Box<dyn FnOnce() + Send>;

impl Interrupted {
    fn around(store: &Arc<MemoryStore>, interruption: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self { store: store.clone(), interruption: Mutex::new(Some(Box::new(interruption))) })
    }
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(formatter)
    }
}

impl Store for Interrupted {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        if matches!(command.action, Action::Take { .. })
            && let Some(interruption) = self.interruption.lock().unwrap().take()
        {
            interruption();
        }
        self.store.apply(command, now)
    }
}

/// Fails every take, like a store that recovers a moment later.
#[derive(Debug)]
struct NoTakes(Arc<MemoryStore>);

impl Store for NoTakes {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        if matches!(command.action, Action::Take { .. }) {
            return Box::pin(std::future::ready(Err(StoreError::unavailable("connection refused"))));
        }
        self.0.apply(command, now)
    }
}

/// Behaves like the store inside until it is set to fail.
#[derive(Debug)]
struct Failing {
    store: Arc<MemoryStore>,
    fails: AtomicBool,
}

impl Store for Failing {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        if self.fails.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(StoreError::uncertain("the connection was lost"))));
        }
        self.store.apply(command, now)
    }
}

/// Yields to other tasks a varying number of times.
#[derive(Debug)]
struct Yielding {
    store: Arc<MemoryStore>,
    turns: Arc<AtomicUsize>,
}

impl Store for Yielding {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            // An odd multiplier far from a power of two, so that the order of the tasks varies.
            let turn = self.turns.fetch_add(1, Ordering::SeqCst).wrapping_mul(2_654_435_761);
            for _ in 0..(turn >> 7) % 5 {
                yield_now().await;
            }
            self.store.apply(command, now).await
        })
    }
}

#[tokio::test]
async fn take_charges_all_parts_and_answers_in_order() {
    let backends = backends::<3>();
    let stores = stores(&backends);
    let rules = [
        Rule::window(2, 50),
        Rule::window(0, 40),
        Rule::window(1, 30),
        Rule::window(0, 20),
        Rule::window(2, 10),
    ];
    let decision = take(&stores, &rules).await;
    assert!(decision.allowed && !decision.replayed);
    let answers: Vec<(u32, Option<u32>)> =
        decision.answers.iter().map(|answer| (answer.capacity, answer.remaining)).collect();
    assert_eq!(answers, [(50, Some(49)), (40, Some(39)), (30, Some(29)), (20, Some(19)), (10, Some(9))]);
    assert_eq!(decision.binding_index(), 4, "the smallest share remains there");
    assert_eq!(decision.at, backends[1].clock.now(), "the latest of all clocks");
    assert_eq!(remaining(&backends, &rules), [49, 39, 29, 19, 9]);
}

#[tokio::test]
async fn denial_by_any_part_charges_none() {
    for full in 0..3 {
        let backends = backends::<3>();
        let stores = stores(&backends);
        let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
        take_directly(&backends, &rules[full], 10);
        let before = remaining(&backends, &rules);
        let denied = take(&stores, &rules).await;
        assert!(!denied.allowed);
        assert_eq!(denied.binding_index(), full);
        let allowed: Vec<bool> = denied.answers.iter().map(|answer| answer.allowed).collect();
        assert_eq!(allowed, [0, 1, 2].map(|backend| backend != full), "every limit answers for itself");
        let shown: Vec<u32> = denied.answers.iter().map(|answer| answer.remaining.unwrap()).collect();
        assert_eq!(shown, before, "the answer is what remains after the refunds");
        assert!(denied.retry_after().is_some());
        assert_eq!(remaining(&backends, &rules), before, "{full}");
    }
}

#[tokio::test]
async fn denied_take_is_refunded_exactly_by_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let backends = backends::<2>();
        let stores = stores(&backends);
        let rules = [Rule::new(0, algorithm, 10), Rule::window(1, 3)];
        let cost = Cost::try_new(3).unwrap();
        assert!(decided(apply_at(&stores, &rules, Action::take(), cost).await).allowed);
        advance(&backends, Duration::from_secs(1));
        let before = look(&backends, &rules[0]);
        assert!(!decided(apply_at(&stores, &rules, Action::take(), cost).await).allowed);
        let after = look(&backends, &rules[0]);
        assert_eq!((after.remaining, after.reset_at), (before.remaining, before.reset_at), "{algorithm}");
    }
}

/// Charges the same counter again, `pause` after the denied charge and before its refund. The
/// refund must affect only the denied charge.
async fn refund_after_another_charge(algorithm: Algorithm, pause: Duration) -> ([Backend; 2], [Rule; 2]) {
    let backends = backends::<2>();
    let rules = [Rule::new(0, algorithm, 10), Rule::window(1, 1)];
    take_directly(&backends, &rules[1], 1);
    let (others, rule) = (backends.clone(), rules[0].clone());
    let full = Interrupted::around(&backends[1].memory, move || {
        others[0].clock.advance(pause);
        take_directly(&others, &rule, 2);
    });
    let stores: [Arc<dyn Store>; 2] = [backends[0].memory.clone(), full];
    let denied = take(&stores, &rules).await;
    assert!(!denied.allowed);
    (backends, rules)
}

#[tokio::test]
async fn refund_of_a_log_removes_the_denied_entry_and_not_a_newer_one() {
    let (backends, rules) = refund_after_another_charge(Algorithm::SlidingLog, Duration::from_secs(20)).await;
    assert_eq!(remaining(&backends, &rules[..1]), [8]);
    backends[0].clock.advance(MINUTE - Duration::from_secs(20));
    assert_eq!(remaining(&backends, &rules[..1]), [8], "the time of the other charge is unchanged");
    backends[0].clock.advance(Duration::from_secs(20));
    assert_eq!(remaining(&backends, &rules[..1]), [10]);
}

#[tokio::test]
async fn refund_of_a_window_ignores_the_previous_window() {
    let (backends, rules) = refund_after_another_charge(Algorithm::FixedWindow, MINUTE).await;
    assert_eq!(remaining(&backends, &rules[..1]), [8]);
    let (backends, rules) = refund_after_another_charge(Algorithm::FixedWindow, Duration::ZERO).await;
    assert_eq!(remaining(&backends, &rules[..1]), [8], "within the same window, the refund applies");
}

#[tokio::test]
async fn refund_restores_a_bucket_exactly() {
    // Ten per minute: one token every six seconds.
    let (backends, rules) = refund_after_another_charge(Algorithm::TokenBucket, Duration::from_secs(3)).await;
    assert_eq!(remaining(&backends, &rules[..1]), [8]);
    let reset_at = backends[0].clock.now().saturating_add(Duration::from_secs(12));
    assert_eq!(
        look(&backends, &rules[0]).reset_at,
        Some(reset_at),
        "tokens that came back in between are not refunded again"
    );
}

#[tokio::test]
async fn shadow_limit_is_not_refunded_what_it_did_not_take() {
    let backends = backends::<2>();
    let stores = stores(&backends);
    let rules = [
        Rule { shadow: true, ..Rule::window(0, 1) },
        Rule { shadow: true, ..Rule::window(0, 5) },
        Rule::window(1, 2),
    ];
    assert!(take(&stores, &rules).await.allowed);
    let second = take(&stores, &rules).await;
    assert!(second.allowed && !second.answers[0].allowed && second.answers[0].shadow);
    assert_eq!(remaining(&backends, &rules), [0, 3, 0]);
    assert!(!take(&stores, &rules).await.allowed);
    assert_eq!(remaining(&backends, &rules), [0, 3, 0], "only what was charged is refunded");
}

#[tokio::test]
async fn shadow_limit_in_any_part_never_denies() {
    for shadow in 0..2 {
        let backends = backends::<2>();
        let stores = stores(&backends);
        let mut rules = [Rule::window(0, 10), Rule::window(1, 10)];
        rules[shadow].shadow = true;
        take_directly(&backends, &rules[shadow], 10);
        let decision = take(&stores, &rules).await;
        assert!(decision.allowed && !decision.answers[shadow].allowed);
        assert_eq!(remaining(&backends, &rules)[1 - shadow], 9);
        assert_eq!(decision.binding_index(), 1 - shadow);
    }
}

#[tokio::test]
async fn failing_part_refunds_earlier_ones_and_returns_its_error() {
    let backends = backends::<3>();
    let rules = [Rule::new(0, Algorithm::SlidingLog, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: backends[2].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] =
        [backends[0].memory.clone(), backends[1].memory.clone(), failing.clone()];
    assert!(take(&stores, &rules).await.allowed);
    failing.fails.store(true, Ordering::SeqCst);
    for action in [Action::take(), Action::peek(), Action::Take { idempotency: Some(key(1)) }] {
        let error = apply(&stores, &rules, action).await.unwrap_err();
        assert!(error.is_outage() && error.may_have_run(), "{error}");
        assert_eq!(remaining(&backends, &rules), [9, 9, 9]);
    }
}

#[tokio::test]
async fn part_that_failed_open_is_not_refunded() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 1)];
    take_directly(&backends, &rules[0], 5);
    take_directly(&backends, &rules[1], 1);
    let no_takes = Arc::new(NoTakes(backends[0].memory.clone()));
    let guarded = GuardedStore::new("first", no_takes, backends[0].memory.clone(), GuardedStore::DEADLINE);
    let stores: [Arc<dyn Store>; 2] = [guarded.clone(), backends[1].memory.clone()];
    assert!(!take(&stores, &rules).await.allowed);
    assert_eq!(remaining(&backends, &rules), [5, 0]);
}

#[tokio::test]
async fn failing_part_leaves_later_ones_uncharged() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let failing = Arc::new(Failing { store: backends[0].memory.clone(), fails: AtomicBool::new(true) });
    let stores: [Arc<dyn Store>; 2] = [failing.clone(), backends[1].memory.clone()];
    assert!(apply(&stores, &rules, Action::take()).await.is_err());
    assert_eq!(remaining(&backends, &rules), [10, 10]);
}

#[tokio::test]
async fn peek_reads_all_parts_and_charges_none() {
    let backends = backends::<2>();
    let stores = stores(&backends);
    let rules = [Rule::window(1, 2), Rule::window(0, 10)];
    for left in [2, 1] {
        let seen = decided(apply(&stores, &rules, Action::peek()).await);
        assert!(seen.allowed);
        assert_eq!((seen.answers[0].remaining, seen.answers[1].remaining), (Some(left), Some(left + 8)));
        take(&stores, &rules).await;
    }
    let seen = decided(apply(&stores, &rules, Action::peek()).await);
    assert!(!seen.allowed);
    assert_eq!(seen.binding_index(), 0);
    assert_eq!(remaining(&backends, &rules), [0, 8]);
}

#[tokio::test]
async fn refund_reaches_all_parts() {
    let backends = backends::<2>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    take(&stores, &rules).await;
    let refunded = decided(apply(&stores, &rules, Action::Refund).await);
    assert_eq!((refunded.answers[0].remaining, refunded.answers[1].remaining), (Some(10), Some(10)));
    assert_eq!(remaining(&backends, &rules), [10, 10]);
}

#[tokio::test]
async fn reset_clears_all_parts_and_returns_the_latest_time() {
    let backends = backends::<3>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 10), Rule::window(2, 10), Rule::window(1, 10)];
    take(&stores, &rules).await;
    match apply(&stores, &rules, Action::Reset).await {
        Ok(Outcome::Reset { at }) => assert_eq!(at, backends[1].clock.now()),
        other => panic!("{other:?}"),
    }
    assert_eq!(backends.map(|backend| backend.memory.keys()), [0, 0, 0]);
}

#[tokio::test]
async fn reset_that_fails_in_one_part_still_clears_the_others() {
    let backends = backends::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: backends[1].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] =
        [backends[0].memory.clone(), failing.clone(), backends[2].memory.clone()];
    take(&stores, &rules).await;
    failing.fails.store(true, Ordering::SeqCst);
    assert!(apply(&stores, &rules, Action::Reset).await.unwrap_err().is_outage());
    assert_eq!(remaining(&backends, &rules), [10, 9, 10]);
}

#[tokio::test]
async fn repetition_is_admitted_although_the_first_part_is_exhausted() {
    let backends = backends::<3>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 3), Rule::window(1, 10), Rule::window(2, 10)];
    let first = decided(take_once(&stores, &rules, 1).await);
    assert!(first.allowed && !first.replayed);
    take_directly(&backends, &rules[0], 2);
    for _ in 0..2 {
        let again = decided(take_once(&stores, &rules, 1).await);
        assert!(again.allowed && again.replayed);
        assert!(again.answers.iter().all(|answer| answer.allowed && answer.reason.is_none()));
        assert_eq!(again.retry_after(), None);
    }
    assert_eq!(remaining(&backends, &rules), [0, 9, 9], "a repetition is not charged");
    assert!(!take(&stores, &rules).await.allowed, "others are denied");
}

#[tokio::test]
async fn idempotency_record_is_only_in_the_last_part() {
    let backends = backends::<3>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    let recorded =
        |rule| directly(&backends, rule, Action::Peek { idempotency: Some(key(1)) }, Cost::ONE).replayed;
    assert_eq!(rules.each_ref().map(recorded), [false, false, true]);
}

#[tokio::test]
async fn reused_idempotency_key_is_a_mismatch_and_charges_nothing() {
    let backends = backends::<2>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    for action in [Action::Take { idempotency: Some(key(2)) }, Action::Peek { idempotency: Some(key(2)) }] {
        assert!(matches!(apply(&stores, &rules, action).await, Ok(Outcome::Mismatch)));
    }
    assert_eq!(remaining(&backends, &rules), [9, 9]);
}

#[tokio::test]
async fn denied_take_does_not_consume_the_idempotency_key() {
    for full in 0..2 {
        let backends = backends::<2>();
        let stores = stores(&backends);
        let rules = [Rule::window(0, 1), Rule::window(1, 1)];
        take_directly(&backends, &rules[full], 1);
        assert!(!decided(take_once(&stores, &rules, 1).await).allowed);
        advance(&backends, MINUTE);
        let again = decided(take_once(&stores, &rules, 1).await);
        assert!(again.allowed && !again.replayed);
        assert_eq!(remaining(&backends, &rules), [0, 0]);
    }
}

#[tokio::test]
async fn peek_with_an_idempotency_key_returns_the_admission() {
    let backends = backends::<2>();
    let stores = stores(&backends);
    let rules = [Rule::window(0, 1), Rule::window(1, 10)];
    let action = Action::Peek { idempotency: Some(key(1)) };
    let nothing = decided(apply(&stores, &rules, action).await);
    assert_eq!((nothing.allowed, nothing.replayed, nothing.answers[1].remaining), (true, false, Some(10)));
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    let found = decided(apply(&stores, &rules, action).await);
    assert!(found.allowed && found.replayed);
    assert_eq!(remaining(&backends, &rules), [0, 9]);
}

#[tokio::test]
async fn repetition_denied_by_its_own_original_is_admitted() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 1), Rule::window(1, 10)];
    let (others, others_rules) = (backends.clone(), rules.clone());
    let whole_original = move || {
        let command = |rule| Command::take(std::slice::from_ref(rule));
        let (first, last) = (others_rules[0].charge(), others_rules[1].charge());
        assert!(decided(others[0].memory.apply_now(&command(&first), None)).allowed);
        let recorded = Command { action: Action::Take { idempotency: Some(key(1)) }, ..command(&last) };
        assert!(decided(others[1].memory.apply_now(&recorded, None)).allowed);
    };
    let overtaken = Interrupted::around(&backends[0].memory, whole_original);
    let stores: [Arc<dyn Store>; 2] = [overtaken.clone(), backends[1].memory.clone()];
    let decision = decided(take_once(&stores, &rules, 1).await);
    assert!(decision.allowed && decision.replayed);
    assert_eq!(remaining(&backends, &rules), [0, 9]);
}

/// Sends eight equal requests at once; counts those admitted first, admitted as repetitions, and
/// denied.
async fn duplicates_at_once(quota: u64, turns: &Arc<AtomicUsize>) -> ([usize; 3], Vec<u32>) {
    let backends = backends::<3>();
    let rules =
        || [Rule::new(0, Algorithm::SlidingLog, quota), Rule::window(1, quota), Rule::window(2, quota)];
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let polite = backends
            .each_ref()
            .map(|backend| Yielding { store: backend.memory.clone(), turns: turns.clone() });
        let rules = rules();
        tasks.spawn(async move {
            let stores = polite.map(|store| Arc::new(store) as Arc<dyn Store>);
            decided(take_once(&stores, &rules, 1).await)
        });
    }
    let decisions = tasks.join_all().await;
    let count =
        |wanted: fn(&ChainDecision) -> bool| decisions.iter().filter(|decision| wanted(decision)).count();
    let counts = [
        count(|decision| decision.allowed && !decision.replayed),
        count(|decision| decision.allowed && decision.replayed),
        count(|decision| !decision.allowed),
    ];
    (counts, remaining(&backends, &rules()))
}

#[tokio::test]
async fn concurrent_duplicates_are_charged_exactly_once() {
    let turns = Arc::default();
    for round in 0..200 {
        let (counts, left) = duplicates_at_once(20, &turns).await;
        assert_eq!((counts, left), ([1, 7, 0], vec![19, 19, 19]), "round {round}");
    }
}

#[tokio::test]
async fn concurrent_duplicates_are_never_charged_twice_at_the_limit() {
    let turns = Arc::default();
    for round in 0..200 {
        let ([admitted, repeated, denied], left) = duplicates_at_once(1, &turns).await;
        // While one is in progress, another may find the limit exhausted and no record yet. It is
        // denied, and a retry succeeds.
        assert_eq!((admitted, repeated + denied), (1, 7), "round {round}");
        assert_eq!(left, [0, 0, 0], "round {round}");
    }
}

/// Runs every command of one kind and responds late or never.
#[derive(Debug)]
struct Late {
    store: Arc<MemoryStore>,
    /// Delays takes if set, otherwise refunds.
    takes: bool,
    by: Duration,
}

impl Late {
    fn takes(backend: &Backend, by: Duration) -> Arc<dyn Store> {
        Arc::new(Self { store: backend.memory.clone(), takes: true, by })
    }
}

impl Store for Late {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let answers = self.store.apply(command, now).await;
            if matches!(command.action, Action::Take { .. }) == self.takes {
                sleep(self.by).await;
            }
            answers
        })
    }
}

/// Stops waiting after [`DEADLINE`], then waits for as long as the work may continue without a
/// caller.
async fn stop_waiting(stores: &[Arc<dyn Store>], rules: &[Rule], action: Action<'_>) {
    assert!(timeout(DEADLINE, apply(stores, rules, action)).await.is_err());
    sleep(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn take_without_a_caller_refunds_its_parts() {
    let backends = backends::<3>();
    let rules = [Rule::new(0, Algorithm::SlidingLog, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let mut stores = stores(&backends);
    stores[1] = Late::takes(&backends[1], Duration::from_millis(200));
    for _ in 0..5 {
        stop_waiting(&stores, &rules, Action::take()).await;
        assert_eq!(remaining(&backends, &rules), [10, 10, 10], "the late part responded and is refunded too");
    }
}

#[tokio::test(start_paused = true)]
async fn part_without_a_response_stays_charged_and_earlier_ones_are_refunded() {
    let backends = backends::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let mut stores = stores(&backends);
    stores[1] = Late::takes(&backends[1], MINUTE);
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&backends, &rules), [10, 9, 10], "an unknown charge is not refunded");
}

#[tokio::test(start_paused = true)]
async fn denial_after_the_caller_left_refunds_what_was_taken() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 1)];
    take_directly(&backends, &rules[1], 1);
    let mut stores = stores(&backends);
    stores[1] = Late::takes(&backends[1], Duration::from_millis(200));
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&backends, &rules), [10, 0]);
}

#[tokio::test(start_paused = true)]
async fn only_a_recorded_admission_is_kept_without_its_caller() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut stores = stores(&backends);
    stores[1] = Late::takes(&backends[1], Duration::from_millis(200));
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&backends, &rules), [10, 10]);
    stop_waiting(&stores, &rules, Action::Take { idempotency: Some(key(1)) }).await;
    assert_eq!(remaining(&backends, &rules), [9, 9]);
    let again = decided(take_once(&stores, &rules, 1).await);
    assert!(again.allowed && again.replayed);
    assert_eq!(remaining(&backends, &rules), [9, 9], "a repetition is not charged");
}

#[tokio::test(start_paused = true)]
async fn admission_that_may_be_recorded_keeps_its_charges() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut late = stores(&backends);
    late[1] = Late::takes(&backends[1], MINUTE);
    stop_waiting(&late, &rules, Action::Take { idempotency: Some(key(1)) }).await;
    let again = decided(take_once(&stores(&backends), &rules, 1).await);
    assert!(again.allowed && again.replayed);
    assert_eq!(remaining(&backends, &rules), [9, 9], "the repetition reuses the charges");
}

#[tokio::test(start_paused = true)]
async fn refund_reaches_all_parts_without_its_caller() {
    let backends = backends::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut stores = stores(&backends);
    take(&stores, &rules).await;
    let late = Late { store: backends[0].memory.clone(), takes: false, by: Duration::from_millis(200) };
    stores[0] = Arc::new(late);
    stop_waiting(&stores, &rules, Action::Refund).await;
    assert_eq!(remaining(&backends, &rules), [10, 10]);
}

#[tokio::test]
async fn refund_that_fails_in_one_part_still_reaches_the_others() {
    let backends = backends::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: backends[0].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] =
        [failing.clone(), backends[1].memory.clone(), backends[2].memory.clone()];
    take(&stores, &rules).await;
    failing.fails.store(true, Ordering::SeqCst);
    let refund = apply(&stores, &rules, Action::Refund).await;
    assert!(refund.unwrap_err().is_outage());
    assert_eq!(remaining(&backends, &rules), [9, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_guard_in_the_middle_of_a_chain_leaves_no_part_charged() {
    let backends = backends::<2>();
    let limit = Limit::try_new(Algorithm::FixedWindow, 10, MINUTE).unwrap();
    let counter = Counter::new("rule", "user", "*");
    let late = Late::takes(&backends[1], Duration::from_millis(200));
    let shards = ShardedStore::try_new(vec![backends[0].memory.clone(), late]).unwrap();
    let local = Arc::new(MemoryStore::default());
    // Identities on both shards, the healthy one first.
    let identifiers = [0, 1].map(|shard| {
        let mut names = (0..).map(|number| format!("user-{number}"));
        names.find(|name| shards.shard_of(&Key::new(&counter, name, "")) == shard).unwrap()
    });
    let guard = GuardedStore::new("shards", Arc::new(shards), local, DEADLINE);
    let charges: Vec<Charge<'_>> = identifiers
        .iter()
        .map(|identifier| Charge {
            on_store_error: FailureMode::Closed,
            ..Charge::new(Key::new(&counter, identifier, ""), &limit)
        })
        .collect();
    let command = Command::take(&charges);
    for _ in 0..4 {
        let denied = decided(guard.apply(&command, None).await);
        assert!(!denied.allowed && denied.degraded());
    }
    sleep(Duration::from_secs(10)).await;
    let peek = Command::peek(&charges[..1]);
    let left = decided(backends[0].memory.apply_now(&peek, None)).remaining();
    assert_eq!(left, Some(10), "denied chains charge nothing");
}

#[tokio::test]
async fn identities_are_kept_in_their_shards() {
    let memories: [Arc<MemoryStore>; 4] = std::array::from_fn(|_| Arc::default());
    let shards: Vec<Arc<dyn Store>> =
        memories.iter().map(|memory| memory.clone() as Arc<dyn Store>).collect();
    let shards = ShardedStore::try_new(shards).unwrap();
    let limit = Limit::try_new(Algorithm::FixedWindow, 10, MINUTE).unwrap();
    let counter = Counter::new("rule", "user", "");
    // Another shard would reset the counter.
    for (number, expected) in [0, 2, 3, 1, 3, 1, 3, 1, 2, 1, 3, 2].into_iter().enumerate() {
        let identifier = format!("user-{number}");
        let charges = [Charge::new(Key::new(&counter, &identifier, ""), &limit)];
        let keys = || memories.each_ref().map(|memory| memory.keys());
        let mut grown = keys();
        let command = Command::take(&charges);
        assert!(decided(shards.apply(&command, None).await).allowed);
        grown[expected] += 1;
        assert_eq!((shards.shard_of(&charges[0].key), keys()), (expected, grown), "{identifier}");
    }
}
