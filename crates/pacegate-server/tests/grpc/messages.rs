//! The exact value of every field of every message.

use pacegate::store::{Clock as _, SystemClock};
use pacegate_proto::v1::{
    CheckRequest, CheckResponse, Dimension, Identity, Limit, LimitAnswer, QuotaRequest, QuotaResponse,
    ResetRequest, ResetResponse, State,
};
use serde_json::json;
use tonic::Code;

use super::client::RULES;
use super::service::{Service, with};
use super::{NOW, NOW_US, check};

/// Returns the response of a fixed window of 2 per minute, whose window began at 1,789,999,980.
fn of_window(rule: &str, remaining: u32) -> CheckResponse {
    CheckResponse {
        allowed: true,
        current_count: Some(2 - remaining),
        limit: Some(2),
        remaining: Some(remaining),
        reset_at: Some(1_790_000_040),
        rule: rule.into(),
        algorithm: "fixed_window".into(),
        state: if remaining == 0 { State::Throttled } else { State::Normal }.into(),
        decided_at_us: NOW_US,
        ..CheckResponse::default()
    }
}

fn ip(identifier: &str) -> CheckRequest {
    CheckRequest { dimension: Dimension::Ip.into(), ..check(identifier, "/") }
}

#[tokio::test]
async fn check_returns_the_numbers_of_the_binding_limit() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let mut ask = async || client.check_rate_limit(ip("10.0.0.1")).await.unwrap().into_inner();
    assert_eq!(ask().await, of_window("per-ip", 1));
    assert_eq!(ask().await, of_window("per-ip", 0));
    let denied = CheckResponse {
        allowed: false,
        retry_after: Some(40),
        retry_after_ms: Some(39_877),
        reason: "LIMIT_EXCEEDED".into(),
        ..of_window("per-ip", 0)
    };
    for _ in 0..3 {
        assert_eq!(ask().await, denied, "nothing was charged");
    }
}

#[tokio::test]
async fn every_limit_is_returned_on_request() {
    let service = Service::start(RULES).await;
    let request = CheckRequest { with_limits: true, cost: 3, ..check("u1", "/queue") };
    let answer = service.limiter().check_rate_limit(request).await.unwrap().into_inner();
    let limit = Limit { algorithm: "leaky_bucket".into(), quota: 1, window_us: 1_000_000, burst: 3 };
    assert_ne!(answer.decision_id, 0);
    assert_eq!(
        answer,
        CheckResponse {
            decision_id: answer.decision_id,
            allowed: true,
            current_count: Some(3),
            limit: Some(3),
            remaining: Some(0),
            reset_at: Some(NOW + 4),
            rule: "queue".into(),
            algorithm: "leaky_bucket".into(),
            state: State::Throttled.into(),
            delay_ms: Some(0),
            queue_position: Some(3),
            decided_at_us: NOW_US,
            limits: vec![LimitAnswer {
                rule: "queue".into(),
                dimension: "user".into(),
                limit: Some(limit.clone()),
                allowed: true,
                remaining: Some(0),
                reset_at_us: Some(NOW_US + 3_000_000),
                state: State::Throttled.into(),
                delay_us: Some(0),
                queue_position: Some(3),
                why: "anyone".into(),
                ..LimitAnswer::default()
            }],
            ..CheckResponse::default()
        }
    );
    let request = CheckRequest { with_limits: true, cost: 4, ..check("u1", "/queue") };
    let denied = service.limiter().check_rate_limit(request).await.unwrap().into_inner();
    assert_eq!((denied.allowed, denied.reason.as_str()), (false, "COST_EXCEEDS_LIMIT"));
    assert_eq!((denied.retry_after, denied.retry_after_ms), (None, None), "waiting does not help");
    assert_eq!(denied.limits[0].retry_at_us, None);
    let request = CheckRequest { with_limits: true, cost: 2, ..check("u1", "/queue") };
    let denied = service.limiter().check_rate_limit(request).await.unwrap().into_inner();
    assert_eq!((denied.retry_after, denied.retry_after_ms), (Some(2), Some(2_000)));
    assert_eq!(denied.limits[0].retry_at_us, Some(NOW_US + 2_000_000));
    assert_eq!(denied.limits[0].reason, "LIMIT_EXCEEDED");
    assert!(!denied.limits[0].allowed);
}

#[tokio::test]
async fn quota_equals_the_decision_of_a_check_and_charges_nothing() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let request = QuotaRequest {
        identifier: "10.0.0.1".into(),
        dimension: Dimension::Ip.into(),
        endpoint: "/".into(),
        ..QuotaRequest::default()
    };
    for _ in 0..3 {
        let fresh = client.get_remaining_quota(request.clone()).await.unwrap().into_inner();
        assert_eq!((fresh.limit, fresh.remaining, fresh.current_count), (Some(2), Some(2), Some(0)));
    }
    client.check_rate_limit(ip("10.0.0.1")).await.unwrap();
    let quota = client.get_remaining_quota(request.clone()).await.unwrap().into_inner();
    assert_eq!(
        quota,
        QuotaResponse {
            limit: Some(2),
            remaining: Some(1),
            reset_at: Some(1_790_000_040),
            current_count: Some(1),
            check: Some(of_window("per-ip", 1)),
        }
    );
    client.check_rate_limit(ip("10.0.0.1")).await.unwrap();
    let with_limits = QuotaRequest { with_limits: true, ..request };
    let empty = client.get_remaining_quota(with_limits).await.unwrap().into_inner();
    let would_be = empty.check.unwrap();
    assert_eq!((would_be.allowed, would_be.retry_after), (false, Some(40)));
    assert_eq!(would_be.limits.len(), 1);
    assert_eq!((empty.remaining, empty.current_count), (Some(0), Some(2)));
}

#[tokio::test]
async fn reset_clears_one_identity_at_one_endpoint_and_requires_an_admin() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    for address in ["10.0.0.1", "10.0.0.2"] {
        for _ in 0..2 {
            assert!(client.check_rate_limit(ip(address)).await.unwrap().into_inner().allowed);
        }
    }
    let reset = ResetRequest {
        identifier: "10.0.0.1".into(),
        dimension: Dimension::Ip.into(),
        endpoint: "/".into(),
        ..ResetRequest::default()
    };
    let rejected = client.reset_limit(reset.clone()).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unauthenticated);
    assert!(!client.check_rate_limit(ip("10.0.0.1")).await.unwrap().into_inner().allowed, "still");
    let done = client.reset_limit(with(reset, &[("x-api-key", "secret")])).await.unwrap().into_inner();
    assert_eq!(done, ResetResponse { reset_at: NOW + 1 }, "rounded up");
    let fresh = client.check_rate_limit(ip("10.0.0.1")).await.unwrap().into_inner();
    assert_eq!(fresh, of_window("per-ip", 1));
    assert!(!client.check_rate_limit(ip("10.0.0.2")).await.unwrap().into_inner().allowed);
}

#[tokio::test]
async fn dimensions_are_predefined_or_custom() {
    let rules = ["user", "ip", "apikey", "tenant"].map(|dimension| {
        format!("  - {{name: per-{dimension}, dimension: {dimension}, algorithm: fixed_window, limit: 2, window: 60s}}\n")
    });
    let service = Service::start(&format!("rules:\n{}", rules.concat())).await;
    let mut client = service.limiter();
    let cases = [
        (Dimension::Unspecified, "", "per-user"),
        (Dimension::User, "", "per-user"),
        (Dimension::Ip, "", "per-ip"),
        (Dimension::ApiKey, "", "per-apikey"),
        (Dimension::Unspecified, "tenant", "per-tenant"),
        (Dimension::Unspecified, "ip", "per-ip"),
        (Dimension::Unspecified, "IP", "per-ip"),
        (Dimension::Unspecified, "API_KEY", "per-apikey"),
    ];
    for (place, (dimension, custom, rule)) in cases.into_iter().enumerate() {
        let request = CheckRequest {
            dimension: dimension.into(),
            custom_dimension: custom.into(),
            ..check(&format!("10.0.0.{place}"), "/")
        };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer, of_window(rule, 1), "{dimension:?} {custom}");
    }
    let unknown = CheckRequest { custom_dimension: "planet".into(), ..check("mars", "/") };
    let answer = client.check_rate_limit(unknown).await.unwrap().into_inner();
    assert_eq!((answer.rule.as_str(), answer.remaining), ("default", Some(99)));
}

#[tokio::test]
async fn identities_are_charged_together_or_not_at_all() {
    let rules = "default_limit: none\nrules:\n  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 9, window: 60s}\n  - {name: per-ip, dimension: ip, algorithm: fixed_window, limit: 2, window: 60s}\n";
    let service = Service::start(rules).await;
    let mut client = service.limiter();
    let also = vec![Identity { identifier: "10.0.0.1".into(), dimension: 2, ..Identity::default() }];
    let both = CheckRequest { also: also.clone(), with_limits: true, ..check("u1", "/") };
    for remaining in [1, 0] {
        let answer = client.check_rate_limit(both.clone()).await.unwrap().into_inner();
        assert_eq!((answer.rule.as_str(), answer.remaining), ("per-ip", Some(remaining)));
        let dimensions: Vec<&str> = answer.limits.iter().map(|limit| limit.dimension.as_str()).collect();
        assert_eq!(dimensions, ["user", "ip"]);
    }
    let denied = client.check_rate_limit(both).await.unwrap().into_inner();
    assert!(!denied.allowed);
    let each: Vec<(bool, Option<u32>)> =
        denied.limits.iter().map(|limit| (limit.allowed, limit.remaining)).collect();
    assert_eq!(
        each,
        [(true, Some(7)), (false, Some(0))],
        "the user was charged for two checks, not for three"
    );
    let quota = QuotaRequest {
        identifier: "u1".into(),
        endpoint: "/".into(),
        also: also.clone(),
        with_limits: true,
        ..QuotaRequest::default()
    };
    let quota = client.get_remaining_quota(quota).await.unwrap().into_inner();
    assert_eq!(quota.check.unwrap().limits.len(), 2);
    let reset =
        ResetRequest { identifier: "u1".into(), endpoint: "/".into(), also, ..ResetRequest::default() };
    client.reset_limit(with(reset, &[("authorization", "Bearer secret")])).await.unwrap();
    let fresh =
        client.check_rate_limit(CheckRequest { with_limits: true, ..check("u1", "/") }).await.unwrap();
    assert_eq!(fresh.into_inner().limits[0].remaining, Some(8));
    assert_eq!(
        client.check_rate_limit(ip("10.0.0.1")).await.unwrap().into_inner().remaining,
        Some(1),
        "both identities were reset"
    );
}

#[tokio::test]
async fn plans_limits_methods_and_costs_of_a_check_apply() {
    let rules = format!(
        "{RULES}  - {{name: writes, dimension: user, endpoint: /items, method: POST, algorithm: fixed_window, limit: 4, window: 60s}}\n"
    );
    let service = Service::start(&rules).await;
    let mut client = service.limiter();
    let mut ask = async |request: CheckRequest| client.check_rate_limit(request).await.unwrap().into_inner();

    let plans = vec!["gold".to_owned(), "daily".to_owned()];
    let answer = ask(CheckRequest { plans, with_limits: true, ..check("u1", "/x") }).await;
    let limits: Vec<(&str, &str, Option<u32>)> = answer
        .limits
        .iter()
        .map(|limit| (limit.rule.as_str(), limit.why.as_str(), limit.remaining))
        .collect();
    assert_eq!(limits, [("gold", "plan", Some(2)), ("daily", "plan", Some(4)), ("daily", "plan", Some(99))]);

    let own = Limit { algorithm: "gcra".into(), quota: 5, window_us: 1_000_000, burst: 8 };
    let answer = ask(CheckRequest { limit: Some(own.clone()), with_limits: true, ..check("u2", "/x") }).await;
    assert_eq!((answer.rule.as_str(), answer.algorithm.as_str()), ("ad-hoc", "gcra"));
    assert_eq!((answer.limit, answer.remaining), (Some(8), Some(7)));
    assert_eq!((answer.limits[0].limit.clone(), answer.limits[0].why.as_str()), (Some(own), "ad_hoc"));
    let short = Limit { quota: 5, window_us: 1_500, ..Limit::default() };
    let answer = ask(CheckRequest { limit: Some(short), ..check("u3", "/x") }).await;
    assert_eq!((answer.algorithm.as_str(), answer.limit), ("token_bucket", Some(5)), "the default algorithm");

    for method in ["POST", "post", "Post"] {
        let answer = ask(CheckRequest { method: method.into(), ..check(method, "/items") }).await;
        assert_eq!((answer.rule.as_str(), answer.remaining), ("writes", Some(3)), "{method}");
    }
    assert_eq!(ask(CheckRequest { method: "GET".into(), ..check("u4", "/items") }).await.rule, "default");
    assert_eq!(
        ask(check("u4", "/items")).await.rule,
        "writes",
        "rules with a method apply to checks without one"
    );
    for (cost, remaining) in [(0, 99), (1, 98), (50, 48), (48, 0)] {
        assert_eq!(ask(CheckRequest { cost, ..check("u5", "/y") }).await.remaining, Some(remaining));
    }
    assert_eq!(ask(check("u6", "//api/./v1/%6Frders?page=2")).await.rule, "per-user-minute");
}

#[tokio::test]
async fn check_without_a_limit_has_no_numbers() {
    let service = Service::start("default_limit: none").await;
    let answer = service.limiter().check_rate_limit(check("u1", "/")).await.unwrap().into_inner();
    let decided_at_us = answer.decided_at_us;
    assert_eq!(answer, CheckResponse { allowed: true, decided_at_us, ..CheckResponse::default() });
    let shadow = "default_limit: none\nrules: [{name: watch, dimension: user, algorithm: fixed_window, limit: 1, window: 60s, mode: shadow}]";
    let service = Service::start(shadow).await;
    let mut client = service.limiter();
    for (remaining, allowed) in [(0, true), (0, false)] {
        let request = CheckRequest { with_limits: true, ..check("u1", "/") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert!(answer.allowed);
        assert_eq!((answer.limit, answer.remaining, answer.rule.as_str()), (None, None, ""));
        let only = &answer.limits[0];
        assert_eq!((only.shadow, only.allowed, only.remaining), (true, allowed, Some(remaining)));
    }
}

#[tokio::test]
async fn tier_of_a_user_comes_from_the_catalog() {
    let rules = "rules:\n  - {name: r, dimension: user, algorithm: fixed_window, limit: 5, window: 60s}\n  - {name: r, dimension: user, tier: premium, algorithm: fixed_window, limit: 50, window: 60s}\n";
    let rest = super::client::Client::managed(rules).await;
    let put = rest.admin(hyper::Method::PUT, "/api/v1/users/u1/tier", json!({"tier": "premium"})).await;
    assert!(put.status.is_success(), "{}", put.body);
    let service = Service::serve(rest, rules).await;
    let mut client = service.limiter();
    for (user, limit, why) in [("u1", 50, "tier"), ("u2", 5, "anyone")] {
        let request = CheckRequest { with_limits: true, ..check(user, "/") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!((answer.limit, answer.limits[0].why.as_str()), (Some(limit), why));
        let other = Identity { identifier: user.into(), dimension: 1, ..Identity::default() };
        let request = CheckRequest { dimension: 2, also: vec![other], ..check("10.0.0.1", "/") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.limit, Some(limit), "also as an additional identity");
    }
}

#[tokio::test]
async fn clock_of_the_caller_is_measured_and_never_used() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let observed = async || {
        let metrics = service.rest.get("/metrics").await.body;
        let find = |name: &str| {
            let line =
                metrics.as_str().unwrap().lines().find(|line| line.starts_with(name)).map(str::to_owned);
            line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        };
        let upto = |bound: &str| find(&format!("pacegate_clock_skew_seconds_bucket{{le=\"{bound}\"}}"));
        (find("pacegate_clock_skew_seconds_count"), upto("3600.0"), upto("5.0"))
    };
    assert_eq!(observed().await.0, 0.0);
    client.check_rate_limit(check("u1", "/x")).await.unwrap();
    assert_eq!(observed().await.0, 0.0, "checks without a timestamp are not measured");
    // The first is decades behind, the second equals the machine's clock.
    let now = i64::try_from(SystemClock::new().now().as_micros() / 1_000).unwrap();
    for (timestamp, remaining) in [(1, 98), (now, 97), (i64::MIN, 96), (i64::MAX, 95)] {
        let request = CheckRequest { timestamp, ..check("u1", "/x") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!((answer.remaining, answer.decided_at_us), (Some(remaining), NOW_US), "{timestamp}");
    }
    assert_eq!(observed().await, (4.0, 1.0, 1.0));
}

#[tokio::test]
async fn limit_is_completed_and_sliding_window_alias_is_used() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    for (asked, answered) in [
        (("sliding_window", 0, 0), ("sliding_window", 100, 60_000_000)),
        (("sliding_log", 0, 0), ("sliding_log", 100, 60_000_000)),
        (("", 5, 0), ("token_bucket", 5, 1_000_000)),
        (("", 0, 7_000_000), ("token_bucket", 10, 7_000_000)),
        (("fixed_window", 5, 0), ("fixed_window", 5, 60_000_000)),
    ] {
        let limit = |(algorithm, quota, window_us): (&str, u32, u64)| Limit {
            algorithm: algorithm.into(),
            quota,
            window_us,
            burst: 0,
        };
        let request = CheckRequest { limit: Some(limit(asked)), with_limits: true, ..check("u1", "/none") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.algorithm, answered.0);
        let own = answer.limits[0].limit.clone().unwrap();
        assert_eq!(Limit { burst: 0, ..own }, limit(answered), "{asked:?}");
    }
}

#[tokio::test]
async fn policy_limits_its_key_in_every_dimension() {
    let rules = "rules: [{name: policy, dimension: key, identifier: k, algorithm: fixed_window, limit: 9, window: 60s}]";
    let service = Service::start(rules).await;
    let mut client = service.limiter();
    for (dimension, left) in [(Dimension::User, 8), (Dimension::ApiKey, 7)] {
        let request = CheckRequest { dimension: dimension.into(), ..check("k", "/") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!((&*answer.rule, answer.remaining), ("policy", Some(left)), "{dimension:?}");
    }
    let other = client.check_rate_limit(check("other", "/")).await.unwrap().into_inner();
    assert_eq!(other.rule, "default");
}

#[tokio::test]
async fn tier_of_a_check_selects_its_rules() {
    let rules = "rules: [{name: all, dimension: user, algorithm: fixed_window, limit: 9, window: 60s}, {name: all, dimension: user, tier: gold, algorithm: fixed_window, limit: 90, window: 60s}]";
    let service = Service::start(rules).await;
    let mut client = service.limiter();
    for (tier, limit) in [("", 9), ("gold", 90)] {
        let request = CheckRequest { tier: tier.into(), ..check("u", "/") };
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.limit, Some(limit), "{tier}");
        let request = QuotaRequest {
            identifier: "u".into(),
            endpoint: "/".into(),
            tier: tier.into(),
            ..QuotaRequest::default()
        };
        assert_eq!(client.get_remaining_quota(request).await.unwrap().into_inner().limit, Some(limit));
    }
}
