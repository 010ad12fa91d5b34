//! Bounds under pressure: exact admission from many threads, a flood of new keys, and incremental
//! expiry.

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
    let admitted =
        |counter| crowd.iter().filter(|identifier| allowed(&store, counter, &limit, identifier)).count();
    assert_eq!((admitted(&one), admitted(&other)), (3, 3));
    assert!(allowed(&store, &one, &limit, "a"), "a key with its own counter is not affected");
    clock.advance(Duration::from_secs(60));
    // The old keys have expired, so new keys get their own counters again.
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "d"));
    assert!(allowed(&store, &one, &limit, "c"));
    assert!(!allowed(&store, &one, &limit, "c"));
    assert!(allowed(&store, &one, &limit, "d"));
}

#[test]
fn new_keys_of_one_command_all_charge_the_overflow_counter() {
    for algorithm in Algorithm::ALL {
        let (_clock, store) = store(1);
        let counter = Counter::new("shared", "user", "");
        let limit = limit(algorithm, 100, 3_600);
        assert!(allowed(&store, &counter, &limit, "first"));
        let decide = |action, cost, identifiers: &[&str], shadow: bool| {
            let cost = Cost::try_new(cost).unwrap();
            let charges: Vec<Charge<'_>> = identifiers
                .iter()
                .map(|identifier| Charge {
                    cost,
                    shadow,
                    ..Charge::new(Key::new(&counter, identifier, "/"), &limit)
                })
                .collect();
            match store.apply_now(&Command { action, charges: &charges }, None).unwrap() {
                Outcome::Decided(decision) => decision,
                other => panic!("{other:?}"),
            }
        };
        let remaining = |answers: &pacegate_core::Answers| -> Vec<Option<u32>> {
            answers.iter().map(|answer| answer.remaining).collect()
        };
        let left = || decide(Action::peek(), 1, &["anyone"], false).remaining().unwrap();

        let decision = decide(Action::take(), 10, &["a", "b"], false);
        assert!(decision.allowed, "{algorithm}");
        assert_eq!(remaining(&decision.answers), [Some(90), Some(80)], "{algorithm}");
        assert_eq!(left(), 80, "{algorithm}");
        // Each of them fits, but not both.
        for action in [Action::take(), Action::peek()] {
            let denied = decide(action, 50, &["a", "b"], false);
            assert!(!denied.allowed && denied.retry_after().is_some(), "{algorithm}");
            assert_eq!(denied.answers.iter().map(|answer| answer.allowed).collect::<Vec<_>>(), [true, false]);
            assert_eq!(left(), 80, "{algorithm}: a denied command is not charged");
        }
        // A shadow limit is charged as far as the cost fits.
        assert!(decide(Action::take(), 30, &["a", "b", "c"], true).allowed, "{algorithm}");
        assert_eq!(left(), 20, "{algorithm}");
    }
}

#[test]
fn idle_keys_are_dropped_incrementally() {
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
fn key_is_not_dropped_before_its_state_is_fresh() {
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
        assert_eq!(
            decision.binding().unwrap().reset_at,
            Some(reset_at),
            "{algorithm}: a live key is not dropped"
        );
    }
}

const HOME: Identity<'static> = Identity { dimension: "user", identifier: "u" };

/// Takes under the idempotency key of a sender, in a store that holds few such keys.
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
    assert!((64 * 40..=64 * 49).contains(&recorded), "{recorded} of 4,096 records");
    for key in 0..200 {
        let key = format!("innocent-{key}");
        assert_eq!(take_once(&store, &limit, Some("other"), &key), (true, false));
        assert_eq!(take_once(&store, &limit, Some("other"), &key), (true, true), "{key} is recorded");
    }
    clock.advance(Idempotency::TTL);
    assert_eq!(take_once(&store, &limit, Some("flood"), "later"), (true, false));
    assert_eq!(
        take_once(&store, &limit, Some("flood"), "later"),
        (true, true),
        "expired records free their slots"
    );
}

#[test]
fn limits_hold_when_the_idempotency_key_is_not_recorded() {
    let (_clock, store) = few_idempotency_keys(64);
    let limit = limit(Algorithm::FixedWindow, 300, 86_400);
    let admitted = (0..1_000).filter(|key| take_once(&store, &limit, None, &format!("key-{key}")).0).count();
    assert_eq!(admitted, 300);
    let unrecorded = store.figures().into_iter().find(|(name, _)| *name == "unrecorded").unwrap().1.value();
    assert!(unrecorded >= 900, "{unrecorded}");
}

#[test]
fn commands_that_only_record_fail_at_the_bound() {
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
    clock.advance(Idempotency::TTL);
    assert!(record("later").is_ok(), "expired records free their slots");
}

/// What a store decides for one limit of one identifier.
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

fn invented(number: usize) -> Counter {
    Counter::new("ad-hoc", &format!("dimension-{number}"), "").with_origin(Origin::AdHoc)
}

#[test]
fn counters_invented_by_callers_are_bounded_and_use_their_failure_mode() {
    let (_clock, store) = store(100);
    let limit = limit(Algorithm::FixedWindow, 1, 3_600);
    let mut uncounted = 0;
    for number in 0..20_000 {
        let mode = [FailureMode::Open, FailureMode::Closed][number % 2];
        let (allowed, reason) = take_with(&store, &invented(number), &limit, mode);
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
fn limit_without_a_counter_does_not_disable_the_others() {
    let (_clock, store) = store(1);
    let limit = limit(Algorithm::FixedWindow, 3, 3_600);
    for number in 0..5_000 {
        take_with(&store, &invented(number), &limit, FailureMode::Open);
    }
    let (rule, uncounted) = (Counter::new("rule", "user", ""), invented(9_999));
    let passed = (0..10).filter(|_| {
        let charges = [&uncounted, &rule].map(|counter| Charge::new(Key::new(counter, "u", "/"), &limit));
        let command = Command::take(&charges);
        match store.apply_now(&command, None).unwrap() {
            Outcome::Decided(decision) => decision.allowed,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(passed.count(), 3, "the rule's limit still applies");
}

#[test]
fn ad_hoc_keys_do_not_use_up_the_keys_of_rules() {
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
    assert!(allowed(&store, &ad_hoc, &day, "freed by a reset"));
    assert_eq!(store.keys(), 900);
    clock.advance(Duration::from_secs(86_400));
    let fresh = (0..90).filter(|key| allowed(&store, &ad_hoc, &once, &format!("later-{key}"))).count();
    // A search for expired keys examines some of them.
    assert!(fresh >= 80, "expired keys free their slots: {fresh}");
}

#[test]
fn refund_reaches_the_overflow_counter_that_was_charged() {
    for algorithm in Algorithm::ALL {
        let (_clock, store) = store(1);
        let counter = Counter::new("shared", "user", "");
        let limit = limit(algorithm, 3, 3_600);
        assert!(allowed(&store, &counter, &limit, "has a counter"));
        let Outcome::Decided(taken) = apply(&store, Action::take(), &counter, &limit, "a") else { panic!() };
        assert!(allowed(&store, &counter, &limit, "b") && allowed(&store, &counter, &limit, "c"));
        assert!(!allowed(&store, &counter, &limit, "d"), "{algorithm}");
        let refund = |taken_at| {
            let charge = Charge { taken_at, ..Charge::new(Key::new(&counter, "a", "/"), &limit) };
            store.apply_now(&Command { action: Action::Refund, charges: &[charge] }, None).unwrap();
        };
        // Without the time of a charge, it is unknown that it was made there.
        refund(None);
        assert!(!allowed(&store, &counter, &limit, "d"), "{algorithm}");
        refund(Some(taken.answers[0].refund_at(&limit, Cost::ONE, taken.at)));
        assert!(allowed(&store, &counter, &limit, "d"), "{algorithm}");
        assert!(!allowed(&store, &counter, &limit, "e"), "{algorithm}");
    }
}

/// Takes from a counter that a caller invented, in a full store. `None` when it got no counter.
fn take_invented(store: &MemoryStore, number: usize, limit: &Limit, cost: u64) -> Option<bool> {
    let counter = invented(number);
    let cost = Cost::try_new(cost).unwrap();
    let charge = Charge { cost, ..Charge::new(Key::new(&counter, "u", "/"), limit) };
    let decision = store.take(&charge, None).unwrap();
    (!decision.answers[0].degraded).then_some(decision.allowed)
}

#[test]
fn expired_overflow_counters_free_their_slots() {
    let (clock, store) = store(1);
    let counter = Counter::new("lasting", "user", "");
    assert!(allowed(&store, &counter, &limit(Algorithm::FixedWindow, 1, 86_400), "me"));
    let short = limit(Algorithm::TokenBucket, 1, 1);
    for number in 0..4_096 {
        assert!(take_invented(&store, number, &short, 1).unwrap());
    }
    assert!(take_invented(&store, 4_096, &short, 1).is_none(), "all counters are live");
    clock.advance(Duration::from_secs(60));
    let accepted =
        (5_000..9_000).filter(|number| take_invented(&store, *number, &short, 1).is_some()).count();
    assert!(accepted > 3_000, "{accepted} of 4,000 new counters were accepted");
    assert_eq!(store.keys(), 1);
}

#[test]
fn denied_new_keys_use_no_slots() {
    let limit = limit(Algorithm::FixedWindow, 1, 3_600);
    let (_clock, roomy) = store(10);
    for number in 0..1_000 {
        assert!(!take_invented(&roomy, number, &limit, 2).unwrap());
    }
    assert_eq!(roomy.keys(), 0);
    let (_clock, full) = store(1);
    assert!(take_invented(&full, 0, &limit, 1).unwrap());
    for number in 1..10_000 {
        assert!(!take_invented(&full, number, &limit, 2).unwrap(), "a denial uses no overflow counter");
    }
    assert!(take_invented(&full, 10_000, &limit, 1).unwrap());
    assert_eq!(full.keys(), 1);
}

#[test]
fn reset_frees_the_slot_of_a_key() {
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
        assert_eq!(store.keys(), 0, "resetting an absent key does not change the count");
    }
}

#[test]
fn denials_sweep_as_well() {
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

/// A clock that advances by a microsecond whenever it is read.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

#[test]
fn concurrent_charges_can_be_refunded() {
    // The time is read under the lock. If it were read before, some of these charges would be
    // stored under a later time and their refunds would miss them.
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
fn refund_under_another_limit_does_not_expire_a_live_key() {
    let (clock, store) = store(1_000_000);
    let counter = Counter::new("changing", "user", "");
    let (live, other) = (limit(Algorithm::FixedWindow, 1, 3_600), limit(Algorithm::FixedWindow, 1, 60));
    assert!(allowed(&store, &counter, &live, "me"));
    // The state belongs to another window, so there is nothing to refund.
    apply(&store, Action::Refund, &counter, &other, "me");
    clock.advance(Duration::from_secs(5));
    for check in 0..100_000 {
        allowed(&store, &counter, &live, &format!("other-{}", check % 50));
    }
    assert!(!allowed(&store, &counter, &live, "me"), "a key that still limits an identity is not dropped");
}
