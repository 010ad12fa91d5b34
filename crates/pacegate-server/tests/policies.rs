//! Policies apply to their keys in every dimension, over REST and in metrics.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::Client;
use hyper::Method;
use serde_json::{Value, json};

async fn with_policy(yaml: &str, key: &str) -> Client {
    let client = Client::managed(yaml).await;
    let policy = json!({"key": key, "type": "FIXED_WINDOW", "capacity": 10, "windowSeconds": 60});
    let made = client.admin(Method::POST, "/admin/policies", policy).await;
    assert_eq!(made.status, 201, "{}", made.body);
    client
}

#[tokio::test]
async fn one_counter_of_a_policy_is_shared_by_all_dimensions() {
    let client = with_policy("", "10.0.0.1").await;
    let identities = [
        json!({"dimension": "key", "identifier": "10.0.0.1"}),
        json!({"user_id": "10.0.0.1"}),
        json!({"dimension": "ip", "identifier": "10.0.0.1"}),
        json!({"dimension": "apikey", "identifier": "10.0.0.1"}),
        json!({"keys": {"user": "10.0.0.1", "ip": "10.0.0.1", "tenant": "t"}}),
    ];
    for (used, identity) in identities.into_iter().enumerate() {
        let mut body = identity.clone();
        body["endpoint"] = json!("/anything");
        let answer = client.check(&body).await;
        let expected = (&json!("policy"), &json!(9 - used));
        assert_eq!(
            (&answer.body["rule"], &answer.body["remaining"]),
            expected,
            "{identity}: {}",
            answer.body
        );
    }
    let tenant =
        client.check(&json!({"dimension": "tenant", "identifier": "10.0.0.1", "endpoint": "/"})).await;
    assert_eq!(tenant.body["rule"], "default", "policies do not apply in this dimension");
    let metrics = client.admin(Method::GET, "/admin/metrics/10.0.0.1", Value::Null).await;
    assert_eq!(metrics.body["windowRequestCount"], 5);
    assert_eq!(client.admin(Method::POST, "/admin/reset/10.0.0.1", Value::Null).await.status, 200);
    let status = client.get("/v1/rate-limit/status/10.0.0.1/x").await;
    assert_eq!((&status.body["rule"], &status.body["remaining"]), (&json!("policy"), &json!(10)));
}

#[tokio::test]
async fn reset_of_a_key_without_a_policy_clears_it_in_all_dimensions() {
    let client = Client::managed("default_limit: {algorithm: fixed_window, limit: 1, window: 1d}").await;
    for (key, dimensions) in [("u1", &["key", "user", "apikey"][..]), ("10.0.0.1", &["key", "user", "ip"])] {
        let checks =
            dimensions.iter().map(|name| json!({"dimension": name, "identifier": key, "endpoint": "/"}));
        let checks: Vec<Value> = checks.collect();
        for check in &checks {
            assert_eq!(client.check(check).await.status, 200, "{check}");
            assert_eq!(client.check(check).await.status, 429, "{check}");
        }
        let reset = client.admin(Method::POST, &format!("/admin/reset/{key}"), Value::Null).await;
        assert_eq!(reset.status, 200, "{}", reset.body);
        for check in &checks {
            assert_eq!(client.check(check).await.status, 200, "{check} was reset");
        }
    }
}

#[tokio::test]
async fn dimensions_of_policies_are_a_setting() {
    let client = with_policy("policies: {dimensions: [tenant]}", "t1").await;
    for (dimension, rule) in [("tenant", "policy"), ("key", "policy"), ("user", "default")] {
        let body = json!({"dimension": dimension, "identifier": "t1", "endpoint": "/"});
        assert_eq!(client.check(&body).await.body["rule"], rule, "{dimension}");
    }
}

#[tokio::test]
async fn policy_is_listed_among_the_limits_of_its_user() {
    let client = with_policy("", "u1").await;
    assert_eq!(client.check(&json!({"user_id": "u1", "endpoint": "/"})).await.body["rule"], "policy");
    let limits = client.admin(Method::GET, "/api/v1/users/u1/limits", Value::Null).await;
    let limits = limits.body["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 1, "the default limit does not apply: {limits:?}");
    assert_eq!((&limits[0]["rule"], &limits[0]["remaining"]), (&json!("policy"), &json!(9)));
    let explain = async |body: Value| {
        let explained = client.admin(Method::POST, "/api/v1/explain", body).await;
        explained.body["rules"][0]["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!(explain(json!({"user_id": "u1", "endpoint": "/"})).await, "applies");
    assert_eq!(explain(json!({"user_id": "u2", "endpoint": "/"})).await, "other_identifier");
    let tenant = json!({"dimension": "tenant", "identifier": "u1", "endpoint": "/"});
    assert_eq!(explain(tenant).await, "other_dimension");
}

#[tokio::test]
async fn each_policy_has_its_own_label() {
    let client = with_policy("", "user-123").await;
    for key in ["user-456", &"x".repeat(1_000)] {
        let policy = json!({"key": key, "type": "FIXED_WINDOW", "capacity": 5, "windowSeconds": 60});
        assert_eq!(client.admin(Method::POST, "/admin/policies", policy).await.status, 201);
        assert_eq!(client.check(&json!({"user_id": key, "endpoint": "/"})).await.status, 200);
    }
    for user in ["user-123", "user-123", "another-user"] {
        assert_eq!(client.check(&json!({"user_id": user, "endpoint": "/"})).await.status, 200);
    }
    let page = client.get("/metrics").await;
    let page = page.body.as_str().unwrap();
    let value = |start: &str| {
        let line = page.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{start}: {page}")).rsplit(' ').next().unwrap().to_owned()
    };
    let allowed = |rule: &str| value(&format!("pacegate_allowed_total{{rule=\"{rule}\""));
    assert_eq!((allowed("policy:user-123"), allowed("policy:user-456")), ("2".to_owned(), "1".to_owned()));
    assert_eq!(value("pacegate_tokens_remaining{policy=\"policy:user-123\"}"), "8");
    assert_eq!(value("pacegate_tokens_remaining{policy=\"policy:user-456\"}"), "4");
    assert!(!page.contains("another-user"), "callers never become labels");
    assert!(!page.contains("xxxx") && page.contains("rule=\"policy:"), "long keys are hashed");
}

#[tokio::test]
async fn logs_name_the_identity_that_a_policy_counts() {
    let client = with_policy("decision_log: {rows_per_second: 1000}", "u1").await;
    let body = json!({"keys": {"ip": "10.0.0.1", "user": "u1"}, "endpoint": "/"});
    assert_eq!(client.check(&body).await.body["rule"], "policy");
    client.live().finish_logs().await;
    let logs = client.admin(Method::GET, "/api/v1/logs", Value::Null).await;
    let decision = &logs.body["decisions"][0];
    assert_eq!(
        (&decision["dimension"], &decision["identifier"]),
        (&json!("user"), &json!("u1")),
        "{decision}"
    );
}

/// Returns all rows of `/admin/metrics`, in pages of `limit`: key, dimension, remaining tokens and
/// allowed requests.
async fn usage(client: &Client, limit: usize) -> Vec<(String, String, Value, Value)> {
    let mut path = format!("/admin/metrics?limit={limit}");
    let mut rows = Vec::new();
    loop {
        let page = client.admin(Method::GET, &path, Value::Null).await;
        assert_eq!(page.status, 200, "{}", page.body);
        let shown = page.body.as_array().unwrap();
        assert!(shown.len() <= limit, "{}", page.body);
        rows.extend(shown.iter().map(|row| {
            let text = |field: &str| row[field].as_str().unwrap().to_owned();
            (text("key"), text("dimension"), row["currentTokens"].clone(), row["allowed"].clone())
        }));
        match page.header("link").split(['<', '>']).nth(1) {
            Some(next) => path = format!("{next}&limit={limit}"),
            None => break,
        }
    }
    rows.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    rows
}

#[tokio::test]
async fn metrics_list_every_key_that_was_used() {
    let rules = "rules: [{name: per-user, dimension: user, algorithm: fixed_window, limit: 20, window: 1h}]";
    let client = with_policy(rules, "user-123").await;
    let policy = json!({"key": "idle", "type": "FIXED_WINDOW", "capacity": 5, "windowSeconds": 60});
    assert_eq!(client.admin(Method::POST, "/admin/policies", policy).await.status, 201);
    for body in [
        json!({"user_id": "user-123", "endpoint": "/"}),
        json!({"user_id": "u1", "endpoint": "/"}),
        json!({"user_id": "u1", "endpoint": "/other"}),
        json!({"user_id": "u2", "endpoint": "/"}),
        json!({"dimension": "ip", "identifier": "10.0.0.1", "endpoint": "/"}),
        json!({"dimension": "tenant", "identifier": "user-123", "endpoint": "/"}),
    ] {
        assert_eq!(client.check(&body).await.status, 200);
    }
    client.live().finish_logs().await;
    let row = |key: &str, dimension: &str, tokens: Value, allowed: Value| {
        (key.to_owned(), dimension.to_owned(), tokens, allowed)
    };
    let expected = [
        // Every endpoint has its own counter of the default limit.
        row("10.0.0.1", "ip", Value::Null, json!(1)),
        row("idle", "key", json!(5), Value::Null),
        row("u1", "user", json!(18), json!(2)),
        row("u2", "user", json!(19), json!(1)),
        row("user-123", "key", json!(9), Value::Null),
        row("user-123", "tenant", Value::Null, json!(1)),
    ];
    for limit in [1, 2, 3, 5, 6, 100] {
        assert_eq!(usage(&client, limit).await, expected, "in pages of {limit}");
    }
    for (key, dimension, tokens) in
        [("u1", "user", json!(18)), ("user-123", "user", json!(9)), ("user-123", "key", json!(9))]
    {
        let path = format!("/admin/metrics/{key}?dimension={dimension}");
        let row = client.admin(Method::GET, &path, Value::Null).await;
        assert_eq!(
            (&row.body["dimension"], &row.body["currentTokens"]),
            (&json!(dimension), &tokens),
            "{key}"
        );
    }
    for bad in ["/u1?dimension=a%20b", "/u1?nonsense=1"] {
        let answer = client.admin(Method::GET, &format!("/admin/metrics{bad}"), Value::Null).await;
        assert_eq!(answer.status, 400, "{bad}");
    }
    for bad in ["limit=0", "limit=1001", "cursor=x", "cursor=used-%27", "since=1"] {
        let answer = client.admin(Method::GET, &format!("/admin/metrics?{bad}"), Value::Null).await;
        assert_eq!(answer.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn keys_with_a_policy_of_the_file_are_listed_when_they_were_used() {
    let rules = "rules: [{name: policy, dimension: key, identifier: k, algorithm: fixed_window, limit: 9, window: 60s}]";
    let client = Client::managed(rules).await;
    assert_eq!(client.check(&json!({"user_id": "k", "endpoint": "/"})).await.body["rule"], "policy");
    client.live().finish_logs().await;
    assert_eq!(usage(&client, 10).await, [("k".to_owned(), "user".to_owned(), json!(8), json!(1))]);
}

#[tokio::test]
async fn window_of_the_default_policy_is_a_minute() {
    let client = Client::managed("").await;
    let metrics = client.admin(Method::GET, "/admin/metrics/unknown", Value::Null).await;
    assert_eq!(
        (&metrics.body["algorithm"], &metrics.body["capacity"], &metrics.body["windowSeconds"]),
        (&json!("TOKEN_BUCKET"), &json!(100), &json!(60))
    );
}
