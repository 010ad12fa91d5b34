//! All spellings of an identity share one counter, and rules with a method limit checks without
//! one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate::{
    Check, CheckError, InvalidRules, Limit, Limiter, Methods, Pattern, Profile, Rule, descriptor::Descriptor,
    explain::Verdict,
};
use pacegate_config::Config;

fn limiter(rules: impl IntoIterator<Item = Rule>) -> Limiter {
    rules.into_iter().fold(Limiter::builder(), |builder, rule| builder.rule(rule)).build().unwrap()
}

fn per_minute(quota: u64) -> Limit {
    Limit::per_minute(quota).build().unwrap()
}

fn remaining(limiter: &Limiter, dimension: &str, identifier: &str) -> Option<u32> {
    limiter.check_now(Check::new(dimension, identifier).endpoint("/")).unwrap().remaining()
}

#[test]
fn spellings_of_a_dimension_share_one_counter() {
    let rules = ["user", "ip", "apikey"].map(|dimension| Rule::new(dimension, dimension, per_minute(9)));
    let limiter = limiter(rules);
    for (spellings, identifier) in [
        (["user", "USER", "User"], "u1"),
        (["ip", "IP", "Ip"], "192.0.2.1"),
        (["apikey", "API_KEY", "api_key"], "k1"),
    ] {
        let left = spellings.map(|dimension| remaining(&limiter, dimension, identifier));
        assert_eq!(left, [Some(8), Some(7), Some(6)], "{spellings:?}");
    }
    let error = limiter.check_now(Check::new("Tenant", "t").endpoint("/")).unwrap_err();
    assert!(matches!(&error, CheckError::InvalidDimension { dimension, .. } if &**dimension == "Tenant"));
    assert_eq!(error.to_string(), "dimension: must be in lower case: `tenant`");
    let duplicate = limiter.check_now(Check::new("user", "a").and("USER", "b").endpoint("/")).unwrap_err();
    assert!(matches!(duplicate, CheckError::DuplicateDimension { .. }), "{duplicate}");
}

#[tokio::test]
async fn spellings_of_an_address_share_one_counter() {
    let limiter = limiter([Rule::new("per-address", "ip", per_minute(9))]);
    for spellings in [
        ["2001:db8::1", "2001:DB8::1", "2001:db8:0::ffff", "[2001:db8::1]:443", "2001:db8::/64"],
        ["1.2.3.4", "::ffff:1.2.3.4", "1.2.3.4:443", "::FFFF:102:304", "[::ffff:1.2.3.4]:443"],
    ] {
        let left = spellings.map(|identifier| remaining(&limiter, "ip", identifier).unwrap());
        assert_eq!(left, [8, 7, 6, 5, 4], "{spellings:?}");
        // All other methods use the canonical form as well.
        let checks = spellings.map(|identifier| Check::new("ip", identifier).endpoint("/"));
        assert_eq!(limiter.peek(&checks[1]).await.unwrap().remaining(), Some(4));
        let decided = limiter.check_each(&checks[..2]).await;
        let left: Vec<_> = decided.iter().map(|decision| decision.as_ref().unwrap().remaining()).collect();
        assert_eq!(left, [Some(3), Some(2)]);
        let decision = limiter.check_all(&checks[2..3]).await.unwrap();
        assert_eq!(decision.remaining(), Some(1));
        limiter.refund(&checks[3], &decision).await.unwrap();
        let limits = limiter.limits_of("IP", spellings[1], None).await.unwrap();
        assert_eq!(limits[0].answer.unwrap().remaining, Some(2));
        limiter.reset(&checks[4]).await.unwrap();
        assert_eq!(remaining(&limiter, "ip", spellings[0]), Some(8));
    }
    for wrong in ["localhost", "010.0.0.1", "0x7f.1", "fe80::1%eth0", "1.2.3.0/24", ""] {
        let check = Check::new("user", "u").and("ip", wrong).endpoint("/");
        let error = limiter.check_now(&check).unwrap_err();
        assert!(
            matches!(&error, CheckError::InvalidIdentifier { dimension, .. } if &**dimension == "ip"),
            "{wrong}: {error}"
        );
        assert!(error.to_string().contains("must be an IP address"), "{error}");
    }
}

#[test]
fn ipv6_addresses_are_counted_by_the_prefix_of_the_limiter() {
    for (bits, same, other) in [
        (48, "2001:db8:0:7::1", "2001:db8:1::1"),
        (64, "2001:db8::2", "2001:db8:0:1::1"),
        (128, "2001:DB8::1", "2001:db8::2"),
    ] {
        let config = format!(
            "server: {{ipv6_prefix: {bits}}}\nrules: [{{name: r, dimension: IP, algorithm: fixed_window, limit: 9, window: 1m}}]"
        );
        let limiter = Config::parse(&config).unwrap().limiter().unwrap();
        assert_eq!(limiter.ipv6_prefix(), bits);
        let left = ["2001:db8::1", same, other].map(|address| remaining(&limiter, "ip", address));
        assert_eq!(left, [Some(8), Some(7), Some(8)], "{bits}");
    }
    for bits in [0, 129] {
        let error = Limiter::builder().ipv6_prefix(bits).build().unwrap_err();
        assert_eq!(error, InvalidRules::InvalidIpv6Prefix { bits });
        let error = Config::parse(&format!("server: {{ipv6_prefix: {bits}}}")).unwrap_err().to_string();
        assert!(error.contains("server.ipv6_prefix"), "{error}");
    }
}

#[test]
fn rules_have_the_same_canonical_form_as_checks() {
    let limiter = Config::parse(
        "rules:
  - {name: r, dimension: IP, algorithm: fixed_window, limit: 9, window: 1m}
  - {name: r, dimension: IP, identifier: \"::ffff:1.2.3.4\", algorithm: fixed_window, limit: 5, window: 1m}
  - {name: r, dimension: ip, identifier: \"2001:DB8::1\", algorithm: fixed_window, limit: 4, window: 1m}
  - {name: u, dimension: USER, tier: gold, method: post, algorithm: fixed_window, limit: 3, window: 1m}",
    )
    .unwrap()
    .limiter()
    .unwrap();
    assert_eq!(remaining(&limiter, "ip", "1.2.3.4:80"), Some(4));
    assert_eq!(remaining(&limiter, "ip", "2001:db8::77"), Some(3));
    assert_eq!(remaining(&limiter, "ip", "5.6.7.8"), Some(8));
    let gold = Profile { tier: Some("gold".into()), ..Profile::default() };
    let check = Check::new("user", "u").endpoint("/").method("POST").profile(&gold);
    assert_eq!(limiter.check_now(&check).unwrap().remaining(), Some(2));
    // Two spellings of one identifier are the same variant.
    let rule = |identifier: &str| Rule {
        identifier: Some(identifier.into()),
        ..Rule::new("r", "ip", per_minute(1))
    };
    let duplicate = Limiter::builder().rule(rule("2001:db8::1")).rule(rule("2001:db8::2")).build();
    assert!(matches!(duplicate, Err(InvalidRules::DuplicateRule { .. })), "{duplicate:?}");
    let office = Limiter::builder().rule(rule("office")).build().unwrap_err().to_string();
    assert_eq!(office, "rule `r`: identifier: must be an IP address like 192.0.2.1 or 2001:db8::1");
    let errors = Config::parse(
        "rules:
  - {name: r, dimension: Tenant, algorithm: fixed_window, limit: 9, window: 1m}
  - {name: s, dimension: ip, identifier: office, algorithm: fixed_window, limit: 9, window: 1m}",
    );
    let errors = errors.unwrap_err().to_string();
    assert!(errors.contains("rules[0].dimension: must be in lower case: `tenant`"), "{errors}");
    assert!(errors.contains("rules[1].identifier: must be an IP address"), "{errors}");
}

#[tokio::test]
async fn descriptors_have_the_same_canonical_form_as_checks() {
    let limiter =
        limiter([Rule::new("per-address", "ip", per_minute(9)), Rule::new("u", "user", per_minute(9))]);
    let left = async |key: &str, value: &str| {
        let decision = limiter.check_descriptors("d", &[Descriptor::new([(key, value)])]).await.unwrap();
        decision.whole().remaining()
    };
    for (index, value) in ["2001:db8::1", "2001:DB8::2", "[2001:db8::1]:443"].into_iter().enumerate() {
        assert_eq!(left("ip", value).await, Some(8 - index as u32), "{value}");
    }
    assert_eq!((left("USER", "u").await, left("user", "u").await), (Some(8), Some(7)));
    // An error would let the request pass, so all invalid addresses share one counter.
    assert_eq!((left("IP", "spoofed-1").await, left("ip", "spoofed-2").await), (Some(8), Some(7)));
}

#[test]
fn rule_with_a_method_applies_unless_the_method_is_known_to_differ() {
    let posts = Rule {
        methods: pacegate::Methods::try_new(["POST"]).unwrap(),
        ..Rule::new("logins", "user", per_minute(5))
    };
    let limiter = limiter([posts, Rule::new("all", "user", per_minute(9))]);
    let names = |check: &Check<'_>| -> Vec<String> {
        limiter.check_now(check).unwrap().limits().iter().map(|limit| limit.name.to_string()).collect()
    };
    let check = Check::new("user", "u").endpoint("/login");
    assert_eq!(names(&check), ["logins", "all"]);
    assert_eq!(names(&check.clone().method("POST")), ["logins", "all"]);
    assert_eq!(names(&check.clone().method("post")), ["logins", "all"]);
    assert_eq!(names(&check.clone().method("GET")), ["all"]);
    let explained = |check: &Check<'_>| {
        let rules = limiter.explain(check).unwrap();
        let rule = rules.iter().find(|rule| &*rule.limit.name == "logins").unwrap();
        (rule.verdict, rule.assumes_method)
    };
    assert_eq!(explained(&check), (Verdict::Applies, true));
    assert_eq!(explained(&check.clone().method("POST")), (Verdict::Applies, false));
    assert_eq!(explained(&check.clone().method("GET")), (Verdict::OtherMethod, false));
}

#[tokio::test]
async fn descriptor_without_a_method_is_limited_by_rules_with_one() {
    let posts = Rule {
        methods: pacegate::Methods::try_new(["POST"]).unwrap(),
        ..Rule::new("logins", "user", per_minute(5))
    };
    let limiter = limiter([posts]);
    for (entries, matched) in [
        (&[("user", "u")][..], true),
        (&[("user", "u"), ("method", "post")], true),
        (&[("user", "u"), ("method", "GET")], false),
    ] {
        let descriptor = Descriptor::new(entries.iter().copied());
        let decision = limiter.check_descriptors("d", &[descriptor]).await.unwrap();
        assert_eq!(decision.outcomes[0].matched, matched, "{entries:?}");
    }
}

#[test]
fn bounds_are_the_same_for_every_source() {
    let tier = |length| Rule { tier: Some("x".repeat(length)), ..Rule::new("r", "user", per_minute(1)) };
    assert!(tier(128).canonical(64).is_ok());
    assert_eq!(tier(129).canonical(64).unwrap_err().field(), "tier");
    let limiter = Limiter::default();
    let error = limiter.check_now(Check::new("user", "a\u{85}b").endpoint("/")).unwrap_err();
    assert_eq!(error.to_string(), "identifier: must be 1 to 1024 bytes long without control characters");
    let limits = |count: u64| {
        let windows: Vec<String> = (1..=count)
            .map(|window| format!("{{algorithm: fixed_window, limit: 1, window: {window}s}}"))
            .collect();
        Config::parse(&format!("plans: {{p: [{}]}}", windows.join(", ")))
    };
    assert!(limits(16).is_ok());
    assert!(
        limits(17).unwrap_err().to_string().contains("plans.p: must have between 1 and 16 limits, got 17")
    );
}

#[test]
fn variant_key_equals_stored_keys_of_catalogs() {
    let everyone = Rule::new("per-user", "user", per_minute(1));
    let one = Rule {
        identifier: Some("u1".into()),
        tier: Some("premium".into()),
        endpoint: Pattern::parse("/api/v1/orders/{id}/items").unwrap(),
        methods: Methods::try_new(["post"]).unwrap(),
        ..everyone.clone()
    };
    let keys = [
        "9299e0c03f37e550ca6257ede3b04252fdc1f38d8641621e9b21bfe5d98db42c",
        "dc0641ca3bc95e83a6d7e5ac0bcf4644c8d8be5bdd9be5554bd8835a60f87acc",
    ];
    assert_eq!([everyone, one].map(|rule| rule.variant_key()), keys);
}
