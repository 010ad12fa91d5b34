//! Which limits apply to which user, one sentence of the design per test, on a clock that moves
//! only when it is set.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Algorithm, Check, Cost, InvalidRules, Limit, LimitOverride, LimitSource, Limiter, LimiterBuilder,
    MemoryOptions, MemoryStore, Mode, Pattern, Profile, Rule, Scope,
};
use pacegate_testkit::SimulatedClock;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn builder(rules: impl IntoIterator<Item = Rule>) -> LimiterBuilder {
    rules.into_iter().fold(Limiter::builder(), LimiterBuilder::rule)
}

fn on_simulated_time(builder: LimiterBuilder) -> (Arc<SimulatedClock>, Limiter) {
    let clock = Arc::new(SimulatedClock::default());
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    (clock, builder.memory(Arc::new(store)).build().unwrap())
}

fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter {
    on_simulated_time(builder(rules)).1
}

fn limit(algorithm: Algorithm, quota: u64, window: Duration) -> Limit {
    Limit::try_new(algorithm, quota, window).unwrap()
}

fn rule(name: &str, quota: u64) -> Rule {
    Rule::new(name, "user", limit(Algorithm::FixedWindow, quota, HOUR))
}

fn at(endpoint: &str, rule: Rule) -> Rule {
    Rule { endpoint: Pattern::parse(endpoint).unwrap(), ..rule }
}

fn for_identifier(identifier: &str, rule: Rule) -> Rule {
    Rule { identifier: Some(identifier.into()), ..rule }
}

fn for_tier(tier: &str, rule: Rule) -> Rule {
    Rule { tier: Some(tier.into()), ..rule }
}

fn in_dimension(dimension: &str, rule: Rule) -> Rule {
    Rule { dimension: dimension.into(), ..rule }
}

fn shadow(rule: Rule) -> Rule {
    Rule { mode: Mode::Shadow, ..rule }
}

fn quota(quota: u64) -> LimitOverride {
    LimitOverride { quota, window: None, burst: None }
}

fn of_tier(tier: &str) -> Profile {
    Profile { tier: Some(tier.into()), ..Profile::default() }
}

fn with_custom(name: &str, numbers: LimitOverride, profile: Profile) -> Profile {
    Profile { custom_limits: vec![(name.into(), numbers)], ..profile }
}

fn with_override(name: &str, numbers: LimitOverride, profile: Profile) -> Profile {
    Profile { overrides: vec![(name.into(), numbers)], ..profile }
}

fn by<'a>(profile: &'a Profile, endpoint: &'a str) -> Check<'a> {
    Check::new("user", "u").endpoint(endpoint).profile(profile)
}

/// The limits that apply to a check: the quota and source of each.
fn applied(limiter: &Limiter, check: &Check<'_>) -> Vec<(u32, LimitSource)> {
    let decision = limiter.check_now(check).unwrap();
    decision.limits().iter().map(|limit| (limit.limit.quota(), limit.why)).collect()
}

/// What remains of the only limit after a check.
fn left(limiter: &Limiter, check: &Check<'_>) -> u32 {
    let decision = limiter.check_now(check).unwrap();
    assert_eq!(decision.answers().len(), 1);
    decision.remaining().unwrap()
}

/// Variants of one name for every kind of user.
fn for_all_kinds() -> Vec<Rule> {
    vec![
        rule("hourly", 100),
        for_tier("premium", rule("hourly", 200)),
        for_identifier("u", rule("hourly", 300)),
    ]
}

#[test]
fn override_precedes_the_exact_identifier() {
    let profile = with_override("hourly", quota(7), of_tier("premium"));
    assert_eq!(applied(&limiter(for_all_kinds()), &by(&profile, "/x")), [(7, LimitSource::Override)]);
}

#[test]
fn override_precedes_custom_limits() {
    let profile = with_override("hourly", quota(7), Profile::default());
    let profile = with_custom("hourly", quota(8), profile);
    assert_eq!(applied(&limiter([rule("hourly", 100)]), &by(&profile, "/x")), [(7, LimitSource::Override)]);
}

#[test]
fn exact_identifier_precedes_custom_limits() {
    let profile = with_custom("hourly", quota(7), of_tier("premium"));
    assert_eq!(applied(&limiter(for_all_kinds()), &by(&profile, "/x")), [(300, LimitSource::Identifier)]);
}

#[test]
fn custom_limits_precede_the_tier() {
    let rules = limiter([rule("hourly", 100), for_tier("premium", rule("hourly", 200))]);
    let profile = with_custom("hourly", quota(7), of_tier("premium"));
    assert_eq!(applied(&rules, &by(&profile, "/x")), [(7, LimitSource::Custom)]);
    let profile = with_custom("hourly", quota(7), Profile::default());
    assert_eq!(applied(&rules, &by(&profile, "/x")), [(7, LimitSource::Custom)], "also precedes anyone");
}

#[test]
fn tier_precedes_anyone() {
    let rules = limiter([for_tier("premium", rule("hourly", 200)), rule("hourly", 100)]);
    assert_eq!(applied(&rules, &by(&of_tier("premium"), "/x")), [(200, LimitSource::Tier)]);
    assert_eq!(applied(&rules, &by(&of_tier("free"), "/x")), [(100, LimitSource::Anyone)]);
    assert_eq!(applied(&rules, &Check::new("user", "u").endpoint("/x")), [(100, LimitSource::Anyone)]);
}

#[test]
fn rule_for_identifier_and_tier_requires_both() {
    let rules = limiter([rule("hourly", 100), for_identifier("u", for_tier("premium", rule("hourly", 300)))]);
    assert_eq!(applied(&rules, &by(&of_tier("premium"), "/x")), [(300, LimitSource::Identifier)]);
    assert_eq!(applied(&rules, &by(&of_tier("free"), "/x")), [(100, LimitSource::Anyone)]);
}

#[test]
fn identity_precedes_the_endpoint() {
    let rules = limiter([
        at("/a/b", rule("hourly", 1)),
        at("/a/{*rest}", for_tier("premium", rule("hourly", 2))),
        for_identifier("u", rule("hourly", 3)),
    ]);
    let premium = of_tier("premium");
    assert_eq!(applied(&rules, &by(&premium, "/a/b")), [(3, LimitSource::Identifier)]);
    let other = Check::new("user", "other").endpoint("/a/b");
    assert_eq!(applied(&rules, &other.clone().profile(&premium)), [(2, LimitSource::Tier)]);
    assert_eq!(applied(&rules, &other), [(1, LimitSource::Anyone)]);
}

#[test]
fn more_specific_endpoint_wins() {
    let patterns = ["*", "/a/{*rest}", "/a/{id}", "/a/b/{*rest}", "/a/b"];
    let rules = limiter(patterns.iter().zip(1..).map(|(pattern, quota)| at(pattern, rule("hourly", quota))));
    let anyone = Profile::default();
    for (endpoint, quota) in [("/b", 1), ("/a", 2), ("/a/c/d", 2), ("/a/c", 3), ("/a/b/c", 4), ("/a/b", 5)] {
        assert_eq!(applied(&rules, &by(&anyone, endpoint)), [(quota, LimitSource::Anyone)], "{endpoint}");
    }
}

#[test]
fn rule_with_a_method_wins_last() {
    let posts = |rule: Rule| Rule { methods: pacegate::Methods::try_new(["POST"]).unwrap(), ..rule };
    let rules = limiter([rule("hourly", 1), posts(rule("hourly", 2)), at("/a", rule("hourly", 3))]);
    let anyone = Profile::default();
    assert_eq!(applied(&rules, &by(&anyone, "/x").method("POST")), [(2, LimitSource::Anyone)]);
    assert_eq!(applied(&rules, &by(&anyone, "/x").method("GET")), [(1, LimitSource::Anyone)]);
    assert_eq!(applied(&rules, &by(&anyone, "/x")), [(2, LimitSource::Anyone)], "the method may be POST");
    assert_eq!(
        applied(&rules, &by(&anyone, "/a").method("POST")),
        [(3, LimitSource::Anyone)],
        "the endpoint precedes the method"
    );
}

#[test]
fn rules_of_different_names_stack() {
    let rules = limiter([
        rule("hourly", 100),
        for_tier("premium", rule("hourly", 200)),
        rule("daily", 1_000),
        at("/a", rule("orders", 10)),
    ]);
    let profile = with_override("daily", quota(5_000), of_tier("premium"));
    let expected = [(200, LimitSource::Tier), (5_000, LimitSource::Override), (10, LimitSource::Anyone)];
    assert_eq!(applied(&rules, &by(&profile, "/a")), expected);
    assert_eq!(applied(&rules, &by(&profile, "/b")), expected[..2]);
}

#[test]
fn rules_for_a_tier_apply_in_every_dimension_by_the_tier_of_the_user() {
    let rules = limiter([
        in_dimension("ip", rule("address", 100)),
        in_dimension("ip", for_tier("premium", rule("address", 200))),
    ]);
    let check = Check::new("user", "u").and("ip", "10.0.0.1").endpoint("/x");
    assert_eq!(applied(&rules, &check), [(100, LimitSource::Anyone)]);
    assert_eq!(applied(&rules, &check.profile(&of_tier("premium"))), [(200, LimitSource::Tier)]);
}

#[test]
fn overrides_and_custom_limits_apply_only_to_the_dimension_user() {
    let rules = limiter([rule("hourly", 100), in_dimension("tenant", rule("hourly", 200))]);
    let overridden = with_override("hourly", quota(7), Profile::default());
    let custom = with_custom("hourly", quota(8), Profile::default());
    let check = Check::new("tenant", "u").and("user", "u").endpoint("/x");
    assert_eq!(
        applied(&rules, &check.clone().profile(&overridden)),
        [(200, LimitSource::Anyone), (7, LimitSource::Override)]
    );
    assert_eq!(
        applied(&rules, &check.profile(&custom)),
        [(200, LimitSource::Anyone), (8, LimitSource::Custom)]
    );
}

#[test]
fn overrides_and_custom_limits_apply_only_to_the_named_rule_and_create_none() {
    let rules = limiter([at("/a", rule("hourly", 100))]);
    let profile = with_override("daily", quota(7), Profile::default());
    let profile = with_custom("monthly", quota(8), profile);
    assert_eq!(applied(&rules, &by(&profile, "/a")), [(100, LimitSource::Anyone)]);
    assert_eq!(applied(&rules, &by(&with_override("hourly", quota(7), Profile::default()), "/b")), []);
}

#[test]
fn numbers_invalid_for_the_algorithm_keep_those_of_the_rule() {
    let log = Rule::new("log", "user", limit(Algorithm::SlidingLog, 100, HOUR));
    let rules = limiter([log]);
    let impossible = [
        LimitOverride { burst: Some(50), ..quota(10) },
        LimitOverride { window: Some(Duration::from_micros(1)), ..quota(10) },
        quota(0),
        quota(1_000_001),
    ];
    for numbers in impossible {
        let overridden = with_override("log", numbers, Profile::default());
        assert_eq!(applied(&rules, &by(&overridden, "/x")), [(100, LimitSource::Anyone)], "{numbers:?}");
        let custom = with_custom("log", numbers, Profile::default());
        assert_eq!(applied(&rules, &by(&custom, "/x")), [(100, LimitSource::Anyone)], "{numbers:?}");
        // Numbers that do not apply do not hide those that come next.
        let both = with_custom("log", quota(30), overridden);
        assert_eq!(applied(&rules, &by(&both, "/x")), [(30, LimitSource::Custom)], "{numbers:?}");
    }
}

#[test]
fn override_can_set_the_burst() {
    let bucket = Rule::new("bucket", "user", Limit::per_minute(10).build().unwrap());
    let profile = with_override("bucket", LimitOverride { burst: Some(50), ..quota(20) }, Profile::default());
    let decision = limiter([bucket]).check_now(by(&profile, "/x")).unwrap();
    assert_eq!((decision.answers()[0].capacity, decision.remaining()), (50, Some(49)));
}

#[test]
fn override_of_the_quota_scales_the_burst() {
    let rows = [
        // Quota and burst of the rule, quota of the override, then the expected burst.
        (10, 100, 20, 200),
        (10, 100, 1, 10),
        (1_000, 10, 1, 1),
        (3, 10, 2, 7),
        (10, 10, 25, 25),
        (1, 1_000_000_000, 2, 1_000_000_000),
    ];
    for (own, burst, overridden, expected) in rows {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let numbers = limit(algorithm, own, MINUTE).with_burst(burst).unwrap();
            let scaled = quota(overridden).apply_to(&numbers).unwrap();
            assert_eq!(
                (u64::from(scaled.quota()), scaled.capacity()),
                (overridden, expected),
                "{own} {burst}"
            );
        }
    }
    let window = quota(20).apply_to(&limit(Algorithm::FixedWindow, 10, MINUTE)).unwrap();
    assert_eq!((window.quota(), window.capacity()), (20, 20));
}

#[test]
fn overrides_and_custom_limits_replace_the_numbers_of_the_default_limit() {
    let bucket = Limit::per_second(10).burst(100);
    let (_, limiter) = on_simulated_time(Limiter::builder().default_limit(bucket));
    let check = |profile: &Profile| {
        let decision = limiter.check_now(by(profile, "/x")).unwrap();
        let limit = decision.binding_limit().unwrap();
        (limit.name.to_string(), limit.why, limit.limit.capacity(), decision.remaining().unwrap())
    };
    let named = |why, capacity, remaining| ("default".to_owned(), why, capacity, remaining);
    assert_eq!(check(&Profile::default()), named(LimitSource::Default, 100, 99));
    let custom = with_custom("default", quota(20), Profile::default());
    assert_eq!(check(&custom), named(LimitSource::Custom, 200, 198), "usage is kept");
    let overridden = with_override("default", LimitOverride { burst: Some(5), ..quota(20) }, custom.clone());
    assert_eq!(check(&overridden), named(LimitSource::Override, 5, 2));
    let window = LimitOverride { window: Some(MINUTE), ..quota(50) };
    let hourly = with_override("default", window, Profile::default());
    assert_eq!(
        check(&hourly),
        named(LimitSource::Override, 500, 499),
        "another window has a separate counter"
    );
    assert_eq!(check(&hourly), named(LimitSource::Override, 500, 498));
    assert_eq!(
        check(&Profile::default()),
        named(LimitSource::Default, 100, 96),
        "and does not change the other counter"
    );
    let tenant = limiter.check_now(Check::new("tenant", "u").endpoint("/x").profile(&overridden)).unwrap();
    assert_eq!(tenant.remaining(), Some(99), "custom limits apply only to the dimension user");
}

#[tokio::test]
async fn reset_covers_the_default_limit_with_and_without_an_override() {
    let (_, limiter) = on_simulated_time(Limiter::builder().default_limit(Limit::per_minute(10)));
    let window = LimitOverride { window: Some(HOUR), ..quota(50) };
    let hourly = with_override("default", window, Profile::default());
    for profile in [&hourly, &Profile::default()] {
        limiter.check_now(by(profile, "/x")).unwrap();
    }
    limiter.reset(&by(&hourly, "/x")).await.unwrap();
    for (profile, left) in [(&hourly, 49), (&Profile::default(), 9)] {
        assert_eq!(limiter.check_now(by(profile, "/x")).unwrap().remaining(), Some(left));
    }
}

#[test]
fn tier_of_a_check_precedes_that_of_the_profile() {
    let rules =
        [rule("hourly", 10), for_tier("silver", rule("hourly", 20)), for_tier("gold", rule("hourly", 30))];
    let limiter = limiter(rules);
    let silver = Profile { tier: Some("silver".into()), ..Profile::default() };
    let capacity = |check: &Check<'_>| limiter.check_now(check).unwrap().answers()[0].capacity;
    assert_eq!(capacity(&by(&silver, "/x")), 20);
    assert_eq!(capacity(&by(&silver, "/x").tier("gold")), 30);
    assert_eq!(capacity(&by(&silver, "/x").tier("lead")), 10);
    assert!(limiter.check_now(by(&silver, "/x").tier("")).is_err());
}

#[test]
fn usage_survives_a_change_of_tier() {
    for algorithm in Algorithm::ALL {
        let free = Rule::new("hourly", "user", limit(algorithm, 10, HOUR));
        let premium = for_tier("premium", Rule::new("hourly", "user", limit(algorithm, 100, HOUR)));
        let limiter = limiter([free, premium]);
        let (free, premium) = (of_tier("free"), of_tier("premium"));
        let four = Cost::try_new(4).unwrap();
        assert_eq!(left(&limiter, &by(&free, "/x").cost(four)), 6, "{algorithm}");
        assert_eq!(left(&limiter, &by(&premium, "/x").cost(four)), 92, "{algorithm}");
        assert_eq!(left(&limiter, &by(&free, "/x")), 1, "{algorithm}: back to the lower tier");
    }
}

#[test]
fn usage_survives_an_override_or_custom_limits() {
    for algorithm in Algorithm::ALL {
        let limiter = limiter([Rule::new("hourly", "user", limit(algorithm, 10, HOUR))]);
        let plain = Profile::default();
        let overridden = with_override("hourly", quota(1_000), Profile::default());
        let custom =
            with_custom("hourly", LimitOverride { window: Some(HOUR), ..quota(50) }, Profile::default());
        assert_eq!(left(&limiter, &by(&plain, "/x")), 9, "{algorithm}");
        assert_eq!(left(&limiter, &by(&overridden, "/x")), 998, "{algorithm}");
        assert_eq!(left(&limiter, &by(&custom, "/x")), 47, "{algorithm}");
        assert_eq!(left(&limiter, &by(&plain, "/x")), 6, "{algorithm}: the override has expired");
    }
}

#[test]
fn usage_survives_a_raised_or_lowered_limit() {
    for algorithm in Algorithm::ALL {
        let numbered = |quota| builder([Rule::new("hourly", "user", limit(algorithm, quota, HOUR))]);
        let (_, limiter) = on_simulated_time(numbered(10));
        let check = Check::new("user", "u").endpoint("/x");
        assert_eq!(left(&limiter, &check.clone().cost(Cost::try_new(8).unwrap())), 2, "{algorithm}");
        limiter.replace(numbered(100)).unwrap();
        assert_eq!(left(&limiter, &check), 91, "{algorithm}");
        limiter.replace(numbered(5)).unwrap();
        let denied = limiter.check_now(&check).unwrap();
        assert!(
            !denied.allowed() && denied.remaining() == Some(0),
            "{algorithm}: usage exceeds the new quota"
        );
    }
}

#[test]
fn new_window_or_algorithm_starts_a_new_counter() {
    for algorithm in Algorithm::ALL {
        let other = Algorithm::ALL[(usize::from(algorithm.code())) % 6];
        let as_rule = |limit| builder([Rule::new("hourly", "user", limit)]);
        let (_, limiter) = on_simulated_time(as_rule(limit(algorithm, 10, HOUR)));
        let check = Check::new("user", "u").endpoint("/x");
        assert_eq!(left(&limiter, &check), 9);
        let shorter =
            with_override("hourly", LimitOverride { window: Some(MINUTE), ..quota(10) }, Profile::default());
        assert_eq!(left(&limiter, &by(&shorter, "/x")), 9, "{algorithm}: an override's window");
        limiter.replace(as_rule(limit(algorithm, 10, MINUTE * 5))).unwrap();
        assert_eq!(left(&limiter, &check), 9, "{algorithm}: the rule's window");
        limiter.replace(as_rule(limit(other, 10, HOUR))).unwrap();
        assert_eq!(left(&limiter, &check), 9, "{algorithm} to {other}");
    }
}

#[test]
fn alternating_between_variants_that_count_differently_is_limited_by_each() {
    let daily = limit(Algorithm::FixedWindow, 5, HOUR * 24);
    let posts = Rule { methods: pacegate::Methods::try_new(["POST"]).unwrap(), limit: daily, ..rule("r", 5) };
    let gold = in_dimension("tenant", for_tier("gold", Rule { limit: daily, ..rule("address", 5) }));
    let limiter = limiter([rule("r", 5), posts, in_dimension("tenant", rule("address", 5)), gold]);
    let count = |checks: [Check<'_>; 2]| {
        let rounds = (0..50).flat_map(|_| checks.iter());
        rounds.filter(|check| limiter.check_now(*check).unwrap().allowed()).count()
    };
    let (user, address) = (Check::new("user", "u").endpoint("/"), Check::new("tenant", "i").endpoint("/"));
    assert_eq!(count([user.clone().method("GET"), user.method("POST")]), 10);
    assert_eq!(count([address.clone(), address.profile(&of_tier("gold"))]), 10);
}

#[tokio::test]
async fn reset_covers_the_counters_of_the_rule_and_of_an_override() {
    let limiter = limiter([rule("hourly", 10)]);
    let plain = Profile::default();
    let daily =
        with_override("hourly", LimitOverride { window: Some(HOUR * 24), ..quota(20) }, Profile::default());
    assert_eq!((left(&limiter, &by(&plain, "/x")), left(&limiter, &by(&daily, "/x"))), (9, 19));
    limiter.reset(&by(&daily, "/x")).await.unwrap();
    assert_eq!((left(&limiter, &by(&plain, "/x")), left(&limiter, &by(&daily, "/x"))), (9, 19));
}

#[test]
fn variants_of_other_endpoints_and_other_identifiers_do_not_share_a_counter() {
    let each = Rule { scope: Scope::Endpoint, ..at("/c/{id}", rule("hourly", 30)) };
    let limiter = limiter([at("/a", rule("hourly", 10)), at("/b/{id}", rule("hourly", 20)), each]);
    let left = |user: &str, endpoint: &str| left(&limiter, &Check::new("user", user).endpoint(endpoint));
    assert_eq!([left("u", "/a"), left("u", "/a"), left("v", "/a")], [9, 8, 9]);
    assert_eq!([left("u", "/b/1"), left("u", "/b/2")], [19, 18], "one counter for the pattern");
    assert_eq!(
        [left("u", "/c/1"), left("u", "/c/2"), left("u", "/c//1")],
        [29, 29, 28],
        "one counter per endpoint"
    );
}

#[test]
fn shadow_rule_never_denies_and_the_default_limit_applies() {
    let watching = shadow(rule("watching", 1));
    let hour = |quota| limit(Algorithm::FixedWindow, quota, HOUR);
    let (_, limiter) = on_simulated_time(builder([watching]).default_limit(hour(3)));
    let check = Check::new("user", "u").endpoint("/x");
    let decisions: Vec<_> = (0..4).map(|_| limiter.check_now(&check).unwrap()).collect();
    let allowed: Vec<bool> = decisions.iter().map(|decision| decision.allowed()).collect();
    assert_eq!(allowed, [true, true, true, false]);
    let watched: Vec<bool> = decisions.iter().map(|decision| decision.answers()[0].allowed).collect();
    assert_eq!(
        watched,
        [true, false, false, false],
        "the answer shows what an enforced rule would have decided"
    );
    assert_eq!(decisions[3].binding_limit().unwrap().why, LimitSource::Default);
}

#[test]
fn override_of_a_shadow_rule_never_denies() {
    let limiter = limiter([shadow(rule("watching", 100))]);
    let profile = with_override("watching", quota(1), Profile::default());
    let decisions: Vec<_> = (0..3).map(|_| limiter.check_now(by(&profile, "/x")).unwrap()).collect();
    assert!(decisions.iter().all(|decision| decision.allowed()));
    assert!(!decisions[2].answers()[0].allowed);
}

#[test]
fn shadow_variant_replaces_a_less_specific_enforced_one() {
    let limiter = limiter([rule("hourly", 1), shadow(for_tier("premium", rule("hourly", 1)))]);
    let premium = of_tier("premium");
    assert!((0..3).all(|_| limiter.check_now(by(&premium, "/x")).unwrap().allowed()));
}

#[test]
fn replaced_rules_apply_to_clones_immediately_and_keep_counters() {
    let (_, limiter) = on_simulated_time(builder([rule("hourly", 10)]));
    let clone = limiter.clone();
    let check = Check::new("user", "u").endpoint("/x");
    assert_eq!(left(&clone, &check), 9);
    limiter.replace(builder([rule("hourly", 100), rule("daily", 1_000)])).unwrap();
    let decision = clone.check_now(&check).unwrap();
    let remaining: Vec<Option<u32>> = decision.answers().iter().map(|answer| answer.remaining).collect();
    assert_eq!(remaining, [Some(98), Some(999)]);
    clone.replace(builder([])).unwrap();
    assert!(limiter.check_now(&check).unwrap().limits().is_empty(), "and vice versa");
    clone.replace(builder([rule("hourly", 100)])).unwrap();
    assert_eq!(left(&limiter, &check), 97, "a rule that is added again finds its counter");
}

#[test]
fn conflicting_rules_change_nothing() {
    let hour = |quota| limit(Algorithm::FixedWindow, quota, HOUR);
    let (_, limiter) = on_simulated_time(builder([rule("hourly", 10)]).plan("p", [hour(5)]));
    let check = Check::new("user", "u").endpoint("/x").plan("p");
    limiter.check_now(&check).unwrap();
    let twice = builder([rule("hourly", 20), at("/{*all}", rule("hourly", 30))]);
    assert!(matches!(limiter.replace(twice), Err(InvalidRules::DuplicateRule { index: 1, .. })));
    let elsewhere = Rule { store: Some("nowhere".into()), ..rule("hourly", 20) };
    assert!(matches!(limiter.replace(builder([elsewhere])), Err(InvalidRules::UnknownStore { .. })));
    let plans = builder([rule("hourly", 20)]).plan("p", [hour(6)]).plan("p", [hour(7)]);
    assert!(matches!(limiter.replace(plans), Err(InvalidRules::DuplicatePlan { .. })));
    let decision = limiter.check_now(&check).unwrap();
    let stand: Vec<(u32, Option<u32>)> =
        decision.answers().iter().map(|answer| (answer.capacity, answer.remaining)).collect();
    assert_eq!(stand, [(10, Some(8)), (5, Some(3))]);
}

/// Name, quota, source, pattern and what remains.
type Line = (String, u32, LimitSource, String, Option<u32>);

async fn lines(limiter: &Limiter, dimension: &str, identifier: &str, profile: &Profile) -> Vec<Line> {
    let limits = limiter.limits_of(dimension, identifier, Some(profile)).await.unwrap();
    let line = |effective: pacegate::explain::EffectiveLimit| {
        let limit = &effective.limit;
        let left = effective.answer.and_then(|answer| answer.remaining);
        (limit.name.to_string(), limit.limit.quota(), limit.why, effective.endpoint.to_string(), left)
    };
    limits.into_iter().map(line).collect()
}

#[tokio::test]
async fn limits_in_force_are_listed_with_source_and_usage_without_shadowed_ones() {
    let limiter = limiter([
        rule("hourly", 100),
        for_tier("premium", rule("hourly", 200)),
        at("/a", rule("hourly", 10)),
        at("/a", for_tier("premium", rule("hourly", 20))),
        for_identifier("other", rule("hourly", 1)),
        rule("daily", 1_000),
        in_dimension("tenant", rule("address", 50)),
        Rule { scope: Scope::Endpoint, ..rule("each", 5) },
    ]);
    let premium = with_custom("daily", quota(2_000), of_tier("premium"));
    limiter.check_now(by(&premium, "/a")).unwrap();
    limiter.check_now(by(&premium, "/b")).unwrap();
    let line = |name: &str, quota, why, endpoint: &str, left| {
        (name.to_owned(), quota, why, endpoint.to_owned(), left)
    };
    let expected = [
        line("daily", 2_000, LimitSource::Custom, "*", Some(1_998)),
        line("each", 5, LimitSource::Anyone, "*", None),
        line("hourly", 200, LimitSource::Tier, "*", Some(199)),
        line("hourly", 20, LimitSource::Tier, "/a", Some(19)),
    ];
    assert_eq!(lines(&limiter, "user", "u", &premium).await, expected);
    assert_eq!(lines(&limiter, "user", "u", &premium).await, expected, "listing charges nothing");
    let other = lines(&limiter, "user", "other", &premium).await;
    assert_eq!(other[2..], [line("hourly", 1, LimitSource::Identifier, "*", Some(1))]);
    assert_eq!(
        lines(&limiter, "tenant", "u", &with_override("address", quota(1), Profile::default())).await,
        [line("address", 50, LimitSource::Anyone, "*", Some(50))]
    );
    assert_eq!(lines(&limiter, "apikey", "u", &premium).await, []);
}

#[tokio::test]
async fn more_specific_rule_for_all_methods_shadows_one_for_a_method_but_not_vice_versa() {
    let posts = |rule: Rule| Rule { methods: pacegate::Methods::try_new(["POST"]).unwrap(), ..rule };
    let limiter = limiter([
        posts(rule("outdone", 1)),
        for_identifier("u", rule("outdone", 2)),
        rule("partly", 3),
        posts(for_identifier("u", rule("partly", 4))),
    ]);
    let limits = limiter.limits_of("user", "u", None).await.unwrap();
    let found: Vec<(u32, Option<&str>)> =
        limits.iter().map(|found| (found.limit.limit.quota(), found.methods.as_text())).collect();
    assert_eq!(found, [(2, None), (3, None), (4, Some("POST"))]);
}

#[tokio::test]
async fn default_limit_is_listed_if_it_can_apply() {
    let listed = async |rules: Vec<Rule>| {
        let hour = limit(Algorithm::FixedWindow, 9, HOUR);
        let (_, limiter) = on_simulated_time(builder(rules).default_limit(hour));
        let limits = limiter.limits_of("user", "u", None).await.unwrap();
        limits.iter().any(|found| found.limit.why == LimitSource::Default && found.limit.limit.quota() == 9)
    };
    assert!(listed(vec![]).await);
    assert!(!listed(vec![rule("hourly", 1)]).await);
    assert!(listed(vec![shadow(rule("hourly", 1))]).await, "a shadow rule leaves it in force");
    assert!(listed(vec![at("/a", rule("hourly", 1))]).await, "it applies at other endpoints");
    assert!(
        listed(vec![Rule { methods: pacegate::Methods::try_new(["GET"]).unwrap(), ..rule("hourly", 1) }])
            .await
    );
    let shadowed = || vec![rule("hourly", 1), at("/a", shadow(rule("hourly", 1)))];
    assert!(listed(shadowed()).await, "at /a nothing is enforced");
    assert!(!listed([shadowed(), vec![rule("daily", 1)]].concat()).await);
}
