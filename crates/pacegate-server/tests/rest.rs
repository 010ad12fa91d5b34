//! The REST API as a client sees it, on a simulated clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use std::time::Duration;

use axum::body::Body;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use client::{Answer, Client, RULES};

#[tokio::test]
async fn check_returns_body_and_both_header_families() {
    let client = Client::new(RULES);
    let answer = client.check(&json!({"user_id": "u1", "endpoint": "/api/v1/orders", "method": "get"})).await;
    assert_eq!(answer.status, StatusCode::OK);
    // The clock shows 1790000000.123456; the window that began at 1789999980 counts until two
    // windows later.
    assert_eq!(
        answer.body,
        json!({
            "allowed": true, "limit": 100, "remaining": 99, "reset_at": 1_790_000_100, "strategy": "sliding_counter",
            "current_count": 1, "state": "normal", "rule": "per-user-minute", "reason": null, "degraded": false,
            "limits": [{
                "rule": "per-user-minute", "dimension": "user", "allowed": true, "limit": 100, "remaining": 99,
                "reset_at": 1_790_000_100, "strategy": "sliding_counter", "quota": 100, "window_seconds": 60,
                "state": "normal", "reason": null,
            }],
        })
    );
    assert_eq!(answer.header("x-ratelimit-limit"), "100");
    assert_eq!(answer.header("x-ratelimit-remaining"), "99");
    assert_eq!(answer.header("x-ratelimit-reset"), "1790000100");
    assert_eq!(answer.header("x-ratelimit-strategy"), "sliding_counter");
    assert_eq!(answer.header("x-ratelimit-state"), "");
    assert_eq!(answer.header("retry-after"), "");
    assert_eq!(answer.header("ratelimit-policy"), "\"per-user-minute\";q=100;w=60");
    assert_eq!(answer.header("ratelimit"), "\"per-user-minute\";r=99;t=100");
    assert!(answer.header("x-request-id").starts_with("req_"));
}

#[tokio::test]
async fn denial_has_exact_retry_after() {
    let client = Client::new(RULES);
    let body = json!({"dimension": "ip", "identifier": "10.0.0.1", "endpoint": "/"});
    for _ in 0..2 {
        assert_eq!(client.check(&body).await.status, StatusCode::OK);
    }
    let denied = client.check(&body).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.body["allowed"], false);
    assert_eq!(denied.body["reason"], "LIMIT_EXCEEDED");
    assert_eq!(denied.body["retry_after"], 40);
    assert_eq!(denied.body["retry_after_ms"], 39_877, "39.876544 s, rounded up");
    assert_eq!(denied.header("retry-after"), "40");
    assert_eq!(denied.header("x-ratelimit-state"), "throttled");
    client.clock.advance(Duration::from_micros(39_876_543));
    assert_eq!(client.check(&body).await.status, StatusCode::TOO_MANY_REQUESTS);
    client.clock.advance(Duration::from_micros(1));
    assert_eq!(client.check(&body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn minimal_response_has_the_decision_alone() {
    let client = Client::new(RULES);
    let body = json!({"dimension": "ip", "identifier": "10.0.0.1", "endpoint": "/"});
    let minimal = async || {
        let headers = [("content-type", "application/json"), ("prefer", "respond-async, Return=Minimal")];
        client.send(Method::POST, "/v1/rate-limit/check", &headers, Body::from(body.to_string())).await
    };
    let answer = minimal().await;
    assert_eq!(
        (answer.status, answer.body.clone()),
        (StatusCode::OK, json!({"allowed": true, "remaining": 1}))
    );
    assert_eq!(answer.header("preference-applied"), "return=minimal");
    assert!(answer.header("x-request-id").starts_with("req_"));
    for absent in ["x-ratelimit-limit", "ratelimit", "ratelimit-policy"] {
        assert_eq!(answer.header(absent), "", "{absent}");
    }
    assert_eq!(minimal().await.body["remaining"], 0);
    let denied = minimal().await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        denied.body,
        json!({"allowed": false, "remaining": 0, "retry_after": 40, "retry_after_ms": 39_877})
    );
    assert_eq!(denied.header("retry-after"), "40");
    assert_eq!(client.check(&body).await.header("preference-applied"), "");
}

#[tokio::test]
async fn every_path_is_served_under_api() {
    let client = Client::new(RULES);
    let body = json!({"user_id": "u", "endpoint": "/x"});
    for (number, prefix) in ["/v1", "/api/v1"].into_iter().enumerate() {
        let answer = client.post(&format!("{prefix}/rate-limit/check"), &body).await;
        assert_eq!(answer.body["remaining"], 99 - number, "both paths share a counter");
        let status =
            client.send(Method::GET, &format!("{prefix}/rate-limit/status/u/x"), &[], Body::empty()).await;
        assert_eq!(status.status, StatusCode::OK);
        assert_eq!(
            client.post(&format!("{prefix}/rate-limit/batch-check"), &json!({"checks": [body]})).await.status,
            StatusCode::OK
        );
        assert_eq!(
            client.post(&format!("{prefix}/rate-limit/reset"), &body).await.status,
            StatusCode::UNAUTHORIZED
        );
        client.reset(&body).await;
        client.check(&body).await;
    }
}

#[tokio::test]
async fn several_identities_are_charged_together_or_not_at_all() {
    let client = Client::new(RULES);
    let both = |user: &str| json!({"keys": {"user": user, "ip": "10.0.0.9"}, "endpoint": "/api/v1/x"});
    assert_eq!(client.check(&both("a")).await.body["limits"].as_array().unwrap().len(), 2);
    assert_eq!(
        client.check(&both("b")).await.body["rule"],
        "per-ip",
        "the limit with the lowest remaining quota binds"
    );
    let denied = client.check(&both("c")).await;
    assert_eq!((denied.status, &denied.body["rule"]), (StatusCode::TOO_MANY_REQUESTS, &json!("per-ip")));
    let status = client.send(Method::GET, "/v1/rate-limit/status/c/api/v1/x", &[], Body::empty()).await;
    assert_eq!(status.body["current_count"], 0, "the denied chain left the user's limit untouched");
}

#[tokio::test]
async fn plans_ad_hoc_limits_and_the_default_limit_apply() {
    let client = Client::new(RULES);
    let plans = client.check(&json!({"user_id": "u", "endpoint": "/p", "plans": ["gold", "daily"]})).await;
    assert_eq!((plans.body["rule"].as_str(), plans.body["remaining"].as_u64()), (Some("gold"), Some(2)));
    assert_eq!(
        plans.header("ratelimit-policy"),
        "\"gold\";q=3;w=60, \"daily\";q=5;w=86400, \"daily#2\";q=100;w=3600"
    );
    let ad_hoc = json!({"user_id": "u", "endpoint": "/p", "strategy": "TOKEN_BUCKET", "limit": 1000, "window_seconds": 60, "burst_capacity": 50});
    let answer = client.check(&ad_hoc).await;
    assert_eq!((answer.body["rule"].as_str(), answer.body["limit"].as_u64()), (Some("ad-hoc"), Some(50)));
    assert_eq!(answer.header("ratelimit-policy"), "\"ad-hoc\";q=50;w=3");
    let default =
        client.check(&json!({"dimension": "tenant", "identifier": "t", "endpoint": "/p", "cost": 30})).await;
    assert_eq!(
        (default.body["rule"].as_str(), default.body["remaining"].as_u64()),
        (Some("default"), Some(70))
    );
    let strategy = client.check(&json!({"user_id": "u", "endpoint": "/q", "strategy": "fixed_window"})).await;
    assert_eq!(
        (strategy.body["strategy"].as_str(), strategy.body["limit"].as_u64()),
        (Some("fixed_window"), Some(100))
    );

    let unlimited = Client::new("default_limit: none");
    let answer = unlimited.check(&json!({"user_id": "u", "endpoint": "/p"})).await;
    assert_eq!(
        (answer.status, &answer.body["limit"], &answer.body["rule"]),
        (StatusCode::OK, &Value::Null, &Value::Null)
    );
    assert_eq!(answer.header("x-ratelimit-limit"), "", "unknown numbers are omitted");
}

#[tokio::test]
async fn leaky_bucket_returns_delay_and_queue_position() {
    let client = Client::new(RULES);
    let body = json!({"user_id": "u", "endpoint": "/queue"});
    assert_eq!(client.check(&body).await.body["delay_ms"], 0);
    let second = client.check(&body).await;
    assert_eq!((&second.body["delay_ms"], &second.body["queue_position"]), (&json!(1_000), &json!(2)));
}

#[tokio::test]
async fn state_is_warning_before_throttled() {
    let client = Client::new("default_limit: {algorithm: fixed_window, limit: 10, window: 60s}");
    let body = json!({"user_id": "u", "endpoint": "/"});
    let mut states = Vec::new();
    for _ in 0..11 {
        let answer = client.check(&body).await;
        let state = answer.body["state"].as_str().unwrap().to_owned();
        assert_eq!(answer.header("x-ratelimit-state"), if state == "normal" { "" } else { &state });
        states.push(state);
    }
    assert_eq!(states[7..], ["normal", "warning", "throttled", "throttled"]);
}

#[tokio::test]
async fn status_charges_nothing_and_accepts_any_spelling_of_the_endpoint() {
    let client = Client::new(RULES);
    client.check(&json!({"user_id": "user 1", "endpoint": "/api/v1/orders", "cost": 25})).await;
    for path in ["user%201/api/v1/orders", "user%201/%2Fapi%2Fv1%2Forders", "user%201//api/v1/orders"] {
        let answer =
            client.send(Method::GET, &format!("/v1/rate-limit/status/{path}"), &[], Body::empty()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        assert_eq!(answer.body["user_id"], "user 1");
        assert_eq!(answer.body["endpoint"], "/api/v1/orders");
        assert_eq!(answer.body["remaining"], 75);
        assert_eq!(answer.body["usage_percentage"], 25.0);
    }
    let query = "?strategy=fixed%5Fwindow&limit=1%30&window_seconds=60";
    let encoded = client.get(&format!("/v1/rate-limit/status/u/login{query}")).await;
    assert_eq!((&encoded.body["strategy"], &encoded.body["limit"]), (&json!("fixed_window"), &json!(10)));
    let root = client.send(Method::GET, "/v1/rate-limit/status/u/", &[], Body::empty()).await;
    assert_eq!(root.body["endpoint"], "/");
    let query = "/v1/rate-limit/status/u/x?strategy=sliding_window&limit=7&window_seconds=9";
    let answer = client.send(Method::GET, query, &[], Body::empty()).await;
    assert_eq!(
        (answer.body["strategy"].as_str(), answer.body["limit"].as_u64()),
        (Some("sliding_window"), Some(7))
    );
    for (query, expected) in [
        ("strategy=magic", ("INVALID_STRATEGY", "strategy")),
        ("limit=x&window_seconds=1", ("INVALID_LIMIT", "limit")),
        ("color=red", ("INVALID_INPUT", "color")),
        ("method=G%20T", ("INVALID_INPUT", "method")),
    ] {
        let answer =
            client.send(Method::GET, &format!("/v1/rate-limit/status/u/x?{query}"), &[], Body::empty()).await;
        assert_eq!((answer.status, answer.error()), (StatusCode::BAD_REQUEST, expected));
    }
}

#[tokio::test]
async fn reset_clears_all_counters_and_requires_the_admin_key() {
    let client = Client::new(RULES);
    let user = json!({"user_id": "u", "endpoint": "/x"});
    let ad_hoc = json!({"user_id": "u", "endpoint": "/x", "strategy": "sliding_window", "limit": 1, "window_seconds": 60});
    client.check(&user).await;
    assert_eq!(client.check(&ad_hoc).await.status, StatusCode::OK);
    assert_eq!(client.check(&ad_hoc).await.status, StatusCode::TOO_MANY_REQUESTS);

    let path = "/v1/rate-limit/reset";
    let json_type = ("content-type", "application/json");
    for headers in [
        vec![],
        vec![("x-api-key", "wrong")],
        vec![("authorization", "Basic secret")],
        vec![("x-api-key", "")],
    ] {
        let headers: Vec<_> = headers.into_iter().chain([json_type]).collect();
        let answer = client.send(Method::POST, path, &headers, user.to_string()).await;
        assert_eq!((answer.status, answer.error().0), (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"));
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    assert_eq!(client.check(&ad_hoc).await.status, StatusCode::TOO_MANY_REQUESTS, "nothing was reset");

    let headers = [json_type, ("authorization", "Bearer secret")];
    let answer = client.send(Method::POST, path, &headers, user.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        answer.body,
        json!({"user_id": "u", "endpoint": "/x", "reset_at": "2026-09-21T14:13:20.123456Z"})
    );
    assert_eq!(client.check(&ad_hoc).await.status, StatusCode::OK);
    assert_eq!(client.check(&user).await.body["remaining"], 99);

    let restricted = Client::new("server: {admin_allow: [10.0.0.0/8]}");
    let answer = restricted.reset(&user).await;
    assert_eq!((answer.status, answer.error().0), (StatusCode::FORBIDDEN, "FORBIDDEN"));
}

#[tokio::test]
async fn batch_returns_results_in_order() {
    let client = Client::new(RULES);
    let checks = json!([
        {"user_id": "a", "endpoint": "/api/v1/x", "cost": 60},
        {"user_id": "a", "endpoint": "/api/v1/x", "cost": 60},
        {"user_id": "a"},
        {"user_id": "b", "endpoint": "/api/v1/x", "extra": 1},
        "nonsense",
        {"user_id": "b", "endpoint": "/api/v1/x"},
    ]);
    let answer = client.post("/v1/rate-limit/batch-check", &json!({"checks": checks})).await;
    assert_eq!(answer.status, StatusCode::OK);
    let results = answer.body["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    assert_eq!((&results[0]["allowed"], &results[0]["user_id"]), (&json!(true), &json!("a")));
    assert_eq!((&results[1]["allowed"], &results[1]["reason"]), (&json!(false), &json!("LIMIT_EXCEEDED")));
    for (index, field) in [(2, "endpoint"), (3, "extra"), (4, "body")] {
        assert_eq!(results[index]["error"]["details"]["field"], field, "{}", results[index]);
        assert_eq!(results[index]["error"]["request_id"], answer.header("x-request-id"));
    }
    assert_eq!((&results[5]["remaining"], &results[5]["endpoint"]), (&json!(99), &json!("/api/v1/x")));

    let many = |count: usize| json!({"checks": vec![json!({"user_id": "m", "endpoint": "/m"}); count]});
    let full = client.post("/v1/rate-limit/batch-check", &many(1_000)).await;
    assert_eq!(
        full.body["results"].as_array().unwrap().iter().filter(|result| result["allowed"] == true).count(),
        100
    );
    for body in [many(1_001), many(0), json!({}), json!({"checks": 1}), json!({"checks": [], "more": 1})] {
        let answer = client.post("/v1/rate-limit/batch-check", &body).await;
        assert_eq!((answer.status, answer.error().0), (StatusCode::BAD_REQUEST, "INVALID_INPUT"));
    }
}

#[tokio::test]
async fn retry_with_an_idempotency_key_is_not_charged() {
    let client = Client::new(RULES);
    let body = |cost: u64| json!({"user_id": "u", "endpoint": "/i", "cost": cost, "idempotency_key": "k1"});
    let first = client.check(&body(1)).await;
    assert_eq!(first.body.get("replayed"), None);
    let again = client.check(&body(1)).await;
    assert_eq!((&again.body["replayed"], &again.body["remaining"]), (&json!(true), &json!(99)));
    let headers = [("content-type", "application/json"), ("x-idempotency-key", "k1")];
    let by_header = client
        .send(
            Method::POST,
            "/v1/rate-limit/check",
            &headers,
            json!({"user_id": "u", "endpoint": "/i"}).to_string(),
        )
        .await;
    assert_eq!(by_header.body["replayed"], true, "the header is the same key");
    let other_body = client.check(&body(2)).await;
    assert_eq!(
        (other_body.status, other_body.error()),
        (StatusCode::UNPROCESSABLE_ENTITY, ("IDEMPOTENCY_MISMATCH", "idempotency_key"))
    );
    let spelled_out =
        json!({"dimension": "user", "identifier": "u", "endpoint": "/i", "idempotency_key": "k1"});
    assert_eq!(client.check(&spelled_out).await.body["replayed"], true, "another spelling of the same user");
    let other_user = client.check(&json!({"user_id": "v", "endpoint": "/i", "idempotency_key": "k1"})).await;
    assert_eq!(
        (other_user.status, other_user.body.get("replayed")),
        (StatusCode::OK, None),
        "another user's key is another key"
    );
    let disagreeing = client
        .send(
            Method::POST,
            "/v1/rate-limit/check",
            &[("content-type", "application/json"), ("x-idempotency-key", "k2")],
            body(1).to_string(),
        )
        .await;
    assert_eq!(disagreeing.error(), ("INVALID_INPUT", "idempotency_key"));
    client.clock.advance(Duration::from_secs(300));
    assert_eq!(client.check(&body(2)).await.body.get("replayed"), None, "the key expires after five minutes");
}

#[tokio::test]
async fn batch_under_one_idempotency_key_is_charged_once() {
    let client = Client::new(RULES);
    let batch = |user: &str| {
        let item = |cost: u64| json!({"user_id": user, "endpoint": "/b", "cost": cost});
        json!({"checks": [item(60), item(60)], "idempotency_key": "batch"})
    };
    let path = "/v1/rate-limit/batch-check";
    let allowed = |answer: &Answer| {
        let results = answer.body["results"].as_array().unwrap();
        results
            .iter()
            .map(|result| (result["allowed"] == true, result["replayed"] == true))
            .collect::<Vec<_>>()
    };
    assert_eq!(allowed(&client.post(path, &batch("u")).await), [(true, false), (false, false)]);
    client.clock.advance(Duration::from_secs(2));
    assert_eq!(
        allowed(&client.post(path, &batch("u")).await),
        [(true, true), (true, false)],
        "a denial is decided again"
    );
    let mut changed = batch("u");
    changed["checks"][0]["cost"] = json!(61);
    let mismatch = client.post(path, &changed).await;
    assert_eq!(
        (mismatch.status, mismatch.error().0),
        (StatusCode::UNPROCESSABLE_ENTITY, "IDEMPOTENCY_MISMATCH")
    );
    let other = client.post(path, &batch("v")).await;
    assert_eq!(allowed(&other), [(true, false), (false, false)], "another user's batch has a different key");
    let long = json!({"checks": [{"user_id": "w", "endpoint": "/b"}], "idempotency_key": "k".repeat(255)});
    let answer = client.post(path, &long).await;
    assert_eq!(allowed(&answer), [(true, false)], "{}", answer.body);
    let single = json!({"user_id": "u", "endpoint": "/b", "idempotency_key": "batch"});
    assert_eq!(client.check(&single).await.body.get("replayed"), None, "a single check's key is another key");
    let own = json!({"user_id": "x", "endpoint": "/b", "idempotency_key": "own"});
    assert_eq!(client.check(&own).await.status, StatusCode::OK);
    let retried = client.post(path, &json!({"checks": [own.clone(), own]})).await;
    assert_eq!(
        allowed(&retried),
        [(true, true), (true, true)],
        "an item's own key equals the key of a single check"
    );
}

#[tokio::test]
async fn request_ids_are_accepted_or_generated_and_always_echoed() {
    let client = Client::new(RULES);
    for (sent, kept) in [("my-id-1", true), ("has space", false), ("", false)] {
        let answer = client.send(Method::GET, "/healthz", &[("x-request-id", sent)], Body::empty()).await;
        assert_eq!(answer.header("x-request-id") == sent, kept, "{sent}");
        assert!(!answer.header("x-request-id").is_empty());
    }
}

#[tokio::test]
async fn header_families_are_a_setting() {
    let body = json!({"user_id": "u", "endpoint": "/"});
    for (yaml, x_family, ietf) in [
        ("headers: [ietf]", false, true),
        ("headers: [x-ratelimit]", true, false),
        ("headers: []", false, false),
    ] {
        let answer = Client::new(yaml).check(&body).await;
        assert_eq!(answer.headers.contains_key("x-ratelimit-limit"), x_family, "{yaml}");
        assert_eq!(answer.headers.contains_key("ratelimit"), ietf, "{yaml}");
    }
}

#[tokio::test]
async fn shadow_rule_is_not_visible_to_clients() {
    let rules = "rules: [{name: watching, dimension: user, mode: shadow, algorithm: fixed_window, limit: 1, window: 60s}]";
    let body = json!({"user_id": "u", "endpoint": "/"});
    let with_default = Client::new(rules);
    with_default.check(&body).await;
    let answer = with_default.check(&body).await;
    assert_eq!((&answer.body["rule"], answer.header("x-ratelimit-state")), (&json!("default"), ""));
    assert_eq!(answer.header("ratelimit-policy"), "\"default\";q=100;w=10");
    let alone = Client::new(&format!("default_limit: none\n{rules}"));
    alone.check(&body).await;
    let answer = alone.check(&body).await;
    assert_eq!(
        (answer.status, &answer.body["rule"], &answer.body["limit"]),
        (StatusCode::OK, &Value::Null, &Value::Null)
    );
    assert_eq!(answer.header("x-ratelimit-limit"), "");
    assert_eq!(
        answer.body["limits"][0]["reason"], "LIMIT_EXCEEDED",
        "the result of the shadow limit is still returned"
    );
}

#[tokio::test]
async fn headers_stay_structured_fields_at_the_extremes() {
    let plan = "plans: {extreme: [{algorithm: token_bucket, limit: 1, window: 366d, burst: 1000000000}]}\n";
    let client = Client::new(plan);
    let answer = client.check(&json!({"user_id": "u", "endpoint": "/z", "plans": ["extreme"]})).await;
    assert_eq!(answer.header("ratelimit-policy"), "\"extreme\";q=1000000000;w=999999999999999");
}

#[tokio::test]
async fn ad_hoc_limits_are_bounded_and_errors_name_the_field() {
    let client = Client::new(RULES);
    let limit = |fields: Value| {
        let mut body = json!({"user_id": "u", "endpoint": "/z", "limit": 5, "window_seconds": 60});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let rows = [
        (json!({"window_seconds": 86_401}), "window_seconds", "must be at most 86400s (ad_hoc.max_window)"),
        (
            json!({"burst_capacity": 7_201}),
            "burst_capacity",
            "must refill within 86400s at the limit's rate (ad_hoc.max_window)",
        ),
        (
            json!({"limit": 10_001, "strategy": "sliding_log"}),
            "limit",
            "must be between 1 and 10000, got 10001",
        ),
    ];
    for (fields, field, reason) in rows {
        let body = limit(fields);
        let details = json!({"field": field, "reason": reason});
        let rejected = client.check(&body).await;
        assert_eq!(
            (rejected.status, &rejected.body["error"]["details"]),
            (StatusCode::BAD_REQUEST, &details)
        );
        let batch = client.post("/v1/rate-limit/batch-check", &json!({"checks": [body]})).await;
        assert_eq!(batch.body["results"][0]["error"]["details"], details);
    }
    for fields in [
        json!({"window_seconds": 86_400}),
        json!({"burst_capacity": 7_200}),
        json!({"limit": 10_000, "strategy": "sliding_log"}),
    ] {
        assert_eq!(client.check(&limit(fields)).await.status, StatusCode::OK);
    }
    let client = Client::new(&format!("{RULES}ad_hoc: {{max_window: 366d}}\n"));
    assert_eq!(client.check(&limit(json!({"window_seconds": 31_622_400}))).await.status, StatusCode::OK);
}

#[tokio::test]
async fn ad_hoc_limits_can_require_a_key_or_be_rejected() {
    let body = json!({"user_id": "u", "endpoint": "/z", "limit": 5, "window_seconds": 60});
    let plain = json!({"user_id": "u", "endpoint": "/z"});
    let batch = json!({"checks": [body, plain]}).to_string();
    let with_key = [("content-type", "application/json"), ("x-api-key", "secret")];
    let status = "/v1/rate-limit/status/u/z?limit=5&window_seconds=60";
    for (allow, keyless, keyed, code) in [
        ("with_key", 401, 200, "UNAUTHENTICATED"),
        ("never", 403, 403, "FORBIDDEN"),
        ("always", 200, 200, ""),
    ] {
        let client = Client::new(&format!("{RULES}ad_hoc: {{allow: {allow}}}\n"));
        let rejected = client.check(&body).await;
        assert_eq!(rejected.status, keyless, "{allow}");
        if keyless != 200 {
            assert_eq!(rejected.body["error"]["code"], code);
            assert_eq!(rejected.body["error"]["details"]["field"], "limit");
        }
        assert_eq!(client.get(status).await.status, keyless, "{allow}");
        assert_eq!(client.check(&plain).await.status, 200, "{allow}");
        let sent = client.send(Method::POST, "/v1/rate-limit/check", &with_key, body.to_string()).await;
        assert_eq!(sent.status, keyed, "{allow}");
        let mixed = client.post("/v1/rate-limit/batch-check", &serde_json::from_str(&batch).unwrap()).await;
        assert_eq!(mixed.status, 200);
        assert_eq!(
            mixed.body["results"][0]["error"].is_object(),
            keyless != 200,
            "{allow}: {:?}",
            mixed.body
        );
        assert_eq!(mixed.body["results"][1]["allowed"], true, "{allow}");
    }
}

#[tokio::test]
async fn health_and_readiness_are_served() {
    let client = Client::new(RULES);
    for (path, status) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let answer = client.send(Method::GET, path, &[], Body::empty()).await;
        assert_eq!((answer.status, &answer.body), (StatusCode::OK, &json!({"status": status})));
    }
}
