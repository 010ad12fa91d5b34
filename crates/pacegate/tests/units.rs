//! Units: the cost of a request in each unit, fixed costs of rules, debt, and exempting rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate::{Check, CheckError, Cost, Limiter, Profile, Stores, explain::Verdict};
use pacegate_config::Config;

const RULES: &str = r#"
default_limit: {algorithm: fixed_window, limit: 50, window: 1d}
plans:
  chat: [{algorithm: fixed_window, limit: 10, window: 1d}, {algorithm: fixed_window, limit: 5000, window: 1d, unit: tokens}]
  export: [{algorithm: fixed_window, limit: 10, window: 1d, cost: 5}]
rules:
  - {name: requests, dimension: user, endpoint: /chat, algorithm: fixed_window, limit: 3, window: 1d}
  - {name: tokens, dimension: user, endpoint: /chat, algorithm: fixed_window, limit: 1000, window: 1d, unit: tokens}
  - {name: export, dimension: user, endpoint: /export, algorithm: fixed_window, limit: 10, window: 1d, cost: 5}
  - {name: late, dimension: user, endpoint: /late, algorithm: fixed_window, limit: 100, window: 1d, unit: tokens, overdraw: true}
  - {name: writes, dimension: user, endpoint: /files, methods: [put, POST], algorithm: fixed_window, limit: 1, window: 1d}
  - {name: per-tier, dimension: user, endpoint: /tiers, algorithm: fixed_window, limit: 1, window: 1d}
  - {name: per-tier, dimension: user, endpoint: /tiers, tier: enterprise, unlimited: true}
"#;

fn limiter() -> Limiter {
    let config = Config::parse(RULES).unwrap_or_else(|errors| panic!("{errors}"));
    config.limiter_with(Stores::default()).unwrap()
}

fn cost(cost: u64) -> Cost {
    Cost::try_new(cost).unwrap()
}

fn at(endpoint: &str) -> Check<'_> {
    Check::new("user", "u").endpoint(endpoint)
}

/// What remains of each limit that applied, by name.
fn left(limiter: &Limiter, check: &Check<'_>) -> (bool, Vec<(String, u32)>) {
    let decision = limiter.check_now(check).unwrap();
    let limits = decision.limits().iter().zip(decision.answers());
    (
        decision.allowed(),
        limits.map(|(limit, answer)| (limit.name.to_string(), answer.remaining.unwrap())).collect(),
    )
}

fn named(limits: &[(&str, u32)]) -> Vec<(String, u32)> {
    limits.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect()
}

#[test]
fn check_charges_the_cost_of_each_unit_all_or_nothing() {
    let limiter = limiter();
    let chat = |tokens| at("/chat").cost_in("tokens", cost(tokens));
    assert_eq!(left(&limiter, &chat(900)), (true, named(&[("requests", 2), ("tokens", 100)])));
    assert_eq!(left(&limiter, &chat(101)), (false, named(&[("requests", 2), ("tokens", 100)])));
    assert_eq!(left(&limiter, &chat(100)), (true, named(&[("requests", 1), ("tokens", 0)])));
    // `requests` is a unit like any other.
    let twice = at("/chat").cost_in("requests", cost(2)).cost_in("tokens", cost(1));
    assert_eq!(left(&limiter, &twice), (false, named(&[("requests", 1), ("tokens", 0)])));
}

#[test]
fn limit_of_a_unit_without_cost_does_not_apply() {
    let limiter = limiter();
    assert_eq!(left(&limiter, &at("/chat")), (true, named(&[("requests", 2)])));
    // If no other rule applies, the default limit does.
    assert_eq!(left(&limiter, &at("/late")), (true, named(&[("default", 49)])));
    let explained = limiter.explain(&at("/chat")).unwrap();
    let verdict = |name: &str| explained.iter().find(|rule| &*rule.limit.name == name).unwrap().verdict;
    assert_eq!((verdict("requests"), verdict("tokens")), (Verdict::Applies, Verdict::OtherUnit));
}

#[test]
fn plan_counts_units_and_has_fixed_costs() {
    let limiter = limiter();
    let check = Check::key("k").plan("chat").cost_in("tokens", cost(4_000));
    assert_eq!(left(&limiter, &check), (true, named(&[("chat", 9), ("chat", 1_000)])));
    assert_eq!(left(&limiter, &check), (false, named(&[("chat", 9), ("chat", 1_000)])));
    assert_eq!(left(&limiter, &Check::key("k").plan("chat")), (true, named(&[("chat", 8)])));
    let export = Check::key("k").plan("export");
    assert_eq!(left(&limiter, &export), (true, named(&[("export", 5)])));
    assert_eq!(left(&limiter, &export), (true, named(&[("export", 0)])));
}

#[test]
fn prepared_plan_charges_its_limits_on_requests() {
    let limiter = limiter();
    let chat = limiter.plan("chat").unwrap();
    let decision = chat.check_now("k", cost(4)).unwrap();
    assert_eq!(decision.answers().iter().map(|answer| answer.remaining).collect::<Vec<_>>(), [Some(6)]);
    assert_eq!(chat.check_now("k", cost(1)).unwrap().remaining(), Some(5));
    let export = limiter.plan("export").unwrap();
    for remaining in [5, 0] {
        assert_eq!(export.check_now("k", Cost::ONE).unwrap().remaining(), Some(remaining));
    }
}

#[test]
fn cost_of_a_rule_replaces_that_of_the_check() {
    let limiter = limiter();
    assert_eq!(left(&limiter, &at("/export").cost(cost(9))), (true, named(&[("export", 5)])));
    assert_eq!(left(&limiter, &at("/export")), (true, named(&[("export", 0)])));
    assert!(!left(&limiter, &at("/export")).0);
}

#[tokio::test]
async fn overdraw_charges_the_full_cost_while_one_remains() {
    let limiter = limiter();
    let late = |tokens| at("/late").cost_in("tokens", cost(tokens));
    assert_eq!(left(&limiter, &late(60)), (true, named(&[("late", 40)])));
    let decision = limiter.check_now(late(100)).unwrap();
    assert!(decision.allowed());
    assert_eq!((decision.remaining(), decision.answers()[0].uncharged), (Some(0), 0));
    assert!(!left(&limiter, &late(1)).0);
    // The refund of a charge into debt covers all of it.
    let again = limiter.refund(&late(100), &decision).await.unwrap();
    assert_eq!(again.remaining(), Some(40));
    let beyond = limiter.check_now(late(1_000)).unwrap();
    assert_eq!((beyond.allowed(), beyond.answers()[0].uncharged), (true, 860));
    assert_eq!(limiter.refund(&late(1_000), &beyond).await.unwrap().remaining(), Some(40));
}

#[test]
fn rule_for_several_methods_applies_to_each() {
    let limiter = limiter();
    for (method, name) in [("PUT", "writes"), ("GET", "default"), ("post", "writes")] {
        let decision = limiter.check_now(at("/files").method(method)).unwrap();
        assert_eq!(&*decision.binding_limit().unwrap().name, name, "{method}");
    }
    assert!(
        !limiter.check_now(at("/files").method("PUT")).unwrap().allowed(),
        "both methods share a counter"
    );
}

#[test]
fn unlimited_variant_exempts() {
    let limiter = limiter();
    let enterprise = Profile { tier: Some("enterprise".into()), ..Profile::default() };
    for _ in 0..3 {
        let decision = limiter.check_now(at("/tiers").profile(&enterprise)).unwrap();
        assert!(
            decision.allowed() && decision.limits().is_empty(),
            "the default limit does not apply either"
        );
    }
    assert!(left(&limiter, &at("/tiers")).0);
    assert!(!left(&limiter, &at("/tiers")).0);
}

#[test]
fn unit_must_be_a_word() {
    for unit in ["", "Tokens", "1k", "to kens", &"t".repeat(33)] {
        let wrong = limiter().check_now(at("/chat").cost_in(unit, Cost::ONE)).unwrap_err();
        assert!(matches!(wrong, CheckError::InvalidUnit { .. }), "{unit}: {wrong}");
    }
}

#[tokio::test]
async fn repeated_key_with_other_costs_is_a_different_request() {
    let limiter = limiter();
    let check = |tokens| at("/chat").cost_in("tokens", cost(tokens)).idempotency("caller", "key");
    assert!(limiter.check(&check(10)).await.unwrap().allowed());
    assert!(limiter.check(&check(10)).await.unwrap().replayed());
    assert!(matches!(limiter.check(&check(11)).await, Err(CheckError::IdempotencyMismatch)));
}

#[test]
fn errors_in_the_file_are_reported() {
    let rule = |fields: &str| {
        let numbers = "algorithm: gcra, limit: 1, window: 1s";
        let yaml = format!("rules: [{{name: a, dimension: user, {numbers}, {fields}}}]");
        Config::parse(&yaml).unwrap_err().to_string()
    };
    for (fields, expected) in [
        ("unit: Tokens", "rules[0].unit: must be 1 to 32 lower-case letters"),
        ("cost: 0", "rules[0].cost: must be between 1 and 1000000000, got 0"),
        ("overdraw: maybe", "rules[0].overdraw: expected true or false"),
        ("methods: [GET, 7]", "rules[0].methods[1]"),
        ("method: GET, methods: [PUT]", "rules[0].methods: `method` and `methods` are mutually exclusive"),
    ] {
        let errors = rule(fields);
        assert!(errors.contains(expected), "{fields}: {errors}");
    }
    let twice = "plans: {p: [{algorithm: gcra, limit: 1, window: 1s, unit: a}, {algorithm: gcra, limit: 2, window: 1s, unit: a}]}";
    assert!(Config::parse(twice).unwrap_err().to_string().contains("duplicate gcra limit"));
}
