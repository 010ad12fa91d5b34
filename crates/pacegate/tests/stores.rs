//! A limiter over several stores: where counters are kept, that chains over stores are
//! all-or-nothing, and what happens if one fails.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pacegate::{
    Algorithm, Check, CheckError, Cost, Decision, FailureMode, InvalidRules, Limit, Limiter, MemoryOptions,
    MemoryStore, Mode, Pattern, Reason, Rule, StoreError, Stores, Timestamp,
    store::{ApplyFuture, Command, Figure, Store, StoreHealth},
};
use pacegate_testkit::SimulatedClock;
use tokio::time::{sleep, timeout};

/// Two stores in this process whose contents can be inspected.
struct Setup {
    clock: Arc<SimulatedClock>,
    default: Arc<MemoryStore>,
    hot: Arc<MemoryStore>,
    stores: Stores,
}

impl Setup {
    fn new() -> Self {
        let clock = Arc::new(SimulatedClock::default());
        let memory = || Arc::new(MemoryStore::with_clock(MemoryOptions::default(), clock.clone()));
        let (default, hot) = (memory(), memory());
        let stores = Stores::memory(default.clone()).and_memory("hot", hot.clone());
        Self { clock, default, hot, stores }
    }

    fn limiter(&self, rules: impl IntoIterator<Item = Rule>) -> Limiter {
        limiter(self.stores.clone(), rules)
    }

    /// The number of keys in the default store and in the other one.
    fn keys(&self) -> (usize, usize) {
        (self.default.keys(), self.hot.keys())
    }
}

fn limiter(stores: Stores, rules: impl IntoIterator<Item = Rule>) -> Limiter {
    rules.into_iter().fold(Limiter::builder().stores(stores), pacegate::LimiterBuilder::rule).build().unwrap()
}

fn window(quota: u64) -> Limit {
    Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(60)).unwrap()
}

fn rule(name: &str, quota: u64) -> Rule {
    Rule::new(name, "user", window(quota))
}

fn hot_rule(name: &str, quota: u64) -> Rule {
    Rule { store: Some("hot".into()), ..rule(name, quota) }
}

/// Applies only at one endpoint, so that one limiter can have checks of one store and of two.
fn at(endpoint: &str, rule: Rule) -> Rule {
    Rule { endpoint: Pattern::parse(endpoint).unwrap(), ..rule }
}

fn check(user: &str) -> Check<'_> {
    Check::new("user", user).endpoint("/x")
}

fn remaining(decision: &Decision) -> Vec<Option<u32>> {
    decision.answers().iter().map(|answer| answer.remaining).collect()
}

/// A remote store that fails on demand.
#[derive(Debug, Default)]
struct Remote {
    memory: MemoryStore,
    fails: AtomicBool,
}

impl Remote {
    fn failing() -> Arc<Self> {
        Arc::new(Self { fails: AtomicBool::new(true), ..Self::default() })
    }
}

impl Store for Remote {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        if self.fails.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(StoreError::unavailable("connection refused"))));
        }
        self.memory.apply(command, now)
    }
}

#[tokio::test]
async fn rule_counts_in_its_store_and_everything_else_in_the_default_store() {
    let setup = Setup::new();
    let rules = [at("/hot", hot_rule("there", 5)), at("/here", rule("here", 5))];
    let builder = Limiter::builder().stores(setup.stores.clone()).plan("plan", [window(5)]);
    let builder = builder.default_limit(window(5));
    let limiter = rules.into_iter().fold(builder, pacegate::LimiterBuilder::rule).build().unwrap();
    let user = Check::new("user", "u");
    for (check, expected) in [
        (user.clone().endpoint("/hot"), (0, 1)),
        (user.clone().endpoint("/here"), (1, 1)),
        (user.clone().endpoint("/elsewhere"), (2, 1)),
        (user.clone().plan("plan"), (3, 1)),
        (user.clone().limit(window(5)).endpoint("/"), (4, 1)),
        (user.endpoint("/hot"), (4, 1)),
    ] {
        assert!(limiter.check(&check).await.unwrap().allowed());
        assert_eq!(setup.keys(), expected, "{check:?}");
    }
}

#[tokio::test]
async fn naming_the_default_store_is_the_same_as_naming_none() {
    let setup = Setup::new();
    let named = Rule { store: Some("default".into()), ..rule("r", 5) };
    assert!(setup.limiter([rule("r", 5)]).check(&check("u")).await.unwrap().allowed());
    assert_eq!(setup.limiter([named]).check(&check("u")).await.unwrap().remaining(), Some(3));
}

#[tokio::test]
async fn check_over_two_stores_is_all_or_nothing_whichever_denies() {
    for (here, there, names) in [(1, 5, "here"), (5, 1, "there")] {
        let setup = Setup::new();
        // In the list, the rule of the later store comes first.
        let limiter = setup.limiter([hot_rule("there", there), rule("here", here)]);
        let first = limiter.check(&check("u")).await.unwrap();
        assert!(first.allowed());
        assert_eq!(remaining(&first), [Some(there as u32 - 1), Some(here as u32 - 1)]);
        let denied = limiter.check(&check("u")).await.unwrap();
        assert!(!denied.allowed());
        assert_eq!(&*denied.binding_limit().unwrap().name, names);
        let limits: Vec<&str> = denied.limits().iter().map(|limit| &*limit.name).collect();
        assert_eq!(limits, ["there", "here"], "answers are in the order of the rules");
        assert!(denied.retry_after().is_some());
        let left = limiter.peek(&check("u")).await.unwrap();
        assert_eq!(remaining(&left), remaining(&first), "a denial charges neither store");
    }
}

#[tokio::test]
async fn rule_that_moves_starts_a_new_counter_and_finds_the_old_one_when_it_moves_back() {
    let setup = Setup::new();
    let here = setup.limiter([rule("r", 5)]);
    for left in [4, 3] {
        assert_eq!(here.check(&check("u")).await.unwrap().remaining(), Some(left));
    }
    let there = setup.limiter([hot_rule("r", 5)]);
    assert_eq!(there.check(&check("u")).await.unwrap().remaining(), Some(4));
    assert_eq!(setup.keys(), (1, 1));
    let back = setup.limiter([rule("r", 5)]);
    assert_eq!(back.check(&check("u")).await.unwrap().remaining(), Some(2));
    assert_eq!(there.peek(&check("u")).await.unwrap().remaining(), Some(4));
}

#[test]
fn rule_with_unknown_store_is_rejected() {
    let lost = Rule { store: Some("cold".into()), ..rule("lost", 5) };
    let error =
        Limiter::builder().stores(Setup::new().stores).rule(rule("r", 1)).rule(lost).build().unwrap_err();
    assert_eq!(error, InvalidRules::UnknownStore { rule: "lost".into(), store: "cold".into() });
    assert!(Limiter::builder().rule(hot_rule("r", 1)).build().is_err(), "only the default store exists");
    let for_unused_tier = Rule { tier: Some("gold".into()), store: Some("cold".into()), ..rule("tier", 5) };
    assert!(Limiter::builder().rule(for_unused_tier).build().is_err(), "also for a rule with a tier");
}

#[tokio::test]
async fn batch_is_decided_in_order_across_stores() {
    let setup = Setup::new();
    let limiter = setup.limiter([
        at("/both", rule("here", 2)),
        at("/both", hot_rule("there", 2)),
        at("/here", rule("only-here", 1)),
        at("/there", hot_rule("only-there", 1)),
    ]);
    let to = |endpoint| Check::new("user", "u").endpoint(endpoint);
    let bad = Check::new("user", "").endpoint("/here");
    let checks = [
        to("/both"),
        to("/here"),
        to("/there"),
        bad,
        to("/both"),
        to("/there"),
        to("/nowhere"),
        to("/both"),
        to("/here"),
    ];
    let results = limiter.check_each(&checks).await;
    let summary: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().ok().map(|decision| (decision.allowed(), decision.answers().len())))
        .collect();
    let (yes, no) = (true, false);
    assert_eq!(
        summary,
        [
            Some((yes, 2)),
            Some((yes, 1)),
            Some((yes, 1)),
            None,
            Some((yes, 2)),
            Some((no, 1)),
            Some((yes, 0)),
            Some((no, 2)),
            Some((no, 1)),
        ]
    );
}

#[tokio::test]
async fn first_of_two_checks_on_one_counter_is_charged_although_the_second_needs_two_stores() {
    let setup = Setup::new();
    let address = Rule { dimension: "ip".into(), ..hot_rule("address", 5) };
    let limiter = setup.limiter([rule("user", 1), address]);
    let (one_store, two_stores) = (check("u"), check("u").and("ip", "10.0.0.1"));
    for checks in [[one_store.clone(), two_stores.clone()], [two_stores, one_store]] {
        let results = limiter.check_each(&checks).await;
        let allowed: Vec<bool> = results.into_iter().map(|result| result.unwrap().allowed()).collect();
        assert_eq!(allowed, [true, false]);
        setup.clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn check_now_requires_one_store_in_this_process() {
    let setup = Setup::new();
    let stores =
        setup.stores.clone().and_remote("far", Arc::new(Remote::default()), Duration::from_millis(50));
    let far = Rule { store: Some("far".into()), ..rule("far", 5) };
    let limiter = limiter(
        stores,
        [
            at("/here", rule("here", 5)),
            at("/there", hot_rule("there", 5)),
            at("/there", hot_rule("there-too", 5)),
            at("/both", rule("both", 5)),
            at("/both", hot_rule("both-hot", 5)),
            at("/far", far),
        ],
    );
    let to = |endpoint| Check::new("user", "u").endpoint(endpoint);
    for (endpoint, limits) in [("/here", 1), ("/there", 2), ("/nowhere", 0)] {
        assert_eq!(limiter.check_now(to(endpoint)).unwrap().answers().len(), limits, "{endpoint}");
    }
    assert_eq!(setup.keys(), (1, 2));
    for endpoint in ["/both", "/far"] {
        let rejected = limiter.check_now(to(endpoint));
        assert!(matches!(rejected, Err(CheckError::NotInProcess)), "{endpoint}");
        assert!(limiter.check(&to(endpoint)).await.unwrap().allowed(), "{endpoint}");
    }
    assert_eq!(setup.keys(), (2, 3), "rejected checks are not charged");
}

#[tokio::test]
async fn reset_reaches_every_store() {
    let setup = Setup::new();
    let limiter = setup.limiter([rule("here", 1), hot_rule("there", 1)]);
    for user in ["u", "v"] {
        assert!(limiter.check(&check(user)).await.unwrap().allowed());
    }
    assert!(!limiter.check(&check("u")).await.unwrap().allowed());
    limiter.reset(&check("u")).await.unwrap();
    assert_eq!(setup.keys(), (1, 1), "counters of other users are kept");
    assert!(limiter.check(&check("u")).await.unwrap().allowed());
}

#[tokio::test]
async fn refund_reaches_every_store() {
    let setup = Setup::new();
    let limiter = setup.limiter([rule("here", 5), hot_rule("there", 5)]);
    let taken = limiter.check(&check("u")).await.unwrap();
    assert_eq!(remaining(&limiter.refund(&check("u"), &taken).await.unwrap()), [Some(5), Some(5)]);
}

#[tokio::test]
async fn refund_finds_log_entries_written_by_different_clocks() {
    let setup = Setup::new();
    let log = Limit::try_new(Algorithm::SlidingLog, 5, Duration::from_secs(86_400)).unwrap();
    let limiter =
        setup.limiter([Rule { limit: log, ..rule("here", 5) }, Rule { limit: log, ..hot_rule("there", 5) }]);
    let taken = limiter.check(&check("u")).await.unwrap();
    limiter.check(&check("u")).await.unwrap();
    assert_eq!(remaining(&limiter.refund(&check("u"), &taken).await.unwrap()), [Some(4), Some(4)]);
}

#[tokio::test]
async fn idempotency_key_covers_a_check_over_two_stores() {
    let setup = Setup::new();
    let limiter = setup.limiter([rule("here", 2), hot_rule("there", 2)]);
    let once = check("u").idempotency("caller", "key");
    assert!(!limiter.check(&once).await.unwrap().replayed());
    assert!(limiter.check(&once).await.unwrap().replayed());
    assert_eq!(remaining(&limiter.peek(&check("u")).await.unwrap()), [Some(1), Some(1)]);
    let other = once.cost(Cost::try_new(2).unwrap());
    assert!(matches!(limiter.check(&other).await, Err(CheckError::IdempotencyMismatch)));
}

#[tokio::test]
async fn idempotency_key_over_two_stores_ignores_the_order_of_identities() {
    let setup = Setup::new();
    let address = Rule { dimension: "ip".into(), ..hot_rule("address", 5) };
    let limiter = setup.limiter([rule("user", 5), address]);
    let one = check("u").and("ip", "10.0.0.1").idempotency("caller", "key");
    let other = Check::new("ip", "10.0.0.1").and("user", "u").endpoint("/x").idempotency("caller", "key");
    assert!(!limiter.check(&one).await.unwrap().replayed());
    assert!(limiter.check(&other).await.unwrap().replayed());
}

#[tokio::test]
async fn failure_mode_of_a_rule_overrides_that_of_the_limiter() {
    for (general, general_reason) in [
        (None, Reason::FailOpen),
        (Some(FailureMode::Open), Reason::FailOpen),
        (Some(FailureMode::Closed), Reason::FailClosed),
        (Some(FailureMode::Local), Reason::LocalFallback),
    ] {
        let mut builder = Limiter::builder().store(Remote::failing()).plan("plan", [window(5)]);
        if let Some(mode) = general {
            builder = builder.on_store_error(mode);
        }
        let own =
            |mode, name: &str| at(&format!("/{name}"), Rule { on_store_error: Some(mode), ..rule(name, 5) });
        let limiter = builder
            .rule(own(FailureMode::Open, "open"))
            .rule(own(FailureMode::Closed, "closed"))
            .rule(own(FailureMode::Local, "local"))
            .rule(at("/none", rule("none", 5)))
            .default_limit(window(5))
            .build()
            .unwrap();
        let user = Check::new("user", "u");
        for (check, reason) in [
            (user.clone().endpoint("/open"), Reason::FailOpen),
            (user.clone().endpoint("/closed"), Reason::FailClosed),
            (user.clone().endpoint("/local"), Reason::LocalFallback),
            (user.clone().endpoint("/none"), general_reason),
            (user.clone().endpoint("/default"), general_reason),
            (user.clone().plan("plan"), general_reason),
            (user.clone().limit(window(5)).endpoint("/"), general_reason),
        ] {
            let decision = limiter.check(&check).await.unwrap();
            assert_eq!(decision.binding().unwrap().reason, Some(reason), "{general:?} {check:?}");
            assert_eq!(decision.allowed(), reason != Reason::FailClosed);
            assert!(decision.degraded());
        }
    }
}

#[tokio::test]
async fn limits_of_one_store_are_counted_while_another_fails() {
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let setup = Setup::new();
        let stores = setup.stores.clone().and_remote("far", Remote::failing(), Duration::from_millis(50));
        let far = Rule { store: Some("far".into()), on_store_error: Some(mode), ..rule("far", 5) };
        let limiter = limiter(stores, [far, rule("here", 5)]);
        let decision = limiter.check(&check("u")).await.unwrap();
        assert_eq!((decision.allowed(), decision.degraded()), (allowed, true));
        let left = if allowed { 4 } else { 5 };
        assert_eq!(remaining(&decision), [None, Some(left)], "{mode:?}");
        assert_eq!(remaining(&limiter.peek(&check("u")).await.unwrap()), [None, Some(left)], "{mode:?}");
        assert!(matches!(limiter.reset(&check("u")).await, Err(CheckError::Store(_))));
    }
}

#[tokio::test]
async fn shadow_rule_in_a_failing_store_never_denies() {
    let setup = Setup::new();
    let stores = setup.stores.clone().and_remote("far", Remote::failing(), Duration::from_millis(50));
    let far = Rule { store: Some("far".into()), mode: Mode::Shadow, ..rule("far", 5) };
    let far = Rule { on_store_error: Some(FailureMode::Closed), ..far };
    let decision = limiter(stores, [far, rule("here", 5)]).check(&check("u")).await.unwrap();
    assert!(decision.allowed());
    assert_eq!(decision.remaining(), Some(4));
}

#[tokio::test]
async fn refund_fails_with_the_store_and_is_applied_once() {
    let remote = Arc::new(Remote::default());
    let limiter = limiter(Stores::remote(remote.clone(), Duration::from_millis(50)), [rule("r", 5)]);
    let taken = limiter.check(&check("u")).await.unwrap();
    limiter.check(&check("u")).await.unwrap();
    remote.fails.store(true, Ordering::SeqCst);
    let failed = limiter.refund(&check("u"), &taken).await;
    assert!(matches!(&failed, Err(CheckError::Store(error)) if error.is_outage()), "{failed:?}");
    remote.fails.store(false, Ordering::SeqCst);
    // The store did not record the first attempt, so the second one counts as the first.
    for _ in 0..2 {
        assert_eq!(limiter.refund(&check("u"), &taken).await.unwrap().remaining(), Some(4));
    }
}

#[tokio::test]
async fn refund_is_recorded_in_a_store_that_nodes_share() {
    let shared = Arc::new(Remote::default());
    let node = || {
        let stores = Stores::memory(Arc::default()).and_remote("hot", shared.clone(), Duration::from_secs(5));
        limiter(stores, [rule("own", 5), hot_rule("shared", 50)])
    };
    let (first, second) = (node(), node());
    let taken = first.check(&check("u")).await.unwrap();
    first.check(&check("u")).await.unwrap();
    first.refund(&check("u"), &taken).await.unwrap();
    second.refund(&check("u"), &taken).await.unwrap();
    let left = second.peek(&check("u")).await.unwrap();
    let shared = left.limits().iter().zip(left.answers()).find(|(limit, _)| &*limit.name == "shared");
    assert_eq!(shared.unwrap().1.remaining, Some(49));
}

#[tokio::test]
async fn request_that_was_not_counted_is_not_refunded() {
    let remote = Arc::new(Remote::default());
    let stores = Stores::remote(remote.clone(), Duration::from_millis(50));
    let bucket = Limit::try_new(Algorithm::TokenBucket, 5, Duration::from_secs(86_400)).unwrap();
    let limiter = limiter(stores, [Rule::new("r", "user", bucket)]);
    for _ in 0..2 {
        limiter.check(&check("u")).await.unwrap();
    }
    remote.fails.store(true, Ordering::SeqCst);
    let uncounted = limiter.check(&check("u")).await.unwrap();
    assert!(uncounted.allowed() && uncounted.degraded());
    assert!(
        limiter.refund(&check("u"), &uncounted).await.unwrap().answers().is_empty(),
        "there is nothing to refund"
    );
    remote.fails.store(false, Ordering::SeqCst);
    limiter.refund(&check("u"), &uncounted).await.unwrap();
    assert_eq!(limiter.peek(&check("u")).await.unwrap().remaining(), Some(3));
}

#[tokio::test]
async fn store_with_the_same_name_replaces_the_previous_one() {
    let (first, second) = (Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default()));
    let stores = Stores::default().and_memory("hot", first.clone()).and_memory("hot", second.clone());
    limiter(stores, [hot_rule("r", 5)]).check(&check("u")).await.unwrap();
    assert_eq!((first.keys(), second.keys()), (0, 1));
    let stores = Stores::default().and_memory("default", first.clone());
    limiter(stores, [rule("r", 5)]).check(&check("u")).await.unwrap();
    assert_eq!(first.keys(), 1);
}

#[tokio::test]
async fn health_and_figures_are_reported_per_store() {
    let stores = Stores::default().and_remote("far", Remote::failing(), Duration::from_millis(50));
    let health = |stores: &Stores| -> Vec<(String, StoreHealth)> {
        stores.health().map(|(name, health)| (name.to_owned(), health)).collect()
    };
    let up = [("default".to_owned(), StoreHealth::Up), ("far".to_owned(), StoreHealth::Up)];
    assert_eq!(health(&stores), up);
    let far = Rule { store: Some("far".into()), ..rule("far", 5) };
    let limiter = limiter(stores.clone(), [far]);
    for _ in 0..20 {
        assert!(limiter.check(&check("u")).await.unwrap().degraded());
    }
    let down = [("default".to_owned(), StoreHealth::Up), ("far".to_owned(), StoreHealth::Down)];
    assert_eq!(health(&stores), down);
    let figures: Vec<_> = stores.figures().collect();
    let memory = vec![
        ("keys", Figure::Level(0)),
        ("ad_hoc_keys", Figure::Level(0)),
        ("uncounted", Figure::Count(0)),
        ("unrecorded", Figure::Count(0)),
        ("clock_ahead_seconds", Figure::Level(0)),
    ];
    assert_eq!(figures[0], ("default", memory));
    assert_eq!(
        figures[1],
        (
            "far",
            vec![
                ("errors", Figure::Count(20)),
                ("degraded", Figure::Count(20)),
                ("breaker_openings", Figure::Count(1)),
                ("full", Figure::Count(0)),
                ("over_budget", Figure::Count(0))
            ]
        )
    );
}

/// A remote store that is slow.
#[derive(Debug)]
struct Slow {
    memory: Arc<MemoryStore>,
    by: Duration,
}

impl Store for Slow {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            sleep(self.by).await;
            self.memory.apply(command, now).await
        })
    }
}

/// A limiter on two stores that answer after 20 ms, and one that reads the same counters directly.
fn slow_limiters(rules: &[Rule]) -> (Limiter, Limiter) {
    let setup = Setup::new();
    // Refunds over several steps must handle different times.
    let ahead = Arc::new(SimulatedClock::default());
    ahead.advance(Duration::from_secs(1));
    let hot = Arc::new(MemoryStore::with_clock(MemoryOptions::default(), ahead));
    let slow =
        |memory: &Arc<MemoryStore>| Arc::new(Slow { memory: memory.clone(), by: Duration::from_millis(20) });
    let deadline = Duration::from_millis(50);
    let stores = Stores::remote(slow(&setup.default), deadline).and_remote("hot", slow(&hot), deadline);
    let direct = Stores::memory(setup.default).and_memory("hot", hot);
    (limiter(stores, rules.iter().cloned()), limiter(direct, rules.iter().cloned()))
}

#[tokio::test(start_paused = true)]
async fn chain_over_several_stores_charges_nothing_if_the_caller_stops_waiting() {
    let rules = [rule("here", 10), hot_rule("there", 10)];
    let (slow, direct) = slow_limiters(&rules);
    let checks = [check("a").cost(Cost::try_new(3).unwrap()), check("b")];
    for waited in [10, 30] {
        let waited = Duration::from_millis(waited);
        assert!(timeout(waited, slow.check_all(&checks)).await.is_err());
        sleep(Duration::from_secs(1)).await;
        for check in &checks {
            assert_eq!(remaining(&direct.peek(check).await.unwrap()), [Some(10), Some(10)], "{waited:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refund_over_several_stores_completes_without_its_caller() {
    let rules = [rule("here", 10), hot_rule("there", 10)];
    let (slow, direct) = slow_limiters(&rules);
    let taken = slow.check(&check("a")).await.unwrap();
    assert_eq!(remaining(&direct.peek(&check("a")).await.unwrap()), [Some(9), Some(9)]);
    assert_ne!(taken.answers()[0].at, taken.answers()[1].at, "each store has its own clock");
    // One caller stops waiting while the refund is recorded, and another one repeats it.
    assert!(timeout(Duration::from_millis(10), slow.refund(&check("a"), &taken)).await.is_err());
    direct.check(&check("a")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(remaining(&direct.peek(&check("a")).await.unwrap()), [Some(9), Some(9)]);
    let again = slow.refund(&check("a"), &taken).await.unwrap();
    assert_eq!(remaining(&again), [Some(9), Some(9)]);
}

#[tokio::test]
async fn repeated_request_is_replayed_after_its_rule_moved_to_another_store() {
    let setup = Setup::new();
    let before = setup.limiter([rule("a", 5)]);
    let after = setup.limiter([hot_rule("a", 5), hot_rule("b", 1)]);
    for (key, first, second) in [("one", &before, &after), ("two", &after, &before)] {
        let check = check("alice").idempotency("caller", key);
        let taken = first.check(&check).await.unwrap();
        assert!(taken.allowed() && !taken.replayed() && !taken.answers().is_empty(), "{key}");
        let keys = setup.keys();
        let again = second.check(&check).await.unwrap();
        assert!(
            again.allowed() && again.replayed() && again.answers().len() != taken.answers().len(),
            "{key}"
        );
        assert_eq!(setup.keys(), keys, "{key}: nothing is charged");
        let each = second.check_each(&[check]).await.remove(0).unwrap();
        assert!(each.replayed() && each.answers().len() == again.answers().len(), "{key}");
    }
    let left = [before.peek(&check("alice")).await.unwrap(), after.peek(&check("alice")).await.unwrap()];
    assert_eq!(left.map(|look| remaining(&look)), [vec![Some(4)], vec![Some(4), Some(0)]]);
}
