//! Bounds under pressure: exact admission from many threads, a flood of keys, and expiry as the work goes on.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate_core::{Algorithm, Cost, Counter, Identity, Key, Limit, Origin, Reason, Timestamp};
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{Action, Charge, Clock, Command, FailureMode, Idempotency, Outcome, Store as _};
use pacegate_testkit::{SimulatedClock, admission};

fn limit(algorithm: Algorithm, quota: u64, seconds: u64) -> Limit {
    Limit::try_new(algorithm, quota, Duration::from_secs(seconds)).unwrap()
}

fn store(max_keys: usize) -> (Arc<SimulatedClock>, MemoryStore) {
    let clock = Arc::new(SimulatedClock::default());
    let options = MemoryOptions { max_keys, ..MemoryOptions::default() };
    (clock.clone(), MemoryStore::with_clock(options, clock))
}

fn apply(
    store: &MemoryStore,
    action: Action<'_>,
    counter: &Counter,
    limit: &Limit,
    identifier: &str,
) -> Outcome {
    let charges = [Charge::new(Key::new(counter, identifier, "/"), limit)];
    let command = Command { action, charges: &charges };
    store.apply_now(&command, None).unwrap()
}

fn allowed(store: &MemoryStore, counter: &Counter, limit: &Limit, identifier: &str) -> bool {
    match apply(store, Action::take(), counter, limit, identifier) {
        Outcome::Decided(decision) => decision.allowed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn eight_threads_admit_exactly_the_limit() {
    let store = MemoryStore::default();
    let now = Some(SimulatedClock::default().now());
    for round in 0..1_000 {
        let algorithm = Algorithm::ALL[round % Algorithm::ALL.len()];
        let quota = [1, 7, 100, 1_000][round % 4];
        let limit = limit(algorithm, quota, 60);
        let counter = Counter::new(&format!("round-{round}"), "user", "");
        let charge = Charge::new(Key::new(&counter, "everyone", "/"), &limit);
        let attempts = quota as usize / 8 + 20;
        let admitted = admission::count(8, attempts, || store.take(&charge, now).unwrap().allowed);
        assert_eq!(admitted, quota, "{algorithm} in round {round}");
    }
}

#[test]
fn overflow_counters_are_one_per_rule_and_enforce_the_rule() {
    let (clock, store) = store(2);
    let limit = limit(Algorithm::FixedWindow, 3, 60);
    let (one, other) = (Counter::new("one", "user", ""), Counter::new("other", "user", ""));
    for identifier in ["a", "b"] {
        assert!(allowed(&store, &one, &limit, identifier));
    }
    let crowd = ["c", "d", "e", "f", "g"];
    let admitted = |counter| crowd.iter().filter(|who| allowed(&store, counter, &limit, who)).count();
    assert_eq!((admitted(&one), admitted(&other)), (3, 3));
    assert!(allowed(&store, &one, &limit, "a"), "a key with a place of its own is not affected");
    clock.advance(Duration::from_secs(60));
    // The old keys are fresh now: their places are free, and newcomers get counters of their own again.
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "d"));
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(!allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "d"));
}

#[test]
fn new_keys_of_one_rule_in_one_command_all_charge_its_overflow_counter() {
    for algorithm in Algorithm::ALL {
        let (_clock, store) = store(1);
        let counter = Counter::new("shared", "user", "");
        let limit = limit(algorithm, 100, 3_600);
        assert!(allowed(&store, &counter, &limit, "first"));
        let ask = |action, cost, identifiers: &[&str], shadow: bool| {
            let cost = Cost::try_new(cost).unwrap();
            let charges: Vec<Charge<'_>> = identifiers
                .iter()
                .map(|who| Charge { cost, shadow, ..Charge::new(Key::new(&counter, who, "/"), &limit) })
                .collect();
            match store.apply_now(&Command { action, charges: &charges }, None).unwrap() {
                Outcome::Decided(decision) => decision,
                other => panic!("{other:?}"),
            }
        };
        let remaining = |answers: &pacegate_core::Answers| -> Vec<Option<u32>> {
            answers.iter().map(|answer| answer.remaining).collect()
        };
        let left = || ask(Action::peek(), 1, &["anyone"], false).remaining().unwrap();

        let decision = ask(Action::take(), 10, &["a", "b"], false);
        assert!(decision.allowed, "{algorithm}");
        assert_eq!(remaining(&decision.answers), [Some(90), Some(80)], "{algorithm}");
        assert_eq!(left(), 80, "{algorithm}");
        // There is room for each of them, but not for both.
        for action in [Action::take(), Action::peek()] {
            let denied = ask(action, 50, &["a", "b"], false);
            assert!(!denied.allowed && denied.retry_after().is_some(), "{algorithm}");
            assert_eq!(denied.answers.iter().map(|answer| answer.allowed).collect::<Vec<_>>(), [true, false]);
            assert_eq!(left(), 80, "{algorithm} charged a denied command");
        }
        // A shadow limit is charged as far as it has room.
        assert!(ask(Action::take(), 30, &["a", "b", "c"], true).allowed, "{algorithm}");
        assert_eq!(left(), 20, "{algorithm}");
    }
}

#[test]
fn idle_keys_are_dropped_as_the_work_goes_on() {
    for algorithm in Algorithm::ALL {
        let (clock, store) = store(1_000_000);
        let counter = Counter::new("idle", "user", "");
        let limit = limit(algorithm, 5, 1);
        for key in 0..10_000 {
            allowed(&store, &counter, &limit, &format!("idle-{key}"));
        }
        assert_eq!(store.keys(), 10_000);
        clock.advance(Duration::from_secs(60));
        for check in 0..100_000 {
            allowed(&store, &counter, &limit, &format!("busy-{}", check % 100));
        }
        assert!(store.keys() < 500, "{} keys left under {algorithm}", store.keys());
    }
}

#[test]
fn a_key_is_not_dropped_before_its_state_is_fresh() {
    for algorithm in Algorithm::ALL {
        let (clock, store) = store(1_000_000);
        let counter = Counter::new("live", "user", "");
        let limit = limit(algorithm, 1, 100);
        assert!(allowed(&store, &counter, &limit, "me"));
        let Outcome::Decided(decision) = apply(&store, Action::peek(), &counter, &limit, "me") else {
            panic!()
        };
        let reset_at = decision.binding().unwrap().reset_at.unwrap();
        let wait = reset_at.saturating_since(clock.now()) - Duration::from_micros(1);
        clock.advance(wait);
        // Enough traffic for the sweep to pass over every entry many times.
        for check in 0..20_000 {
            allowed(&store, &counter, &limit, &format!("other-{}", check % 50));
        }
        let Outcome::Decided(decision) = apply(&store, Action::peek(), &counter, &limit, "me") else {
            panic!()
        };
        assert_eq!(decision.binding().unwrap().reset_at, Some(reset_at), "{algorithm} forgot a live key");
    }
}

const HOME: Identity<'static> = Identity { dimension: "user", identifier: "u" };

/// A take under the idempotency key of a sender, in a store with few places for such keys.
fn take_once(store: &MemoryStore, limit: &Limit, sender: Option<&str>, key: &str) -> (bool, bool) {
    let counter = Counter::new("once", "user", "");
    let home = Some(HOME);
    let idempotency = Some(Idempotency { caller: "caller", key, fingerprint: [0; 16], home, sender });
    match apply(store, Action::Take { idempotency }, &counter, limit, "u") {
        Outcome::Decided(decision) => (decision.allowed, decision.replayed),
        other => panic!("{other:?}"),
    }
}

fn few_idempotency_keys(max_idempotency_keys: usize) -> (Arc<SimulatedClock>, MemoryStore) {
    let clock = Arc::new(SimulatedClock::default());
    let options = MemoryOptions { max_idempotency_keys, ..MemoryOptions::default() };
    (clock.clone(), MemoryStore::with_clock(options, clock))
}

#[test]
fn one_sender_leaves_idempotency_keys_to_others() {
    let (clock, store) = few_idempotency_keys(64 * 64);
    let limit = limit(Algorithm::FixedWindow, 1_000_000, 86_400);
    let many = 20_000;
    let sent = (0..many).filter(|key| take_once(&store, &limit, Some("flood"), &format!("f-{key}")).0);
    assert_eq!(sent.count(), many, "checks are decided without a record");
    let recorded = (0..many).filter(|key| take_once(&store, &limit, Some("flood"), &format!("f-{key}")).1);
    let recorded = recorded.count();
    assert!((64 * 40..=64 * 49).contains(&recorded), "{recorded} of 4,096 places");
    for key in 0..200 {
        let key = format!("innocent-{key}");
        assert_eq!(take_once(&store, &limit, Some("other"), &key), (true, false));
        assert_eq!(take_once(&store, &limit, Some("other"), &key), (true, true), "{key} is recorded");
    }
    clock.advance(Idempotency::KEPT_FOR);
    assert_eq!(take_once(&store, &limit, Some("flood"), "later"), (true, false));
    assert_eq!(take_once(&store, &limit, Some("flood"), "later"), (true, true), "old keys make room");
}

#[test]
fn limits_hold_without_a_place_for_the_idempotency_key() {
    let (_clock, store) = few_idempotency_keys(64);
    let limit = limit(Algorithm::FixedWindow, 300, 86_400);
    let admitted = (0..1_000).filter(|key| take_once(&store, &limit, None, &format!("key-{key}")).0).count();
    assert_eq!(admitted, 300);
    let unrecorded = store.figures().into_iter().find(|(name, _)| *name == "unrecorded").unwrap().1.value();
    assert!(unrecorded >= 900, "{unrecorded}");
}

#[test]
fn commands_that_only_record_fail_without_a_place() {
    let (clock, store) = few_idempotency_keys(64);
    let record = |key: &str| {
        let home = None;
        let idempotency =
            Some(Idempotency { caller: "caller", key, fingerprint: [0; 16], home, sender: None });
        let command = Command { action: Action::Take { idempotency }, charges: &[] };
        store.apply_now(&command, None)
    };
    let accepted = (0..1_000).filter(|key| record(&format!("key-{key}")).is_ok()).count();
    assert!(accepted <= 64, "{accepted} idempotency keys kept");
    let error = (0..1_000).find_map(|key| record(&format!("more-{key}")).err()).unwrap();
    assert!(error.is_retryable());
    clock.advance(Idempotency::KEPT_FOR);
    assert!(record("later").is_ok(), "old keys make room");
}

/// What a store decides on one limit of one identifier.
fn take_with(
    store: &MemoryStore,
    counter: &Counter,
    limit: &Limit,
    mode: FailureMode,
) -> (bool, Option<Reason>) {
    let charge = Charge { on_store_error: mode, ..Charge::new(Key::new(counter, "u", "/"), limit) };
    let decision = store.take(&charge, None).unwrap();
    (decision.allowed, decision.answers[0].reason)
}

fn made_up(number: usize) -> Counter {
    Counter::new("ad-hoc", &format!("dimension-{number}"), "").with_origin(Origin::AdHoc)
}

#[test]
fn counters_that_callers_make_up_are_bounded_and_fail_by_their_mode() {
    let (_clock, store) = store(100);
    let limit = limit(Algorithm::FixedWindow, 1, 3_600);
    let mut uncounted = 0;
    for number in 0..20_000 {
        let mode = [FailureMode::Open, FailureMode::Closed][number % 2];
        let (allowed, reason) = take_with(&store, &made_up(number), &limit, mode);
        match reason {
            None => assert!(allowed),
            Some(Reason::FailOpen) => assert!(allowed && mode == FailureMode::Open),
            Some(Reason::FailClosed) => assert!(!allowed && mode == FailureMode::Closed),
            Some(other) => panic!("{other:?}"),
        }
        uncounted += usize::from(reason.is_some());
    }
    assert_eq!(store.keys(), 100);
    assert_eq!(uncounted, 20_000 - 100 - 4_096);
    // Rules have overflow counters of their own.
    for rule in 0..1_000 {
        let counter = Counter::new(&format!("rule-{rule}"), "user", "");
        assert_eq!(take_with(&store, &counter, &limit, FailureMode::Closed), (true, None), "rule {rule}");
        let denied = (false, Some(Reason::LimitExceeded));
        assert_eq!(take_with(&store, &counter, &limit, FailureMode::Closed), denied, "rule {rule}");
    }
}

#[test]
fn limit_without_a_place_does_not_free_the_others_of_its_check() {
    let (_clock, store) = store(1);
    let limit = limit(Algorithm::FixedWindow, 3, 3_600);
    for number in 0..5_000 {
        take_with(&store, &made_up(number), &limit, FailureMode::Open);
    }
    let (rule, unplaced) = (Counter::new("rule", "user", ""), made_up(9_999));
    let passed = (0..10).filter(|_| {
        let charges = [&unplaced, &rule].map(|counter| Charge::new(Key::new(counter, "u", "/"), &limit));
        let command = Command::take(&charges);
        match store.apply_now(&command, None).unwrap() {
            Outcome::Decided(decision) => decision.allowed,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(passed.count(), 3, "the rule's limit");
}

#[test]
fn ad_hoc_keys_leave_the_places_of_rules_free() {
    let clock = Arc::new(SimulatedClock::default());
    let options = MemoryOptions { max_keys: 1_000, max_ad_hoc_keys: 100, ..MemoryOptions::default() };
    let store = MemoryStore::with_clock(options, clock.clone());
    let day = limit(Algorithm::FixedWindow, 5, 86_400);
    let ad_hoc = Counter::new("ad-hoc", "user", "").with_origin(Origin::AdHoc);
    for key in 0..5_000 {
        allowed(&store, &ad_hoc, &day, &format!("made-up-{key}"));
    }
    assert_eq!(store.keys(), 100);
    let (logins, once) = (Counter::new("logins", "user", ""), limit(Algorithm::FixedWindow, 1, 60));
    for user in 0..800 {
        assert!(allowed(&store, &logins, &once, &format!("user-{user}")), "first login of user {user}");
    }
    apply(&store, Action::Reset, &ad_hoc, &day, "made-up-0");
    assert!(allowed(&store, &ad_hoc, &day, "reset made a place"));
    assert_eq!(store.keys(), 900);
    clock.advance(Duration::from_secs(86_400));
    let fresh = (0..90).filter(|key| allowed(&store, &ad_hoc, &once, &format!("later-{key}"))).count();
    // A search for expired keys looks at some of them.
    assert!(fresh >= 80, "expired keys make room: {fresh}");
}

#[test]
fn refund_reaches_the_overflow_counter_that_was_charged() {
    for algorithm in Algorithm::ALL {
        let (_clock, store) = store(1);
        let counter = Counter::new("shared", "user", "");
        let limit = limit(algorithm, 3, 3_600);
        assert!(allowed(&store, &counter, &limit, "has a place"));
        let Outcome::Decided(taken) = apply(&store, Action::take(), &counter, &limit, "a") else { panic!() };
        assert!(allowed(&store, &counter, &limit, "b") && allowed(&store, &counter, &limit, "c"));
        assert!(!allowed(&store, &counter, &limit, "d"), "{algorithm}");
        let refund = |taken_at| {
            let charge = Charge { taken_at, ..Charge::new(Key::new(&counter, "a", "/"), &limit) };
            store.apply_now(&Command { action: Action::Refund, charges: &[charge] }, None).unwrap();
        };
        // Without the time of a charge, nothing says that it was made there.
        refund(None);
        assert!(!allowed(&store, &counter, &limit, "d"), "{algorithm}");
        refund(Some(taken.answers[0].refund_at(&limit, Cost::ONE, taken.at)));
        assert!(allowed(&store, &counter, &limit, "d"), "{algorithm}");
        assert!(!allowed(&store, &counter, &limit, "e"), "{algorithm}");
    }
}

/// A take for a counter that a caller made up, in a store without room for another key. `None` when it
/// had no place.
fn take_made_up(store: &MemoryStore, number: usize, limit: &Limit, cost: u64) -> Option<bool> {
    let counter = made_up(number);
    let cost = Cost::try_new(cost).unwrap();
    let charge = Charge { cost, ..Charge::new(Key::new(&counter, "u", "/"), limit) };
    let decision = store.take(&charge, None).unwrap();
    (!decision.answers[0].degraded).then_some(decision.allowed)
}

#[test]
fn expired_overflow_counters_make_room_for_others() {
    let (clock, store) = store(1);
    let counter = Counter::new("lasting", "user", "");
    assert!(allowed(&store, &counter, &limit(Algorithm::FixedWindow, 1, 86_400), "me"));
    let short = limit(Algorithm::TokenBucket, 1, 1);
    for number in 0..4_096 {
        assert!(take_made_up(&store, number, &short, 1).unwrap());
    }
    assert!(take_made_up(&store, 4_096, &short, 1).is_none(), "all counters are live");
    clock.advance(Duration::from_secs(60));
    let accepted = (5_000..9_000).filter(|number| take_made_up(&store, *number, &short, 1).is_some()).count();
    assert!(accepted > 3_000, "{accepted} of 4,000 new counters found room");
    assert_eq!(store.keys(), 1);
}

#[test]
fn denied_newcomers_take_no_room() {
    let limit = limit(Algorithm::FixedWindow, 1, 3_600);
    let (_clock, roomy) = store(10);
    for number in 0..1_000 {
        assert!(!take_made_up(&roomy, number, &limit, 2).unwrap());
    }
    assert_eq!(roomy.keys(), 0);
    let (_clock, full) = store(1);
    assert!(take_made_up(&full, 0, &limit, 1).unwrap());
    for number in 1..10_000 {
        assert!(!take_made_up(&full, number, &limit, 2).unwrap(), "a denial used up an overflow counter");
    }
    assert!(take_made_up(&full, 10_000, &limit, 1).unwrap());
    assert_eq!(full.keys(), 1);
}

#[test]
fn a_reset_makes_room_for_another_key() {
    let (_clock, store) = store(2);
    let counter = Counter::new("reset", "user", "");
    let limit = limit(Algorithm::FixedWindow, 1, 3_600);
    for round in 0..5 {
        for identifier in ["a", "b"] {
            let identifier = format!("{identifier}-{round}");
            assert!(allowed(&store, &counter, &limit, &identifier), "{identifier} has a counter of its own");
        }
        assert_eq!(store.keys(), 2);
        for identifier in ["a", "b", "c"] {
            apply(&store, Action::Reset, &counter, &limit, &format!("{identifier}-{round}"));
        }
        assert_eq!(store.keys(), 0, "what was not there is not counted");
    }
}

#[test]
fn a_load_of_denials_sweeps_as_well() {
    let (clock, store) = store(1_000_000);
    let counter = Counter::new("denied", "user", "");
    let limit = limit(Algorithm::TokenBucket, 1, 3_600);
    let short = self::limit(Algorithm::TokenBucket, 1, 1);
    for key in 0..1_000 {
        allowed(&store, &counter, &short, &format!("idle-{key}"));
    }
    clock.advance(Duration::from_secs(60));
    let charge = Charge::new(Key::new(&counter, "hot", "/"), &limit);
    assert!(store.take(&charge, None).unwrap().allowed);
    for _ in 0..100_000 {
        assert!(store.take_known(&charge).is_none());
        assert!(!store.take(&charge, None).unwrap().allowed);
    }
    assert!(store.keys() < 100, "{} keys left", store.keys());
}

/// A clock on which a microsecond passes whenever it is looked at.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

#[test]
fn what_concurrent_callers_took_can_be_given_back() {
    // The time is read under the lock: read before it, some of these charges would be kept under a later time and not be found again.
    let clock = Arc::new(Ticking(AtomicU64::new(1_790_000_000_000_000)));
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock);
    let counter = Counter::new("refunds", "user", "");
    let limit = limit(Algorithm::SlidingLog, 100_000, 3_600);
    let charges = [Charge::new(Key::new(&counter, "u", "/"), &limit)];
    admission::count(4, 2_000, || {
        let decision = store.take(&charges[0], None).unwrap();
        let refund = Charge { taken_at: Some(decision.at), ..charges[0] };
        store.apply_now(&Command { action: Action::Refund, charges: &[refund] }, None).unwrap();
        decision.allowed
    });
    let Outcome::Decided(decision) = apply(&store, Action::peek(), &counter, &limit, "u") else { panic!() };
    assert_eq!(decision.remaining(), Some(100_000));
}

#[test]
fn a_refund_under_another_limit_does_not_make_a_live_key_expire() {
    let (clock, store) = store(1_000_000);
    let counter = Counter::new("changing", "user", "");
    let (live, other) = (limit(Algorithm::FixedWindow, 1, 3_600), limit(Algorithm::FixedWindow, 1, 60));
    assert!(allowed(&store, &counter, &live, "me"));
    // The state belongs to the other window, so there is nothing to give back.
    apply(&store, Action::Refund, &counter, &other, "me");
    clock.advance(Duration::from_secs(5));
    for check in 0..100_000 {
        allowed(&store, &counter, &live, &format!("other-{}", check % 50));
    }
    assert!(!allowed(&store, &counter, &live, "me"), "the sweep forgot a key that is limiting someone");
}
