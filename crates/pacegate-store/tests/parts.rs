//! Commands over several stores: all or nothing, given back exactly, repeated at most once. Every store has a clock of its own.

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
struct Place {
    clock: Arc<SimulatedClock>,
    memory: Arc<MemoryStore>,
}

/// Stores whose clocks are some seconds apart, as those of different machines are.
fn places<const N: usize>() -> [Place; N] {
    std::array::from_fn(|number| {
        let clock = Arc::new(SimulatedClock::default());
        clock.advance(Duration::from_secs([0, 14, 7][number]));
        let memory = Arc::new(MemoryStore::with_clock(MemoryOptions::default(), clock.clone()));
        Place { clock, memory }
    })
}

fn stores<const N: usize>(places: &[Place; N]) -> [Arc<dyn Store>; N] {
    std::array::from_fn(|number| places[number].memory.clone() as Arc<dyn Store>)
}

fn advance(places: &[Place], by: Duration) {
    for place in places {
        place.clock.advance(by);
    }
}

/// A limit, and the number of the store that keeps it.
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

/// What is left in each store, asked there and not through the parts.
fn remaining(places: &[Place], rules: &[Rule]) -> Vec<u32> {
    rules.iter().map(|rule| look(places, rule).remaining.unwrap()).collect()
}

fn look(places: &[Place], rule: &Rule) -> Answer {
    directly(places, rule, Action::peek(), Cost::ONE).answers[0]
}

/// Takes behind the back of the parts.
fn take_directly(places: &[Place], rule: &Rule, cost: u64) {
    assert!(directly(places, rule, Action::take(), Cost::try_new(cost).unwrap()).allowed);
}

fn directly(places: &[Place], rule: &Rule, action: Action<'_>, cost: Cost) -> ChainDecision {
    let command = Command { action, charges: &[Charge { cost, ..rule.charge() }] };
    decided(places[rule.store].memory.apply_now(&command, None))
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

/// Does something just before the first take, as another request on another machine may.
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

/// Fails every take, as a store that is back a moment later does.
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

/// Answers like the store inside until it is told to fail.
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

/// Lets others go first, now more of them and now fewer.
#[derive(Debug)]
struct Polite {
    store: Arc<MemoryStore>,
    turns: Arc<AtomicUsize>,
}

impl Store for Polite {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            // An odd multiplier far from a power of two, so that the order of the tasks differs from turn to turn.
            let turn = self.turns.fetch_add(1, Ordering::SeqCst).wrapping_mul(2_654_435_761);
            for _ in 0..(turn >> 7) % 5 {
                yield_now().await;
            }
            self.store.apply(command, now).await
        })
    }
}

#[tokio::test]
async fn a_take_charges_all_parts_and_answers_in_the_order_of_its_charges() {
    let places = places::<3>();
    let stores = stores(&places);
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
    assert_eq!(decision.binding_index(), 4, "the least is left there in proportion");
    assert_eq!(decision.at, places[1].clock.now(), "the latest of all clocks");
    assert_eq!(remaining(&places, &rules), [49, 39, 29, 19, 9]);
}

#[tokio::test]
async fn when_any_part_denies_none_is_charged_and_that_limit_binds() {
    for full in 0..3 {
        let places = places::<3>();
        let stores = stores(&places);
        let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
        take_directly(&places, &rules[full], 10);
        let before = remaining(&places, &rules);
        let denied = take(&stores, &rules).await;
        assert!(!denied.allowed);
        assert_eq!(denied.binding_index(), full);
        let allowed: Vec<bool> = denied.answers.iter().map(|answer| answer.allowed).collect();
        assert_eq!(allowed, [0, 1, 2].map(|place| place != full), "every limit has its own answer");
        let shown: Vec<u32> = denied.answers.iter().map(|answer| answer.remaining.unwrap()).collect();
        assert_eq!(shown, before, "what is left after the denial is told, not what was left during it");
        assert!(denied.retry_after().is_some());
        assert_eq!(remaining(&places, &rules), before, "{full}");
    }
}

#[tokio::test]
async fn what_a_denied_take_took_is_given_back_exactly_whatever_the_algorithm() {
    for algorithm in Algorithm::ALL {
        let places = places::<2>();
        let stores = stores(&places);
        let rules = [Rule::new(0, algorithm, 10), Rule::window(1, 3)];
        let cost = Cost::try_new(3).unwrap();
        assert!(decided(apply_at(&stores, &rules, Action::take(), cost).await).allowed);
        advance(&places, Duration::from_secs(1));
        let before = look(&places, &rules[0]);
        assert!(!decided(apply_at(&stores, &rules, Action::take(), cost).await).allowed);
        let after = look(&places, &rules[0]);
        assert_eq!((after.remaining, after.reset_at), (before.remaining, before.reset_at), "{algorithm}");
    }
}

/// Between the charge and its return, somebody else charges the same counter `pause` later. What was ours is to go, and nothing else.
async fn give_back_past_another_charge(algorithm: Algorithm, pause: Duration) -> ([Place; 2], [Rule; 2]) {
    let places = places::<2>();
    let rules = [Rule::new(0, algorithm, 10), Rule::window(1, 1)];
    take_directly(&places, &rules[1], 1);
    let (others, rule) = (places.clone(), rules[0].clone());
    let full = Interrupted::around(&places[1].memory, move || {
        others[0].clock.advance(pause);
        take_directly(&others, &rule, 2);
    });
    let stores: [Arc<dyn Store>; 2] = [places[0].memory.clone(), full];
    let denied = take(&stores, &rules).await;
    assert!(!denied.allowed);
    (places, rules)
}

#[tokio::test]
async fn a_log_loses_the_entry_of_the_denied_take_and_not_a_newer_one() {
    let (places, rules) = give_back_past_another_charge(Algorithm::SlidingLog, Duration::from_secs(20)).await;
    assert_eq!(remaining(&places, &rules[..1]), [8]);
    places[0].clock.advance(MINUTE - Duration::from_secs(20));
    assert_eq!(remaining(&places, &rules[..1]), [8], "the other charge is not older than it was");
    places[0].clock.advance(Duration::from_secs(20));
    assert_eq!(remaining(&places, &rules[..1]), [10]);
}

#[tokio::test]
async fn a_window_gets_nothing_back_that_was_taken_in_the_one_before() {
    let (places, rules) = give_back_past_another_charge(Algorithm::FixedWindow, MINUTE).await;
    assert_eq!(remaining(&places, &rules[..1]), [8]);
    let (places, rules) = give_back_past_another_charge(Algorithm::FixedWindow, Duration::ZERO).await;
    assert_eq!(remaining(&places, &rules[..1]), [8], "in the same window it does");
}

#[tokio::test]
async fn a_bucket_is_left_as_if_the_denied_take_had_never_been() {
    // Ten a minute: a token every six seconds.
    let (places, rules) = give_back_past_another_charge(Algorithm::TokenBucket, Duration::from_secs(3)).await;
    assert_eq!(remaining(&places, &rules[..1]), [8]);
    let reset_at = places[0].clock.now().saturating_add(Duration::from_secs(12));
    assert_eq!(
        look(&places, &rules[0]).reset_at,
        Some(reset_at),
        "what flowed in meanwhile is not given back once more"
    );
}

#[tokio::test]
async fn a_shadow_limit_without_room_is_not_given_what_it_did_not_take() {
    let places = places::<2>();
    let stores = stores(&places);
    let rules = [
        Rule { shadow: true, ..Rule::window(0, 1) },
        Rule { shadow: true, ..Rule::window(0, 5) },
        Rule::window(1, 2),
    ];
    assert!(take(&stores, &rules).await.allowed);
    let second = take(&stores, &rules).await;
    assert!(second.allowed && !second.answers[0].allowed && second.answers[0].shadow);
    assert_eq!(remaining(&places, &rules), [0, 3, 0]);
    assert!(!take(&stores, &rules).await.allowed);
    assert_eq!(remaining(&places, &rules), [0, 3, 0], "only what was charged is given back");
}

#[tokio::test]
async fn a_shadow_limit_in_any_part_denies_nobody() {
    for shadow in 0..2 {
        let places = places::<2>();
        let stores = stores(&places);
        let mut rules = [Rule::window(0, 10), Rule::window(1, 10)];
        rules[shadow].shadow = true;
        take_directly(&places, &rules[shadow], 10);
        let decision = take(&stores, &rules).await;
        assert!(decision.allowed && !decision.answers[shadow].allowed);
        assert_eq!(remaining(&places, &rules)[1 - shadow], 9);
        assert_eq!(decision.binding_index(), 1 - shadow);
    }
}

#[tokio::test]
async fn a_part_that_fails_gives_the_earlier_ones_back_and_its_error_is_returned() {
    let places = places::<3>();
    let rules = [Rule::new(0, Algorithm::SlidingLog, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: places[2].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] = [places[0].memory.clone(), places[1].memory.clone(), failing.clone()];
    assert!(take(&stores, &rules).await.allowed);
    failing.fails.store(true, Ordering::SeqCst);
    for action in [Action::take(), Action::peek(), Action::Take { idempotency: Some(key(1)) }] {
        let error = apply(&stores, &rules, action).await.unwrap_err();
        assert!(error.is_outage() && error.may_have_run(), "{error}");
        assert_eq!(remaining(&places, &rules), [9, 9, 9]);
    }
}

#[tokio::test]
async fn a_part_that_passed_without_its_store_is_not_given_what_it_did_not_take() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 1)];
    take_directly(&places, &rules[0], 5);
    take_directly(&places, &rules[1], 1);
    let no_takes = Arc::new(NoTakes(places[0].memory.clone()));
    let guarded = GuardedStore::new("first", no_takes, places[0].memory.clone(), GuardedStore::DEADLINE);
    let stores: [Arc<dyn Store>; 2] = [guarded.clone(), places[1].memory.clone()];
    assert!(!take(&stores, &rules).await.allowed);
    assert_eq!(remaining(&places, &rules), [5, 0]);
}

#[tokio::test]
async fn an_earlier_part_that_fails_leaves_the_later_ones_alone() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let failing = Arc::new(Failing { store: places[0].memory.clone(), fails: AtomicBool::new(true) });
    let stores: [Arc<dyn Store>; 2] = [failing.clone(), places[1].memory.clone()];
    assert!(apply(&stores, &rules, Action::take()).await.is_err());
    assert_eq!(remaining(&places, &rules), [10, 10]);
}

#[tokio::test]
async fn a_peek_looks_at_all_parts_and_charges_none() {
    let places = places::<2>();
    let stores = stores(&places);
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
    assert_eq!(remaining(&places, &rules), [0, 8]);
}

#[tokio::test]
async fn a_refund_goes_to_all_parts() {
    let places = places::<2>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    take(&stores, &rules).await;
    let refunded = decided(apply(&stores, &rules, Action::Refund).await);
    assert_eq!((refunded.answers[0].remaining, refunded.answers[1].remaining), (Some(10), Some(10)));
    assert_eq!(remaining(&places, &rules), [10, 10]);
}

#[tokio::test]
async fn a_reset_forgets_all_parts_and_says_when_by_the_latest_clock() {
    let places = places::<3>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 10), Rule::window(2, 10), Rule::window(1, 10)];
    take(&stores, &rules).await;
    match apply(&stores, &rules, Action::Reset).await {
        Ok(Outcome::Reset { at }) => assert_eq!(at, places[1].clock.now()),
        other => panic!("{other:?}"),
    }
    assert_eq!(places.map(|place| place.memory.keys()), [0, 0, 0]);
}

#[tokio::test]
async fn a_reset_that_fails_in_one_part_still_forgets_the_others() {
    let places = places::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: places[1].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] = [places[0].memory.clone(), failing.clone(), places[2].memory.clone()];
    take(&stores, &rules).await;
    failing.fails.store(true, Ordering::SeqCst);
    assert!(apply(&stores, &rules, Action::Reset).await.unwrap_err().is_outage());
    assert_eq!(remaining(&places, &rules), [10, 9, 10]);
}

#[tokio::test]
async fn an_idempotent_take_is_repeated_although_the_first_part_is_full_by_now() {
    let places = places::<3>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 3), Rule::window(1, 10), Rule::window(2, 10)];
    let first = decided(take_once(&stores, &rules, 1).await);
    assert!(first.allowed && !first.replayed);
    take_directly(&places, &rules[0], 2);
    for _ in 0..2 {
        let again = decided(take_once(&stores, &rules, 1).await);
        assert!(again.allowed && again.replayed);
        assert!(again.answers.iter().all(|answer| answer.allowed && answer.reason.is_none()));
        assert_eq!(again.retry_after(), None);
    }
    assert_eq!(remaining(&places, &rules), [0, 9, 9], "a repetition takes nothing");
    assert!(!take(&stores, &rules).await.allowed, "others are denied");
}

#[tokio::test]
async fn the_record_of_an_idempotency_key_is_in_the_last_part_alone() {
    let places = places::<3>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    let recorded =
        |rule| directly(&places, rule, Action::Peek { idempotency: Some(key(1)) }, Cost::ONE).replayed;
    assert_eq!(rules.each_ref().map(recorded), [false, false, true]);
}

#[tokio::test]
async fn an_idempotency_key_of_another_request_is_a_mismatch_and_charges_no_part() {
    let places = places::<2>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    for action in [Action::Take { idempotency: Some(key(2)) }, Action::Peek { idempotency: Some(key(2)) }] {
        assert!(matches!(apply(&stores, &rules, action).await, Ok(Outcome::Mismatch)));
    }
    assert_eq!(remaining(&places, &rules), [9, 9]);
}

#[tokio::test]
async fn a_denied_take_uses_up_no_idempotency_key() {
    for full in 0..2 {
        let places = places::<2>();
        let stores = stores(&places);
        let rules = [Rule::window(0, 1), Rule::window(1, 1)];
        take_directly(&places, &rules[full], 1);
        assert!(!decided(take_once(&stores, &rules, 1).await).allowed);
        advance(&places, MINUTE);
        let again = decided(take_once(&stores, &rules, 1).await);
        assert!(again.allowed && !again.replayed);
        assert_eq!(remaining(&places, &rules), [0, 0]);
    }
}

#[tokio::test]
async fn a_peek_with_an_idempotency_key_finds_the_admission() {
    let places = places::<2>();
    let stores = stores(&places);
    let rules = [Rule::window(0, 1), Rule::window(1, 10)];
    let action = Action::Peek { idempotency: Some(key(1)) };
    let nothing = decided(apply(&stores, &rules, action).await);
    assert_eq!((nothing.allowed, nothing.replayed, nothing.answers[1].remaining), (true, false, Some(10)));
    assert!(decided(take_once(&stores, &rules, 1).await).allowed);
    let found = decided(apply(&stores, &rules, action).await);
    assert!(found.allowed && found.replayed);
    assert_eq!(remaining(&places, &rules), [0, 9]);
}

#[tokio::test]
async fn a_repetition_that_finds_no_room_because_the_original_took_it_is_admitted_with_it() {
    let places = places::<2>();
    let rules = [Rule::window(0, 1), Rule::window(1, 10)];
    let (others, others_rules) = (places.clone(), rules.clone());
    let whole_original = move || {
        let command = |rule| Command::take(std::slice::from_ref(rule));
        let (first, last) = (others_rules[0].charge(), others_rules[1].charge());
        assert!(decided(others[0].memory.apply_now(&command(&first), None)).allowed);
        let recorded = Command { action: Action::Take { idempotency: Some(key(1)) }, ..command(&last) };
        assert!(decided(others[1].memory.apply_now(&recorded, None)).allowed);
    };
    let overtaken = Interrupted::around(&places[0].memory, whole_original);
    let stores: [Arc<dyn Store>; 2] = [overtaken.clone(), places[1].memory.clone()];
    let decision = decided(take_once(&stores, &rules, 1).await);
    assert!(decision.allowed && decision.replayed);
    assert_eq!(remaining(&places, &rules), [0, 9]);
}

/// How many of eight equal requests at once were admitted first, admitted as repetitions, and denied.
async fn duplicates_at_once(quota: u64, turns: &Arc<AtomicUsize>) -> ([usize; 3], Vec<u32>) {
    let places = places::<3>();
    let rules =
        || [Rule::new(0, Algorithm::SlidingLog, quota), Rule::window(1, quota), Rule::window(2, quota)];
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let polite =
            places.each_ref().map(|place| Polite { store: place.memory.clone(), turns: turns.clone() });
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
    (counts, remaining(&places, &rules()))
}

#[tokio::test]
async fn equal_requests_at_once_are_charged_exactly_once() {
    let turns = Arc::default();
    for round in 0..200 {
        let (counts, left) = duplicates_at_once(20, &turns).await;
        assert_eq!((counts, left), ([1, 7, 0], vec![19, 19, 19]), "round {round}");
    }
}

#[tokio::test]
async fn equal_requests_at_once_are_never_charged_twice_where_there_is_room_for_one() {
    let turns = Arc::default();
    for round in 0..200 {
        let ([admitted, repeated, denied], left) = duplicates_at_once(1, &turns).await;
        // While one is under way, another finds no room and no record yet: it is denied, which a retry mends.
        assert_eq!((admitted, repeated + denied), (1, 7), "round {round}");
        assert_eq!(left, [0, 0, 0], "round {round}");
    }
}

/// Runs every command of one kind and answers it late, or never.
#[derive(Debug)]
struct Late {
    store: Arc<MemoryStore>,
    /// Takes are late, or refunds.
    takes: bool,
    by: Duration,
}

impl Late {
    fn takes(place: &Place, by: Duration) -> Arc<dyn Store> {
        Arc::new(Self { store: place.memory.clone(), takes: true, by })
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

/// A caller that stops waiting after [`DEADLINE`], and the time that the work may go on without it.
async fn stop_waiting(stores: &[Arc<dyn Store>], rules: &[Rule], action: Action<'_>) {
    assert!(timeout(DEADLINE, apply(stores, rules, action)).await.is_err());
    sleep(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn take_without_a_caller_gives_back_the_parts_it_took() {
    let places = places::<3>();
    let rules = [Rule::new(0, Algorithm::SlidingLog, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let mut stores = stores(&places);
    stores[1] = Late::takes(&places[1], Duration::from_millis(200));
    for _ in 0..5 {
        stop_waiting(&stores, &rules, Action::take()).await;
        assert_eq!(remaining(&places, &rules), [10, 10, 10], "the late part answered, and is given back too");
    }
}

#[tokio::test(start_paused = true)]
async fn part_that_never_answers_stays_charged_and_the_earlier_ones_are_given_back() {
    let places = places::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let mut stores = stores(&places);
    stores[1] = Late::takes(&places[1], MINUTE);
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&places, &rules), [10, 9, 10], "what may not have been taken is not given back");
}

#[tokio::test(start_paused = true)]
async fn denial_after_the_caller_left_gives_back_what_was_taken() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 1)];
    take_directly(&places, &rules[1], 1);
    let mut stores = stores(&places);
    stores[1] = Late::takes(&places[1], Duration::from_millis(200));
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&places, &rules), [10, 0]);
}

#[tokio::test(start_paused = true)]
async fn only_a_recorded_admission_stands_without_its_caller() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut stores = stores(&places);
    stores[1] = Late::takes(&places[1], Duration::from_millis(200));
    stop_waiting(&stores, &rules, Action::take()).await;
    assert_eq!(remaining(&places, &rules), [10, 10]);
    stop_waiting(&stores, &rules, Action::Take { idempotency: Some(key(1)) }).await;
    assert_eq!(remaining(&places, &rules), [9, 9]);
    let again = decided(take_once(&stores, &rules, 1).await);
    assert!(again.allowed && again.replayed);
    assert_eq!(remaining(&places, &rules), [9, 9], "a repetition takes nothing");
}

#[tokio::test(start_paused = true)]
async fn admission_that_may_be_recorded_keeps_its_charges() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut late = stores(&places);
    late[1] = Late::takes(&places[1], MINUTE);
    stop_waiting(&late, &rules, Action::Take { idempotency: Some(key(1)) }).await;
    let again = decided(take_once(&stores(&places), &rules, 1).await);
    assert!(again.allowed && again.replayed);
    assert_eq!(remaining(&places, &rules), [9, 9], "the repetition is admitted for what was charged");
}

#[tokio::test(start_paused = true)]
async fn refund_reaches_all_parts_without_its_caller() {
    let places = places::<2>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10)];
    let mut stores = stores(&places);
    take(&stores, &rules).await;
    let late = Late { store: places[0].memory.clone(), takes: false, by: Duration::from_millis(200) };
    stores[0] = Arc::new(late);
    stop_waiting(&stores, &rules, Action::Refund).await;
    assert_eq!(remaining(&places, &rules), [10, 10]);
}

#[tokio::test]
async fn refund_that_fails_in_one_part_still_reaches_the_others() {
    let places = places::<3>();
    let rules = [Rule::window(0, 10), Rule::window(1, 10), Rule::window(2, 10)];
    let failing = Arc::new(Failing { store: places[0].memory.clone(), fails: AtomicBool::new(false) });
    let stores: [Arc<dyn Store>; 3] = [failing.clone(), places[1].memory.clone(), places[2].memory.clone()];
    take(&stores, &rules).await;
    failing.fails.store(true, Ordering::SeqCst);
    let refund = apply(&stores, &rules, Action::Refund).await;
    assert!(refund.unwrap_err().is_outage());
    assert_eq!(remaining(&places, &rules), [9, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_guard_in_the_middle_of_a_chain_leaves_no_part_charged() {
    let places = places::<2>();
    let limit = Limit::try_new(Algorithm::FixedWindow, 10, MINUTE).unwrap();
    let counter = Counter::new("rule", "user", "*");
    let late = Late::takes(&places[1], Duration::from_millis(200));
    let shards = ShardedStore::try_new(vec![places[0].memory.clone(), late]).unwrap();
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
    let left = decided(places[0].memory.apply_now(&peek, None)).remaining();
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
    // Another place would start the counter anew.
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
