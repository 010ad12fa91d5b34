//! Hits: charges, peeks and refunds, and ad-hoc limits of descriptors.

use std::time::Duration;

use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use pacegate_proto::envoy::r#type::v3::RateLimitUnit;
use serde_json::{Value, json};
use tonic::Code as Grpc;

use super::client::Client;
use super::service::{Service, with};
use super::{NOW, ask, descriptor, numbers, request, status};

const RULES: &str = r#"
default_limit: none
descriptors:
  - {domain: edge, name: a, entries: [{key: a}], algorithm: fixed_window, limit: 100, window: 1d}
  - {domain: edge, name: b, entries: [{key: b}], algorithm: fixed_window, limit: 50, window: 1d}
  - {domain: edge, name: c, entries: [{key: c}], algorithm: sliding_log, limit: 10, window: 1h}
  - {domain: edge, name: tokens, entries: [{key: tokens}], algorithm: fixed_window, limit: 100, window: 1d, overdraw: true}
  - {domain: edge, name: returns, entries: [{key: returns}], algorithm: fixed_window, limit: 100, window: 1d, refundable: true}
rules: [{name: r, dimension: user, algorithm: fixed_window, limit: 10, window: 1d}]
"#;

fn taking(key: &str, hits: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: hits, ..descriptor(&[(key, "x")]) }
}

fn giving_back(key: &str, hits: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..taking(key, hits) }
}

/// Sends a request with a valid API key.
async fn send_with_key(service: &Service, descriptors: Vec<RateLimitDescriptor>) -> (Code, Vec<u32>) {
    let request = with(request(descriptors), &[("x-api-key", "secret")]);
    numbers(&service.envoy().should_rate_limit(request).await.unwrap().into_inner())
}

async fn with_general(
    service: &Service,
    descriptors: Vec<RateLimitDescriptor>,
    general: u32,
) -> (Code, Vec<u32>) {
    let message = RateLimitRequest { hits_addend: general, ..request(descriptors) };
    numbers(&service.envoy().should_rate_limit(message).await.unwrap().into_inner())
}

#[tokio::test]
async fn hits_come_from_the_descriptor_or_the_request() {
    let service = Service::start(RULES).await;
    let ok = |remaining: &[u32]| (Code::Ok, remaining.to_vec());
    assert_eq!(
        with_general(&service, vec![taking("a", None)], 0).await,
        ok(&[99]),
        "0 means that the field is absent"
    );
    assert_eq!(with_general(&service, vec![taking("a", None)], 9).await, ok(&[90]));
    assert_eq!(with_general(&service, vec![taking("a", Some(5))], 9).await, ok(&[85]));
    let both = vec![taking("a", Some(15)), taking("b", None)];
    assert_eq!(with_general(&service, both, 10).await, ok(&[70, 40]));
    let beyond = vec![taking("a", Some(71))];
    assert_eq!(with_general(&service, beyond, 0).await, (Code::OverLimit, vec![70]), "nothing is charged");
    assert_eq!(with_general(&service, vec![taking("a", Some(70))], 0).await, ok(&[0]));
    for huge in [2_000_000_000, u64::MAX] {
        let rejected = with_general(&service, vec![taking("a", Some(huge))], 0).await;
        assert_eq!(rejected, (Code::OverLimit, vec![0]));
    }
    assert_eq!(with_general(&service, vec![taking("a", None)], u32::MAX).await.0, Code::OverLimit);
}

/// What `apply_on_stream_done` does: a peek before the request, the charge after the response.
#[tokio::test]
async fn late_charge_above_the_capacity_denies_the_next_request() {
    let service = Service::start(RULES).await;
    assert_eq!(with_general(&service, vec![taking("a", Some(0))], 0).await, (Code::Ok, vec![100]));
    let late = with_general(&service, vec![taking("a", Some(101))], 0).await;
    assert_eq!(late, (Code::OverLimit, vec![0]));
    for hits in [0, 1, 101] {
        let next = with_general(&service, vec![taking("a", Some(hits))], 0).await;
        assert_eq!(next, (Code::OverLimit, vec![0]), "{hits} hits");
    }
    service.rest.clock.advance(Duration::from_secs(86_400));
    assert_eq!(with_general(&service, vec![taking("a", Some(0))], 0).await, (Code::Ok, vec![100]));
}

#[tokio::test]
async fn overdrawn_limit_counts_every_hit_and_denies_the_next_request() {
    let service = Service::start(RULES).await;
    let spend = async |hits| with_general(&service, vec![taking("tokens", Some(hits))], 0).await;
    assert_eq!(spend(60).await, (Code::Ok, vec![40]));
    assert_eq!(spend(60).await, (Code::Ok, vec![0]));
    assert_eq!(spend(0).await, (Code::OverLimit, vec![0]));
    assert_eq!(spend(60).await, (Code::OverLimit, vec![0]));
    assert_eq!(spend(600).await, (Code::OverLimit, vec![0]));
    // All 120 hits are in use: of a refund of 30, 20 reduce the debt.
    assert_eq!(send_with_key(&service, vec![giving_back("tokens", Some(30))]).await, (Code::Ok, vec![10]));
    // 90 are in use, and at most twice the capacity can be.
    assert_eq!(spend(250).await, (Code::Ok, vec![0]));
    let metrics = service.rest.get("/metrics").await.body.to_string();
    let uncharged = r#"pacegate_uncharged_total{rule=\"tokens\",algorithm=\"fixed_window\"} 140"#;
    assert!(metrics.contains(uncharged), "{metrics}");
}

#[tokio::test]
async fn explicit_zero_peeks_and_charges_nothing() {
    let service = Service::start(RULES).await;
    for _ in 0..3 {
        assert_eq!(with_general(&service, vec![taking("b", Some(0))], 7).await, (Code::Ok, vec![50]));
    }
    assert_eq!(with_general(&service, vec![taking("b", Some(49))], 0).await, (Code::Ok, vec![1]));
    assert_eq!(with_general(&service, vec![taking("b", Some(0))], 0).await, (Code::Ok, vec![1]));
    assert_eq!(with_general(&service, vec![taking("b", Some(1))], 0).await, (Code::Ok, vec![0]));
    let none_left = with_general(&service, vec![taking("b", Some(0))], 0).await;
    assert_eq!(none_left, (Code::OverLimit, vec![0]), "one more hit would exceed the limit");
    let look_and_take = vec![taking("b", Some(0)), taking("a", Some(3))];
    assert_eq!(with_general(&service, look_and_take, 0).await, (Code::OverLimit, vec![0, 100]));
}

#[tokio::test]
async fn negative_hits_refund_at_most_what_was_charged() {
    let service = Service::start(RULES).await;
    for key in ["a", "c"] {
        let full = if key == "a" { 100 } else { 10 };
        assert_eq!(ask(&service, vec![taking(key, Some(6))]).await.statuses[0].limit_remaining, full - 6);
        let answer = send_with_key(&service, vec![giving_back(key, Some(4))]).await;
        assert_eq!(answer, (Code::Ok, vec![full - 2]), "{key}");
        let answer = send_with_key(&service, vec![giving_back(key, None)]).await;
        assert_eq!(answer, (Code::Ok, vec![full - 1]), "the default is one hit");
        let answer = send_with_key(&service, vec![giving_back(key, Some(1_000))]).await;
        assert_eq!(answer, (Code::Ok, vec![full]), "never beyond a fresh counter");
    }
    // A refund is not denied, even if nothing remains.
    assert_eq!(numbers(&ask(&service, vec![taking("b", Some(50))]).await), (Code::Ok, vec![0]));
    assert_eq!(send_with_key(&service, vec![giving_back("b", Some(10))]).await, (Code::Ok, vec![10]));
    // A denied request refunds nothing either.
    let rejected = vec![taking("b", Some(11)), giving_back("a", Some(1))];
    ask(&service, vec![taking("a", Some(5))]).await;
    assert_eq!(send_with_key(&service, rejected).await, (Code::OverLimit, vec![10, 95]));
}

#[tokio::test]
async fn negative_hits_of_an_unauthenticated_caller_refund_nothing() {
    let service = Service::start(RULES).await;
    let of_user = |hits| RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(&[("user", "u1")]) };
    let returning = |hits| RateLimitDescriptor { is_negative_hits: true, ..of_user(hits) };
    ask(&service, vec![taking("b", Some(50))]).await;
    ask(&service, vec![of_user(10)]).await;
    // OK, because Envoy allows a request on errors; the numbers show that nothing was refunded.
    assert_eq!(numbers(&ask(&service, vec![giving_back("b", Some(50))]).await), (Code::Ok, vec![0]));
    assert_eq!(numbers(&ask(&service, vec![returning(10)]).await), (Code::Ok, vec![0]));
    let wrong_key = with(request(vec![giving_back("b", Some(50))]), &[("x-api-key", "guessed")]);
    let answer = service.envoy().should_rate_limit(wrong_key).await.unwrap().into_inner();
    assert_eq!(numbers(&answer), (Code::Ok, vec![0]));
    assert_eq!(numbers(&ask(&service, vec![taking("b", Some(1))]).await), (Code::OverLimit, vec![0]));
    assert_eq!(numbers(&ask(&service, vec![of_user(1)]).await), (Code::OverLimit, vec![0]));
    // A request that charges one limit is charged, even if another refund is rejected.
    let mixed = vec![taking("a", Some(3)), giving_back("b", Some(3))];
    assert_eq!(numbers(&ask(&service, mixed).await), (Code::Ok, vec![97, 0]));
    let metrics = service.rest.get("/metrics").await.body;
    let text = metrics.as_str().unwrap();
    assert!(text.contains("pacegate_refunds_total{outcome=\"refused\"} 4"), "{text}");
    assert!(text.contains("pacegate_refunds_total{outcome=\"allowed\"} 0"), "{text}");
}

#[tokio::test]
async fn refundable_rule_accepts_refunds_from_any_caller() {
    let service = Service::start(RULES).await;
    ask(&service, vec![taking("returns", Some(60))]).await;
    assert_eq!(numbers(&ask(&service, vec![giving_back("returns", Some(20))]).await), (Code::Ok, vec![60]));
    // Never more than was charged in this window.
    assert_eq!(numbers(&ask(&service, vec![giving_back("returns", Some(500))]).await), (Code::Ok, vec![100]));
    ask(&service, vec![taking("returns", Some(60))]).await;
    service.rest.clock.advance(Duration::from_secs(86_400));
    ask(&service, vec![taking("returns", Some(5))]).await;
    assert_eq!(numbers(&ask(&service, vec![giving_back("returns", Some(60))]).await), (Code::Ok, vec![100]));
}

#[tokio::test]
async fn different_hits_are_charged_together_or_not_at_all() {
    let service = Service::start(RULES).await;
    let mixed = || vec![taking("a", Some(30)), taking("b", Some(20)), taking("c", Some(1))];
    assert_eq!(numbers(&ask(&service, mixed()).await), (Code::Ok, vec![70, 30, 9]));
    assert_eq!(numbers(&ask(&service, mixed()).await), (Code::Ok, vec![40, 10, 8]));
    for _ in 0..3 {
        let response = ask(&service, mixed()).await;
        assert_eq!(numbers(&response), (Code::OverLimit, vec![40, 10, 8]), "nothing was charged");
        let codes: Vec<Code> = response.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    }
    let fits = vec![taking("a", Some(40)), taking("b", Some(10)), taking("c", Some(8))];
    assert_eq!(numbers(&ask(&service, fits).await), (Code::Ok, vec![0, 0, 0]));
}

fn with_limit(requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, ..descriptor(&[("a", "own")]) }
}

#[tokio::test]
async fn descriptor_can_send_a_limit_of_any_unit() {
    let units = [
        (RateLimitUnit::Second, Unit::Second, 1),
        (RateLimitUnit::Minute, Unit::Minute, 60),
        (RateLimitUnit::Hour, Unit::Hour, 3_600),
        (RateLimitUnit::Day, Unit::Day, 86_400),
        (RateLimitUnit::Week, Unit::Week, 7 * 86_400),
        (RateLimitUnit::Month, Unit::Month, 30 * 86_400),
        (RateLimitUnit::Year, Unit::Year, 365 * 86_400),
    ];
    let rules = format!("{RULES}ad_hoc: {{max_window: 365d}}\n");
    for (unit, shown, seconds) in units {
        let service = Service::start(&rules).await;
        // From the start of the second to the end of the window, which is aligned to the epoch.
        let left = i64::try_from((seconds - NOW % seconds) * 1_000_000).unwrap() - 123_456;
        for (code, remaining) in [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
            let response = ask(&service, vec![with_limit(2, unit.into())]).await;
            assert_eq!(response.overall_code(), code);
            assert_eq!(response.statuses, [status(code, "ad-hoc", 2, shown, remaining, left)], "{unit:?}");
        }
        service.rest.clock.advance(Duration::from_micros(u64::try_from(left).unwrap()));
        let response = ask(&service, vec![with_limit(2, unit.into())]).await;
        assert_eq!(numbers(&response), (Code::Ok, vec![1]), "{unit:?}: the next window");
    }
}

#[tokio::test]
async fn ad_hoc_limit_overrides_the_rule() {
    let service = Service::start(RULES).await;
    let response = ask(&service, vec![with_limit(0, RateLimitUnit::Minute.into())]).await;
    assert_eq!((response.overall_code(), response.statuses[0].code()), (Code::OverLimit, Code::OverLimit));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 0);
    let larger = ask(&service, vec![with_limit(1_000, RateLimitUnit::Day.into())]).await;
    assert_eq!(numbers(&larger), (Code::Ok, vec![999]), "the rule's limit is 100");
    let most = ask(&service, vec![with_limit(u32::MAX, RateLimitUnit::Hour.into())]).await;
    assert_eq!(numbers(&most), (Code::Ok, vec![999_999_999]), "the maximum");
    for unknown in [0, 8, -1] {
        let message = request(vec![descriptor(&[("a", "x")]), with_limit(1, unknown)]);
        let rejected = service.envoy().should_rate_limit(message).await.unwrap_err();
        assert_eq!(rejected.code(), Grpc::InvalidArgument);
        assert!(
            rejected.message().starts_with("descriptors[1].limit.unit: expected one of SECOND"),
            "{rejected}"
        );
    }
    let hits = RateLimitDescriptor { hits_addend: Some(400), ..with_limit(1_000, RateLimitUnit::Day.into()) };
    assert_eq!(numbers(&ask(&service, vec![hits]).await), (Code::Ok, vec![599]));
}

#[tokio::test]
async fn disallowed_ad_hoc_limit_leaves_the_rule_in_force() {
    let week = || with_limit(1_000, RateLimitUnit::Week.into());
    let hour = || with_limit(1_000, RateLimitUnit::Hour.into());
    let ignored = async |service: &Service| {
        let metrics = service.rest.get("/metrics").await.body;
        let line =
            metrics.as_str().unwrap().lines().find(|line| line.starts_with("pacegate_ad_hoc_ignored_total"));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let service = Service::start(RULES).await;
    assert_eq!(numbers(&ask(&service, vec![week()]).await), (Code::Ok, vec![99]), "the rule's limit is 100");
    assert_eq!(numbers(&ask(&service, vec![hour()]).await), (Code::Ok, vec![999]));
    assert_eq!(ignored(&service).await, 1);

    let service = Service::start(&format!("{RULES}ad_hoc: {{allow: with_key}}\n")).await;
    assert_eq!(numbers(&ask(&service, vec![hour()]).await), (Code::Ok, vec![99]));
    assert_eq!(send_with_key(&service, vec![hour()]).await, (Code::Ok, vec![999]));
    let service = Service::start(&format!("{RULES}ad_hoc: {{allow: never}}\n")).await;
    let nothing = with_limit(0, RateLimitUnit::Hour.into());
    assert_eq!(send_with_key(&service, vec![hour(), nothing]).await, (Code::Ok, vec![98, 98]));
    assert_eq!(ignored(&service).await, 2);
}

#[tokio::test]
async fn log_and_usage_record_requested_hits() {
    let rules = "default_limit: none\nrules: [{name: r, dimension: user, algorithm: fixed_window, limit: 10, window: 1d}]\ndecision_log: {rows_per_second: 1000}\n";
    let service = Service::serve(Client::managed(rules).await, rules).await;
    let of_user = |hits| RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor(&[("user", "u1"), ("path", "/x")])
    };
    for hits in [4, 0, 7] {
        ask(&service, vec![of_user(hits)]).await;
    }
    ask(&service, vec![RateLimitDescriptor { is_negative_hits: true, ..of_user(1) }]).await;
    service.rest.live().finish_logs().await;
    let logged = service.rest.admin(hyper::Method::GET, "/api/v1/logs", Value::Null).await.body;
    let mut found: Vec<(i64, bool, &str)> = logged["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            assert_eq!((&row["user_id"], &row["endpoint"]), (&json!("u1"), &json!("/x")));
            (row["cost"].as_i64().unwrap(), row["allowed"].as_bool().unwrap(), row["rule"].as_str().unwrap())
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, [(4, true, "r"), (7, false, "r")], "peeks and refunds are not logged");
}
