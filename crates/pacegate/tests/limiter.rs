//! The limiter from the view of an embedding program, on a clock that moves only when it is set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Check, CheckError, Cost, InvalidRules, Limit, Limiter, LimiterBuilder, MemoryOptions,
    MemoryStore, Mode, Pattern, Rule, Scope,
};
use pacegate_testkit::SimulatedClock;

fn on_simulated_time(builder: LimiterBuilder) -> (Arc<SimulatedClock>, Limiter) {
    let clock = Arc::new(SimulatedClock::default());
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    (clock, builder.memory(Arc::new(store)).build().unwrap())
}

fn window(quota: u64, seconds: u64) -> Limit {
    Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(seconds)).unwrap()
}

fn rule(name: &str, endpoint: &str, quota: u64) -> Rule {
    Rule { endpoint: Pattern::parse(endpoint).unwrap(), ..Rule::new(name, "user", window(quota, 60)) }
}

fn applied(limiter: &Limiter, check: &Check<'_>) -> Vec<(String, u32)> {
    let decision = limiter.check_now(check).unwrap();
    decision.limits().iter().map(|limit| (limit.name.to_string(), limit.limit.quota())).collect()
}

#[tokio::test]
async fn plans_limit_keys_and_refill() {
    let builder = Limiter::builder().plan("gold", [Limit::per_second(1).burst(2)]);
    let (clock, limiter) = on_simulated_time(builder);
    let check = Check::key("user-123").plan("gold");
    assert!(limiter.check(&check).await.unwrap().allowed());
    assert!(limiter.check_now(&check).unwrap().allowed());
    let denied = limiter.check(&check).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    assert!(
        limiter.check_now(Check::key("user-456").plan("gold")).unwrap().allowed(),
        "other keys are not affected"
    );
    clock.advance(Duration::from_secs(1));
    assert!(limiter.check_now(&check).unwrap().allowed());
    let gold = limiter.plan("gold").unwrap();
    assert!(
        !gold.check_now("user-123", Cost::ONE).unwrap().allowed(),
        "a plan that was looked up shares the counters"
    );
}

#[tokio::test]
async fn chained_plans_are_charged_all_or_nothing() {
    let builder =
        Limiter::builder().plan("wide", [window(10, 60)]).plan("narrow", [window(2, 60), window(5, 3_600)]);
    let (_, limiter) = on_simulated_time(builder);
    let both = Check::key("k").plan("wide").plan("narrow");
    for _ in 0..2 {
        assert!(limiter.check(&both).await.unwrap().allowed());
    }
    let denied = limiter.check(&both).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(&*denied.binding_limit().unwrap().name, "narrow");
    let wide = limiter.peek(&Check::key("k").plan("wide")).await.unwrap();
    assert_eq!(wide.remaining(), Some(8), "a denied chain charges nothing");
}

#[tokio::test]
async fn peek_reset_and_refund_work() {
    let (_, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(10, 60)]));
    let check = Check::key("k").plan("p").cost(Cost::try_new(4).unwrap());
    let taken = limiter.check(&check).await.unwrap();
    assert_eq!(limiter.peek(&check).await.unwrap().remaining(), Some(6));
    assert_eq!(limiter.refund(&check, &taken).await.unwrap().remaining(), Some(10));
    limiter.check(&check).await.unwrap();
    limiter.check(&check).await.unwrap();
    let denied = limiter.check(&check).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(
        limiter.refund(&check, &denied).await.unwrap().remaining(),
        Some(2),
        "a denial charges nothing"
    );
    limiter.reset(&check).await.unwrap();
    assert_eq!(limiter.peek(&check).await.unwrap().remaining(), Some(10));
}

#[tokio::test]
async fn decision_is_refunded_once() {
    let (clock, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(10, 3_600)]));
    let check = Check::key("k").plan("p").cost(Cost::try_new(3).unwrap());
    let taken = [(); 3].map(|()| limiter.check_now(&check).unwrap());
    for _ in 0..3 {
        assert_eq!(limiter.refund(&check, &taken[0].clone()).await.unwrap().remaining(), Some(4));
        clock.advance(Duration::from_secs(60));
    }
    // Equal in everything else, but another decision.
    assert_eq!(limiter.refund(&check, &taken[1]).await.unwrap().remaining(), Some(7));

    let chain = [Check::key("a").plan("p"), Check::key("b").plan("p")];
    let together = limiter.check_all(&chain).await.unwrap();
    for check in chain.iter().chain(&chain) {
        assert_eq!(limiter.refund(check, &together).await.unwrap().remaining(), Some(10));
    }
    for check in &chain {
        limiter.check(check).await.unwrap();
        assert_eq!(limiter.refund(check, &together).await.unwrap().remaining(), Some(9));
    }
}

#[tokio::test]
async fn batch_is_one_call_and_checks_fail_independently() {
    let (_, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(1, 60)]));
    let good = Check::key("k").plan("p");
    let results =
        limiter.check_each(&[good.clone(), Check::key("k").plan("q"), good, Check::key("l").plan("p")]).await;
    let summary: Vec<Option<bool>> =
        results.iter().map(|result| result.as_ref().ok().map(|decision| decision.allowed())).collect();
    assert_eq!(summary, [Some(true), None, Some(false), Some(true)]);
}

#[test]
fn rules_of_different_names_stack_and_variants_of_one_name_do_not() {
    let for_vip = Rule { identifier: Some("vip".into()), ..rule("minute", "*", 500) };
    let builder = Limiter::builder()
        .rule(rule("minute", "*", 100))
        .rule(rule("minute", "/api/{*rest}", 50))
        .rule(rule("minute", "/api/orders", 10))
        .rule(for_vip)
        .rule(rule("hour", "/api/{*rest}", 1_000));
    let (_, limiter) = on_simulated_time(builder);
    let rows = [
        ("u", "/other", vec![("minute", 100)]),
        ("u", "/api/users", vec![("minute", 50), ("hour", 1_000)]),
        ("u", "/api/orders", vec![("minute", 10), ("hour", 1_000)]),
        ("u", "//api/./%6Frders/", vec![("minute", 10), ("hour", 1_000)]),
        ("vip", "/api/orders", vec![("minute", 500), ("hour", 1_000)]),
    ];
    for (user, endpoint, expected) in rows {
        let mut found = applied(&limiter, &Check::new("user", user).endpoint(endpoint));
        found.sort_by_key(|(name, _)| name != "minute");
        let expected: Vec<(String, u32)> =
            expected.into_iter().map(|(name, quota)| (name.to_owned(), quota)).collect();
        assert_eq!(found, expected, "{user} {endpoint}");
    }
}

#[test]
fn methods_and_dimensions_select_rules() {
    let writes = Rule { methods: pacegate::Methods::try_new(["POST"]).unwrap(), ..rule("writes", "*", 5) };
    let per_address = Rule { dimension: "ip".into(), ..rule("address", "*", 7) };
    let (_, limiter) = on_simulated_time(Limiter::builder().rule(writes).rule(per_address));
    let both = Check::new("user", "u").and("ip", "10.0.0.1").endpoint("/x");
    assert_eq!(applied(&limiter, &both.clone().method("GET")), [("address".to_owned(), 7)]);
    assert_eq!(
        applied(&limiter, &both.method("POST")),
        [("writes".to_owned(), 5), ("address".to_owned(), 7)]
    );
}

#[test]
fn shadow_rule_counts_but_never_denies() {
    let watching = Rule { mode: Mode::Shadow, ..rule("watching", "*", 1) };
    let (_, limiter) = on_simulated_time(Limiter::builder().rule(watching).rule(rule("real", "*", 3)));
    let check = Check::new("user", "u").endpoint("/x");
    let decisions: Vec<_> = (0..4).map(|_| limiter.check_now(&check).unwrap()).collect();
    assert_eq!(
        decisions.iter().map(|decision| decision.allowed()).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    let shadow = &decisions[1].answers()[0];
    assert!(shadow.shadow && !shadow.allowed, "the answer shows the denial");
    assert_eq!(&*decisions[1].binding_limit().unwrap().name, "real");
}

#[tokio::test]
async fn shadow_rule_keeps_the_default_limit_and_is_refunded_only_what_it_charged() {
    let watching = Rule { mode: Mode::Shadow, ..rule("watching", "*", 1) };
    let (_, limiter) = on_simulated_time(Limiter::builder().rule(watching).default_limit(window(2, 60)));
    let check = Check::new("user", "u").endpoint("/x");
    let first = limiter.check(&check).await.unwrap();
    assert_eq!(&*first.binding_limit().unwrap().name, "default");
    let second = limiter.check(&check).await.unwrap();
    assert!(second.allowed() && !second.answers()[0].allowed, "the shadow rule is exceeded");
    assert!(!limiter.check(&check).await.unwrap().allowed(), "the default limit denies");
    limiter.refund(&check, &second).await.unwrap();
    let after = limiter.peek(&check).await.unwrap();
    assert_eq!((after.answers()[0].remaining, after.answers()[1].remaining), (Some(0), Some(1)));
}

#[tokio::test]
async fn reset_covers_rules_of_every_method() {
    let writes =
        Rule { methods: pacegate::Methods::try_new(["POST"]).unwrap(), ..rule("writes", "/login", 1) };
    let (_, limiter) = on_simulated_time(Limiter::builder().rule(writes));
    let post = Check::new("user", "u").endpoint("/login").method("POST");
    assert!(limiter.check_now(&post).unwrap().allowed());
    assert!(!limiter.check_now(&post).unwrap().allowed());
    limiter.reset(&Check::new("user", "u").endpoint("/login")).await.unwrap();
    assert!(limiter.check_now(&post).unwrap().allowed());
}

#[test]
fn idempotency_key_ignores_the_order_of_identities() {
    let (_, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(5, 3_600)]));
    let one = Check::new("user", "u").and("ip", "10.0.0.1").plan("p");
    let other = Check::new("ip", "10.0.0.1").and("user", "u").plan("p");
    assert_eq!(one.identity(), other.identity());
    let (one, other) = (one.idempotency("c", "k"), other.idempotency("c", "k"));
    assert!(!limiter.check_now(&one).unwrap().replayed());
    assert!(limiter.check_now(&other).unwrap().replayed());
}

#[test]
fn counters_are_per_pattern_or_per_endpoint() {
    let each = Rule { scope: Scope::Endpoint, ..rule("each", "/b/{id}", 1) };
    let (_, limiter) = on_simulated_time(Limiter::builder().rule(rule("shared", "/a/{id}", 1)).rule(each));
    let allowed = |endpoint| limiter.check_now(Check::new("user", "u").endpoint(endpoint)).unwrap().allowed();
    assert_eq!([allowed("/a/1"), allowed("/a/2")], [true, false]);
    assert_eq!([allowed("/b/1"), allowed("/b/2"), allowed("/b/1")], [true, true, false]);
}

#[test]
fn default_limit_applies_where_nothing_else_does_and_per_endpoint() {
    let builder = Limiter::builder().default_limit(window(1, 60)).rule(rule("named", "/named", 9));
    let (_, limiter) = on_simulated_time(builder);
    let check = |endpoint| limiter.check_now(Check::new("tenant", "t").endpoint(endpoint)).unwrap();
    assert!(check("/x").allowed());
    assert!(check("/y").allowed(), "another endpoint has a separate counter");
    assert!(!check("/x").allowed());
    let named = Check::new("user", "u").endpoint("/named");
    assert_eq!(applied(&limiter, &named), [("named".to_owned(), 9)]);
    assert_eq!(
        applied(&limiter, &named.limit(window(5, 1))),
        [("named".to_owned(), 9), ("ad-hoc".to_owned(), 5)]
    );
    let (_, unlimited) = on_simulated_time(Limiter::builder());
    assert!(unlimited.check_now(Check::new("user", "u").endpoint("/")).unwrap().binding().is_none());
}

#[test]
fn ad_hoc_limit_keeps_its_usage_while_its_numbers_change() {
    let (_, limiter) = on_simulated_time(Limiter::builder());
    let check = |quota, seconds| {
        let check = Check::new("user", "u").endpoint("/").limit(window(quota, seconds));
        limiter.check_now(&check).unwrap().remaining()
    };
    assert_eq!(check(10, 60), Some(9));
    assert_eq!(check(10, 30), Some(9), "another window has a separate counter");
    assert_eq!(check(20, 60), Some(18), "usage is kept when the limit is raised");
}

#[test]
fn idempotency_keys_charge_once_per_caller() {
    let (clock, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(5, 3_600)]));
    let take = |caller: &str, cost: u64| {
        let check = Check::key("k").plan("p").cost(Cost::try_new(cost).unwrap()).idempotency(caller, "key");
        limiter.check_now(&check)
    };
    assert!(!take("a", 1).unwrap().replayed());
    assert!(take("a", 1).unwrap().replayed());
    assert!(!take("b", 1).unwrap().replayed());
    assert!(matches!(take("a", 2), Err(CheckError::IdempotencyMismatch)));
    clock.advance(Duration::from_secs(300));
    let fresh = take("a", 2).unwrap();
    assert!(!fresh.replayed());
    assert_eq!(fresh.remaining(), Some(1));
}

#[test]
fn invalid_checks_are_rejected_and_charge_nothing() {
    let (_, limiter) = on_simulated_time(Limiter::builder().plan("p", [window(5, 60)]));
    let long = "x".repeat(1_025);
    let rows: Vec<(Check<'_>, &str)> = vec![
        (Check::key("").plan("p"), "identifier: must be"),
        (Check::key("a\0").plan("p"), "identifier: must be"),
        (Check::key(&long).plan("p"), "identifier: must be"),
        (Check::new("no spaces", "a").plan("p"), "dimension: must be"),
        (Check::new("user", "a").and("user", "b").plan("p"), "duplicate dimension `user`"),
        (Check::key("k").plan("nope"), "unknown plan `nope`"),
        (Check::key("k").plan("p").plan("p"), "duplicate plan `p`"),
        (Check::key("k").plan("p").endpoint(""), "endpoint: must not be empty"),
        (Check::key("k").plan("p").idempotency("c", ""), "idempotency_key: must be"),
    ];
    for (check, message) in rows {
        let error = limiter.check_now(&check).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(limiter.check_now(Check::key("k").plan("p")).unwrap().remaining(), Some(4));
    assert!(limiter.plan("p").unwrap().check_now("", Cost::ONE).is_err());
}

/// A remote store, backed by a store in memory.
#[derive(Debug)]
struct Remote(MemoryStore);

impl pacegate::store::Store for Remote {
    fn apply<'a>(
        &'a self,
        command: &'a pacegate::store::Command<'a>,
        now: Option<pacegate::Timestamp>,
    ) -> pacegate::store::ApplyFuture<'a> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.0.apply(command, now).await
        })
    }
}

#[tokio::test]
async fn remote_store_is_awaited() {
    let builder =
        Limiter::builder().plan("p", [window(1, 60)]).store(Arc::new(Remote(MemoryStore::default())));
    let limiter = builder.build().unwrap();
    let check = Check::key("k").plan("p");
    assert!(matches!(limiter.check_now(&check), Err(CheckError::NotInProcess)));
    assert!(matches!(limiter.plan("p").unwrap().check_now("k", Cost::ONE), Err(CheckError::NotInProcess)));
    assert!(limiter.check(&check).await.unwrap().allowed());
    let results = limiter.check_each(&[check.clone(), Check::key("l").plan("p")]).await;
    let allowed: Vec<bool> = results.into_iter().map(|result| result.unwrap().allowed()).collect();
    assert_eq!(allowed, [false, true]);
    limiter.reset(&check).await.unwrap();
    assert!(limiter.check(&check).await.unwrap().allowed());
}

#[test]
fn conflicting_rules_are_rejected() {
    let duplicate = Limiter::builder().rule(rule("a", "/x", 1)).rule(rule("a", "//x", 2)).build();
    assert!(matches!(duplicate, Err(InvalidRules::DuplicateRule { index: 1, .. })));
    let plans = Limiter::builder().plan("p", [window(1, 60)]).plan("p", [window(2, 60)]).build();
    assert!(matches!(plans, Err(InvalidRules::DuplicatePlan { .. })));
    let same = Limiter::builder().plan("p", [window(1, 60), window(2, 60)]).build();
    assert!(matches!(same, Err(InvalidRules::DuplicateInPlan { .. })));
}
