//! Policies: limits of one key, in any dimension.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Check, Limit, Limiter, LimiterBuilder, MemoryOptions, MemoryStore, Rule,
    descriptor::Descriptor,
};
use pacegate_testkit::SimulatedClock;

fn policy(key: &str, quota: u64) -> Rule {
    let limit = Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(3_600)).unwrap();
    Rule { identifier: Some(key.into()), ..Rule::new("policy", "key", limit) }
}

fn limiter(builder: LimiterBuilder) -> Limiter {
    let store = MemoryStore::with_clock(MemoryOptions::default(), Arc::new(SimulatedClock::default()));
    builder.memory(Arc::new(store)).build().unwrap()
}

fn remaining(limiter: &Limiter, check: &Check<'_>) -> Option<u32> {
    limiter.check_now(check).unwrap().remaining()
}

#[test]
fn one_counter_is_shared_by_all_dimensions() {
    let limiter = limiter(Limiter::builder().rule(policy("10.0.0.1", 10)));
    for (dimension, left) in [("key", 9), ("user", 8), ("ip", 7), ("apikey", 6)] {
        let check = Check::new(dimension, "10.0.0.1").endpoint("/");
        assert_eq!(remaining(&limiter, &check), Some(left), "{dimension}");
    }
    let others = [Check::new("tenant", "10.0.0.1").endpoint("/"), Check::new("user", "other").endpoint("/")];
    for other in others {
        assert_eq!(remaining(&limiter, &other), None, "{other:?}");
    }
}

#[test]
fn policy_of_an_address_is_found_however_the_address_is_spelled() {
    let limiter = limiter(Limiter::builder().rule(policy("2001:DB8::1", 10)));
    for (address, left) in [("2001:db8::1", 9), ("[2001:db8::2]:443", 8), ("2001:DB8::1", 7)] {
        assert_eq!(remaining(&limiter, &Check::new("ip", address).endpoint("/")), Some(left), "{address}");
    }
}

#[test]
fn identities_with_the_same_identifier_charge_a_policy_once() {
    let limiter = limiter(Limiter::builder().rule(policy("10.0.0.1", 10)).rule(policy("other", 5)));
    let check = Check::new("user", "10.0.0.1").and("ip", "10.0.0.1").and("apikey", "other").endpoint("/");
    let decision = limiter.check_now(&check).unwrap();
    let left: Vec<Option<u32>> = decision.answers().iter().map(|answer| answer.remaining).collect();
    assert_eq!(left, [Some(9), Some(4)]);
}

#[tokio::test]
async fn reset_in_any_dimension_clears_the_counter() {
    let limiter = limiter(Limiter::builder().rule(policy("10.0.0.1", 10)));
    let both = Check::new("user", "10.0.0.1").and("ip", "10.0.0.1").endpoint("/");
    limiter.check_now(&both).unwrap();
    limiter.reset(&both).await.unwrap();
    assert_eq!(remaining(&limiter, &Check::key("10.0.0.1").endpoint("/")), Some(9));
}

#[test]
fn policy_replaces_less_specific_rules_of_its_name_only() {
    let limit = Limit::try_new(Algorithm::FixedWindow, 3, Duration::from_secs(60)).unwrap();
    let rules = [policy("k", 10), Rule::new("policy", "user", limit), Rule::new("per-user", "user", limit)];
    let limiter = limiter(rules.into_iter().fold(Limiter::builder(), LimiterBuilder::rule));
    let names = |user: &str| {
        let decision = limiter.check_now(Check::new("user", user).endpoint("/")).unwrap();
        let limits = decision.limits().iter();
        limits.map(|limit| (limit.label().to_owned(), limit.limit.quota())).collect::<Vec<_>>()
    };
    let per_user = ("per-user".to_owned(), 3);
    assert_eq!(names("k"), [("policy:k".to_owned(), 10), per_user.clone()]);
    assert_eq!(names("other"), [("policy".to_owned(), 3), per_user]);
}

#[test]
fn policy_dimensions_are_configurable() {
    let limiter = limiter(Limiter::builder().rule(policy("k", 10)).policy_dimensions(["tenant"]));
    for (dimension, left) in [("tenant", Some(9)), ("key", Some(8)), ("user", None)] {
        assert_eq!(remaining(&limiter, &Check::new(dimension, "k").endpoint("/")), left, "{dimension}");
    }
}

#[tokio::test]
async fn policies_apply_to_descriptors_of_the_same_dimensions() {
    let limiter = limiter(Limiter::builder().rule(policy("k", 10)));
    for (dimension, left) in [("user", Some(9)), ("key", Some(8)), ("tenant", None)] {
        let decision =
            limiter.check_descriptors("any", &[Descriptor::new([(dimension, "k")])]).await.unwrap();
        assert_eq!(decision.outcomes[0].decision.remaining(), left, "{dimension}");
    }
}
