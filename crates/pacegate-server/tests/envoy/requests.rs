//! Requests and the exact values of their responses.

use std::time::Duration;

use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use pacegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Code as Grpc;

use super::service::Service;
use super::{NOW, ask, descriptor, headers, numbers, request, status};

pub(super) const RULES: &str = r#"
default_limit: none
descriptors:
  - {domain: edge, name: per-ip, entries: [{key: ip}], algorithm: fixed_window, limit: 3, window: 1m}
  - {domain: edge, entries: [{key: ip, value: 10.0.0.9}], unlimited: true}
  - {domain: edge, name: banned, entries: [{key: ip, value: 10.0.0.66}], deny: true}
  - {domain: edge, name: watched, entries: [{key: ip, value: 10.0.0.67}], deny: true, mode: shadow}
  - {domain: edge, name: watch, entries: [{key: watch}], algorithm: fixed_window, limit: 1, window: 1h, mode: shadow}
  - {domain: edge, name: bucket, entries: [{key: key}], algorithm: token_bucket, limit: 10, window: 1s, burst: 20}
  - {domain: edge, name: odd, entries: [{key: odd}], algorithm: fixed_window, limit: 5, window: 90s}
  - {domain: edge, name: team, entries: [{key: team}], algorithm: fixed_window, limit: 5, window: 1d}
  - {domain: edge, name: staff, entries: [{key: staff}], algorithm: fixed_window, limit: 9, window: 1m, replaces: [per-ip]}
  - {name: anywhere, entries: [{key: anywhere}], algorithm: fixed_window, limit: 4, window: 1s}
"#;

/// The number of microseconds until the end of the minute.
const MINUTE_LEFT: i64 = 39_876_544;

#[tokio::test]
async fn limit_counts_down_denies_and_resets() {
    let service = Service::start(RULES).await;
    let one = || vec![descriptor(&[("ip", "10.0.0.1")])];
    for remaining in [2, 1, 0] {
        let response = ask(&service, one()).await;
        assert_eq!(response.overall_code(), Code::Ok);
        let expected = status(Code::Ok, "per-ip", 3, Unit::Minute, remaining, MINUTE_LEFT);
        assert_eq!(response.statuses, [expected]);
        assert_eq!((response.raw_body.len(), response.request_headers_to_add.len()), (0, 0));
    }
    for _ in 0..3 {
        let response = ask(&service, one()).await;
        assert_eq!(response.overall_code(), Code::OverLimit);
        let expected = status(Code::OverLimit, "per-ip", 3, Unit::Minute, 0, MINUTE_LEFT);
        assert_eq!(response.statuses, [expected]);
    }
    let other = ask(&service, vec![descriptor(&[("ip", "10.0.0.2")])]).await;
    assert_eq!(numbers(&other), (Code::Ok, vec![2]), "each value has its own counter");
    service.rest.clock.advance(Duration::from_micros(39_876_543));
    assert_eq!(
        numbers(&ask(&service, one()).await),
        (Code::OverLimit, vec![0]),
        "just before the end of the window"
    );
    service.rest.clock.advance(Duration::from_micros(1));
    let response = ask(&service, one()).await;
    assert_eq!(response.statuses, [status(Code::Ok, "per-ip", 3, Unit::Minute, 2, 60_000_000)]);
}

#[tokio::test]
async fn every_response_has_both_header_families() {
    let names_of_all = [
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-strategy",
    ];
    let service = Service::start(RULES).await;
    let one = || vec![descriptor(&[("ip", "10.0.0.1")])];
    assert_eq!(
        headers(&ask(&service, one()).await),
        [
            ("ratelimit", "\"per-ip\";r=2;t=40"),
            ("ratelimit-policy", "\"per-ip\";q=3;w=60"),
            ("x-ratelimit-limit", "3"),
            ("x-ratelimit-remaining", "2"),
            ("x-ratelimit-reset", "1790000040"),
            ("x-ratelimit-strategy", "fixed_window"),
        ]
    );
    for _ in 0..2 {
        ask(&service, one()).await;
    }
    assert_eq!(
        headers(&ask(&service, one()).await),
        [
            ("ratelimit", "\"per-ip\";r=0;t=40"),
            ("ratelimit-policy", "\"per-ip\";q=3;w=60"),
            ("retry-after", "40"),
            ("x-ratelimit-limit", "3"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1790000040"),
            ("x-ratelimit-state", "throttled"),
            ("x-ratelimit-strategy", "fixed_window"),
        ]
    );
    // With several descriptors, the lists have all of them, and the single numbers are those of the
    // binding one.
    let two = vec![descriptor(&[("team", "red")]), descriptor(&[("ip", "10.0.0.2")])];
    assert_eq!(
        headers(&ask(&service, two).await),
        [
            ("ratelimit", "\"team\";r=4;t=35200, \"per-ip\";r=2;t=40"),
            ("ratelimit-policy", "\"team\";q=5;w=86400, \"per-ip\";q=3;w=60"),
            ("x-ratelimit-limit", "3"),
            ("x-ratelimit-remaining", "2"),
            ("x-ratelimit-reset", "1790000040"),
            ("x-ratelimit-strategy", "fixed_window"),
        ]
    );
    assert_eq!(headers(&ask(&service, vec![descriptor(&[("nothing", "x")])]).await), []);
    assert_eq!(
        headers(&ask(&service, vec![descriptor(&[("watch", "x")])]).await),
        [],
        "shadow limits are not visible to clients"
    );
    let ietf = Service::start(&format!("{RULES}headers: [ietf]\n")).await;
    let names: Vec<String> =
        headers(&ask(&ietf, one()).await).iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names, ["ratelimit", "ratelimit-policy"]);
    // The header families are a setting of each protocol.
    for (families, expected) in [
        ("[ietf]", &["ratelimit", "ratelimit-policy"][..]),
        ("[]", &[]),
        ("[ietf, x-ratelimit]", &names_of_all),
    ] {
        let yaml = format!("{RULES}headers: [x-ratelimit]\nenvoy: {{headers: {families}}}\n");
        let apart = Service::start(&yaml).await;
        let answer = ask(&apart, one()).await;
        assert_eq!(headers(&answer).iter().map(|(name, _)| *name).collect::<Vec<_>>(), expected);
        let check = serde_json::json!({"user_id": "u", "endpoint": "/", "limit": 5, "window_seconds": 60});
        let over_rest = apart.rest.check(&check).await;
        assert!(!over_rest.header("x-ratelimit-limit").is_empty());
        assert!(over_rest.header("ratelimit").is_empty(), "{families}");
    }
    let older = Service::start(&format!("{RULES}headers: [x-ratelimit]\n")).await;
    assert!(headers(&ask(&older, one()).await).iter().all(|(name, _)| name.starts_with("x-ratelimit-")));
}

#[tokio::test]
async fn unmatched_descriptors_are_allowed_and_unlimited_ones_are_marked() {
    let service = Service::start(RULES).await;
    let ok = |limit_remaining| DescriptorStatus {
        code: Code::Ok.into(),
        limit_remaining,
        ..DescriptorStatus::default()
    };
    for nothing in [&[("unknown", "x")][..], &[("ip", "10.0.0.1"), ("path", "/")], &[]] {
        let response = ask(&service, vec![descriptor(nothing)]).await;
        let expected = RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![ok(0)],
            ..RateLimitResponse::default()
        };
        assert_eq!(response, expected, "{nothing:?}");
    }
    let unlimited = ask(&service, vec![descriptor(&[("ip", "10.0.0.9")])]).await;
    assert_eq!(unlimited.statuses, [ok(u32::MAX)]);
    let elsewhere = RateLimitRequest { domain: "other".into(), ..request(vec![descriptor(&[("ip", "1")])]) };
    let response = service.envoy().should_rate_limit(elsewhere).await.unwrap().into_inner();
    assert_eq!(response.statuses, [ok(0)], "another domain has no rules");
    for domain in ["edge", "other"] {
        let message =
            RateLimitRequest { domain: domain.into(), ..request(vec![descriptor(&[("anywhere", "1")])]) };
        let response = service.envoy().should_rate_limit(message).await.unwrap().into_inner();
        assert_eq!(numbers(&response), (Code::Ok, vec![3]), "{domain} has its own counter");
    }
}

#[tokio::test]
async fn always_denied_descriptor_names_its_rule() {
    let service = Service::start(RULES).await;
    let response = ask(&service, vec![descriptor(&[("ip", "10.0.0.66")])]).await;
    let by = RateLimit { name: "banned".into(), ..RateLimit::default() };
    let denied = DescriptorStatus {
        code: Code::OverLimit.into(),
        current_limit: Some(by),
        ..DescriptorStatus::default()
    };
    assert_eq!((response.overall_code(), response.statuses), (Code::OverLimit, vec![denied]));
    let watched = ask(&service, vec![descriptor(&[("ip", "10.0.0.67")])]).await;
    assert_eq!((watched.overall_code(), watched.statuses[0].code()), (Code::Ok, Code::Ok));
    // Together with a limit that is not exceeded: that one is not charged.
    for _ in 0..5 {
        let both = vec![descriptor(&[("team", "red")]), descriptor(&[("ip", "10.0.0.66")])];
        let response = ask(&service, both).await;
        assert_eq!(response.overall_code(), Code::OverLimit);
        assert_eq!(response.statuses[0].code(), Code::Ok);
    }
    assert_eq!(numbers(&ask(&service, vec![descriptor(&[("team", "red")])]).await), (Code::Ok, vec![4]));
}

#[tokio::test]
async fn shadow_rule_counts_and_never_denies() {
    let service = Service::start(RULES).await;
    for _ in 0..3 {
        let response = ask(&service, vec![descriptor(&[("watch", "x")])]).await;
        assert_eq!(response.overall_code(), Code::Ok);
        // 800.123456 s into the hour.
        assert_eq!(
            response.statuses,
            [status(Code::Ok, "watch", 1, Unit::Hour, 0, 3_600_000_000 - 800_123_456)]
        );
    }
}

#[tokio::test]
async fn unit_is_set_if_the_window_is_one() {
    let service = Service::start(RULES).await;
    let odd = ask(&service, vec![descriptor(&[("odd", "x")])]).await;
    let limit = odd.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (5, Unit::Unknown));
    let bucket = ask(&service, vec![descriptor(&[("key", "x")])]).await;
    let found = bucket.statuses[0].current_limit.clone().unwrap();
    assert_eq!((found.name.as_str(), found.requests_per_unit), ("bucket", 20), "the capacity");
    assert_eq!(bucket.statuses[0].limit_remaining, 19);
    let day = ask(&service, vec![descriptor(&[("team", "x")])]).await;
    let left = i64::try_from(86_400 - NOW % 86_400).unwrap() * 1_000_000 - 123_456;
    assert_eq!(day.statuses, [status(Code::Ok, "team", 5, Unit::Day, 4, left)]);
}

#[tokio::test]
async fn all_descriptors_of_a_request_are_charged_or_none_is() {
    let service = Service::start(RULES).await;
    let both =
        || vec![descriptor(&[("team", "red")]), descriptor(&[("ip", "1")]), descriptor(&[("none", "x")])];
    for remaining in [2, 1, 0] {
        let response = ask(&service, both()).await;
        assert_eq!(
            numbers(&response),
            (Code::Ok, vec![remaining + 2, remaining, 0]),
            "in the order of the descriptors"
        );
    }
    for _ in 0..3 {
        let response = ask(&service, both()).await;
        assert_eq!(numbers(&response), (Code::OverLimit, vec![2, 0, 0]));
        let codes: Vec<Code> = response.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok], "each descriptor has its own code");
    }
    assert_eq!(numbers(&ask(&service, vec![descriptor(&[("team", "red")])]).await), (Code::Ok, vec![1]));
    // The same counter twice in one request is charged twice, or not at all.
    let twice = || vec![descriptor(&[("ip", "2")]), descriptor(&[("ip", "2")])];
    assert_eq!(numbers(&ask(&service, twice()).await), (Code::Ok, vec![1, 1]));
    assert_eq!(numbers(&ask(&service, twice()).await), (Code::OverLimit, vec![1, 1]));
    assert_eq!(numbers(&ask(&service, vec![descriptor(&[("ip", "2")])]).await), (Code::Ok, vec![0]));
}

#[tokio::test]
async fn rule_can_override_another() {
    let service = Service::start(RULES).await;
    for _ in 0..5 {
        let response = ask(&service, vec![descriptor(&[("ip", "1")]), descriptor(&[("staff", "s")])]).await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(response.statuses[0].current_limit, None, "replaced");
    }
    assert_eq!(numbers(&ask(&service, vec![descriptor(&[("ip", "1")])]).await), (Code::Ok, vec![2]));
}

#[tokio::test]
async fn invalid_request_names_the_field() {
    let service = Service::start(RULES).await;
    let mut client = service.envoy();
    let many = |count: usize| vec![("k", "v"); count];
    let cases = [
        (RateLimitRequest { domain: String::new(), ..request(vec![descriptor(&[("ip", "1")])]) }, "domain: "),
        (request(Vec::new()), "descriptors: must have between 1 and 64 entries, got 0"),
        (
            request(vec![descriptor(&[("ip", "1")]); 65]),
            "descriptors: must have between 1 and 64 entries, got 65",
        ),
        (
            request(vec![descriptor(&[("ip", "1")]), descriptor(&many(65))]),
            "descriptors[1].entries: must have at most 64 entries, got 65",
        ),
    ];
    for (message, expected) in cases {
        let rejected = client.should_rate_limit(message).await.unwrap_err();
        assert_eq!(rejected.code(), Grpc::InvalidArgument);
        assert!(rejected.message().starts_with(expected), "{rejected}");
    }
    let most = vec![descriptor(&many(64)); 64];
    assert_eq!(ask(&service, most).await.statuses.len(), 64);
    let first = ask(&service, vec![descriptor(&[("ip", "1")])]).await;
    assert_eq!(numbers(&first), (Code::Ok, vec![2]), "nothing was charged");
    let large = request(vec![descriptor(&[("ip", &"x".repeat(256 * 1024))])]);
    assert_eq!(client.should_rate_limit(large).await.unwrap_err().code(), Grpc::OutOfRange);
}

#[tokio::test]
async fn values_can_be_any_text() {
    let service = Service::start(RULES).await;
    for value in ["", "a\nb", "ü\u{1f980}", &"x".repeat(10_000), "a=1;b=2", "\0"] {
        for remaining in [2, 1] {
            let response = ask(&service, vec![descriptor(&[("ip", value)])]).await;
            assert_eq!(numbers(&response), (Code::Ok, vec![remaining]), "{:?}", value.get(..10));
        }
    }
}
