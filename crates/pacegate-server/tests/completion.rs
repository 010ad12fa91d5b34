//! Partial checks: ad-hoc limits are completed from the default limit, and responses use the
//! client's names.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::Client;
use hyper::Method;
use serde_json::{Value, json};

const BUCKET: &str = "default_limit: {algorithm: token_bucket, limit: 10, window: 1s, burst: 100}";
const WINDOW: &str = "default_limit: {algorithm: fixed_window, limit: 500, window: 1h}";

/// Returns the fields of the binding limit: strategy, quota, window and capacity.
fn numbers(body: &Value) -> (&str, u64, u64, u64) {
    let limit = &body["limits"][0];
    assert_eq!((&limit["rule"], &body["rule"]), (&json!("ad-hoc"), &json!("ad-hoc")), "{body}");
    let number = |field: &str| limit[field].as_u64().unwrap();
    (limit["strategy"].as_str().unwrap(), number("quota"), number("window_seconds"), number("limit"))
}

#[tokio::test]
async fn missing_fields_of_a_limit_come_from_the_default_limit() {
    let rows = [
        (BUCKET, json!({"strategy": "fixed_window"}), ("fixed_window", 100, 60, 100)),
        (BUCKET, json!({"strategy": "sliding_counter"}), ("sliding_counter", 100, 60, 100)),
        (BUCKET, json!({"strategy": "gcra"}), ("gcra", 10, 1, 100)),
        (BUCKET, json!({"limit": 5}), ("token_bucket", 5, 1, 5)),
        (BUCKET, json!({"window_seconds": 30}), ("token_bucket", 10, 30, 100)),
        (BUCKET, json!({"limit": 5, "strategy": "fixed_window"}), ("fixed_window", 5, 60, 5)),
        (BUCKET, json!({"limit": 5, "window_seconds": 30}), ("token_bucket", 5, 30, 5)),
        (WINDOW, json!({"strategy": "sliding_log"}), ("sliding_log", 500, 3_600, 500)),
        (WINDOW, json!({"strategy": "token_bucket"}), ("token_bucket", 500, 3_600, 500)),
        (WINDOW, json!({"limit": 5}), ("fixed_window", 5, 3_600, 5)),
        ("default_limit: none", json!({"strategy": "fixed_window"}), ("fixed_window", 100, 60, 100)),
        ("default_limit: none", json!({"limit": 5}), ("token_bucket", 5, 1, 5)),
    ];
    for (yaml, sent, expected) in rows {
        let client = Client::new(yaml);
        let mut body = sent.clone();
        (body["user_id"], body["endpoint"]) = (json!("u"), json!("/x"));
        let answer = client.check(&body).await;
        assert_eq!(answer.status, 200, "{sent}: {}", answer.body);
        assert_eq!(numbers(&answer.body), expected, "{sent} beside {yaml}");
        let batch = client.post("/v1/rate-limit/batch-check", &json!({"checks": [body]})).await;
        assert_eq!(numbers(&batch.body["results"][0]), expected, "{sent} in a batch");
        let query: Vec<String> = sent
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_string().trim_matches('"')))
            .collect();
        let status = client.get(&format!("/v1/rate-limit/status/u/x?{}", query.join("&"))).await;
        assert_eq!(numbers(&status.body), expected, "{sent} as a status");
        assert_eq!(status.body["remaining"], expected.3 - 2, "the same counter");
    }
}

#[tokio::test]
async fn sliding_window_alias_is_used_in_responses() {
    let client = Client::new("default_limit: none");
    for (requested, answered) in [
        ("sliding_window", "sliding_window"),
        ("SLIDING_WINDOW", "sliding_window"),
        ("sliding_log", "sliding_log"),
        ("fixed_window", "fixed_window"),
    ] {
        let body = json!({"user_id": "u", "endpoint": "/x", "strategy": requested});
        let answer = client.check(&body).await;
        assert_eq!(
            (&answer.body["strategy"], answer.header("x-ratelimit-strategy")),
            (&json!(answered), answered)
        );
        assert_eq!(answer.body["limits"][0]["strategy"], answered);
        let batch = client.post("/v1/rate-limit/batch-check", &json!({"checks": [body]})).await;
        assert_eq!(batch.body["results"][0]["strategy"], answered);
        let status = client.get(&format!("/v1/rate-limit/status/u/x?strategy={requested}")).await;
        assert_eq!(
            (&status.body["strategy"], status.header("x-ratelimit-strategy")),
            (&json!(answered), answered)
        );
    }
    let answer = client.check(&json!({"user_id": "u", "endpoint": "/x", "strategy": "sliding_window"})).await;
    assert_eq!(answer.body["remaining"], 93, "both names share a counter: {}", answer.body);
}

#[tokio::test]
async fn sliding_window_alias_is_used_in_responses_to_changes() {
    let client = Client::managed("default_limit: none").await;
    for requested in ["sliding_window", "sliding_log"] {
        let limit = |name: &str| json!({name: requested, "limit": 5, "window_seconds": 60});
        let mut config = limit("strategy");
        (config["user_id"], config["endpoint"]) = (json!("u"), json!("/x"));
        let answer = client.admin(Method::PUT, "/v1/rate-limit/config", config).await;
        assert_eq!(answer.body["strategy"], requested);
        let plan = json!({"limits": [limit("algorithm")]});
        let answer = client.admin(Method::PUT, "/api/v1/plans/p", plan).await;
        assert_eq!(answer.body["limits"][0]["algorithm"], requested);
        let mut rule = limit("algorithm");
        (rule["name"], rule["dimension"]) = (json!(requested), json!("user"));
        let made = client.admin(Method::POST, "/api/v1/rules", rule.clone()).await;
        assert_eq!(made.body["algorithm"], requested);
        let path = format!("/api/v1/rules/{}", made.body["rule_id"].as_str().unwrap());
        assert_eq!(client.admin(Method::PUT, &path, rule).await.body["algorithm"], requested);
        assert_eq!(client.admin(Method::GET, &path, Value::Null).await.body["algorithm"], "sliding_log");
    }
}

#[tokio::test]
async fn tier_of_a_check_overrides_the_catalog() {
    let rules = r#"
rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 10, window: 60s}
  - {name: per-user, dimension: user, tier: silver, algorithm: fixed_window, limit: 20, window: 60s}
  - {name: per-user, dimension: user, tier: gold, algorithm: fixed_window, limit: 30, window: 60s}
"#;
    let client = Client::managed(rules).await;
    let silver = json!({"tier": "silver"});
    assert_eq!(client.admin(Method::PUT, "/api/v1/users/u/tier", silver).await.status, 200);
    let rows = [(json!(null), 20), (json!("gold"), 30), (json!("silver"), 20), (json!("lead"), 10)];
    for (tier, limit) in &rows {
        let body = json!({"user_id": "u", "endpoint": "/x", "tier": tier});
        assert_eq!(client.check(&body).await.body["limit"], *limit, "{tier}");
    }
    for (tier, limit) in &rows {
        let query = tier.as_str().map(|tier| format!("?tier={tier}")).unwrap_or_default();
        let status = client.get(&format!("/v1/rate-limit/status/u/x{query}")).await;
        assert_eq!(status.body["limit"], *limit, "{tier}");
    }
    let explained = json!({"user_id": "u", "endpoint": "/x", "tier": "gold"});
    let explained = client.admin(Method::POST, "/api/v1/explain", explained).await;
    assert_eq!((&explained.body["tier"], &explained.body["decision"]["limit"]), (&json!("gold"), &json!(30)));
    let first = json!({"user_id": "u", "endpoint": "/x", "tier": "gold", "idempotency_key": "k"});
    assert_eq!(client.check(&first).await.status, 200);
    let other = json!({"user_id": "u", "endpoint": "/x", "tier": "silver", "idempotency_key": "k"});
    assert_eq!(client.check(&other).await.status, 422, "another tier is another request");
}

#[tokio::test]
async fn idempotency_key_is_accepted_in_either_header() {
    let client = Client::new(BUCKET);
    let body = json!({"user_id": "u", "endpoint": "/x"}).to_string();
    let check = async |headers: &[(&str, &str)], body: &str| {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        client.send(Method::POST, "/v1/rate-limit/check", &all, body.to_owned()).await
    };
    assert_eq!(check(&[("idempotency-key", "k")], &body).await.body["remaining"], 99);
    for header in ["Idempotency-Key", "X-Idempotency-Key"] {
        let again = check(&[(header, "k")], &body).await;
        assert_eq!(
            (&again.body["replayed"], &again.body["remaining"]),
            (&json!(true), &json!(99)),
            "{header}"
        );
    }
    let both = check(&[("idempotency-key", "k"), ("x-idempotency-key", "k")], &body).await;
    assert_eq!(both.body["replayed"], true);
    let differ = check(&[("idempotency-key", "k"), ("x-idempotency-key", "other")], &body).await;
    assert_eq!(differ.error(), ("INVALID_INPUT", "X-Idempotency-Key"));
    let with_key = json!({"user_id": "u", "endpoint": "/x", "idempotency_key": "other"}).to_string();
    let differ = check(&[("idempotency-key", "k")], &with_key).await;
    assert_eq!(differ.error(), ("INVALID_INPUT", "idempotency_key"));
    let batch = json!({"checks": [{"user_id": "u", "endpoint": "/x"}]}).to_string();
    for replayed in [json!(null), json!(true)] {
        let headers = [("content-type", "application/json"), ("idempotency-key", "b")];
        let answer = client.send(Method::POST, "/v1/rate-limit/batch-check", &headers, batch.clone()).await;
        assert_eq!(answer.body["results"][0]["replayed"], replayed);
    }
}
