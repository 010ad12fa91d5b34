//! A response to `GET` can be edited and sent back by `PUT`: rules, plans, policies, users,
//! configs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::Client;
use hyper::Method;
use serde_json::{Value, json};

const ALGORITHMS: [(&str, bool); 7] = [
    ("token_bucket", true),
    ("leaky_bucket", true),
    ("gcra", true),
    ("fixed_window", false),
    ("sliding_log", false),
    ("sliding_window", false),
    ("sliding_counter", false),
];

/// Returns the fields that stay the same if nothing is edited.
fn without_version(mut body: Value) -> Value {
    for field in ["version", "updated_at"] {
        body.as_object_mut().unwrap().remove(field);
    }
    body
}

/// Sends back the response to `GET`, first unchanged and then with `edit`. Returns the final
/// response.
async fn round_trip(client: &Client, get: &str, put: &str, edit: impl Fn(&mut Value)) -> Value {
    let shown = client.admin(Method::GET, get, Value::Null).await;
    assert_eq!(shown.status, 200, "{}", shown.body);
    let same = client.admin(Method::PUT, put, shown.body.clone()).await;
    assert_eq!(same.status, 200, "{}: {}", shown.body, same.body);
    let again = client.admin(Method::GET, get, Value::Null).await;
    assert_eq!(without_version(again.body.clone()), without_version(shown.body));

    let mut edited = again.body.clone();
    edit(&mut edited);
    let changed = client.admin(Method::PUT, put, edited.clone()).await;
    assert_eq!(changed.status, 200, "{edited}: {}", changed.body);
    let last = client.admin(Method::GET, get, Value::Null).await;
    assert_eq!(without_version(last.body.clone()), without_version(edited));
    last.body
}

/// Asserts that every changed read-only field is rejected by name.
async fn owned_fields(client: &Client, get: &str, put: &str, fields: &[(&str, Value)]) {
    let shown = client.admin(Method::GET, get, Value::Null).await.body;
    for (field, value) in fields {
        assert!(!shown[field].is_null(), "{field} is not shown: {shown}");
        let mut changed = shown.clone();
        changed[field] = value.clone();
        let answer = client.admin(Method::PUT, put, changed).await;
        assert_eq!(answer.status, 400, "{field}: {}", answer.body);
        let named = answer.body["error"]["details"]["field"].as_str();
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(named == Some(*field) || message.contains(field), "{field}: {}", answer.body);
    }
    let after = client.admin(Method::GET, get, Value::Null).await.body;
    assert_eq!(after, shown, "nothing was changed");
}

#[tokio::test]
async fn rule_can_be_edited_and_sent_back() {
    let client = Client::managed("default_limit: none").await;
    for (algorithm, has_burst) in ALGORITHMS {
        let rule = json!({"name": algorithm, "dimension": "user", "algorithm": algorithm, "limit": 5, "window_seconds": 60});
        let made = client.admin(Method::POST, "/api/v1/rules", rule).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let path = format!("/api/v1/rules/{}", made.body["rule_id"].as_str().unwrap());
        let last = round_trip(&client, &path, &path, |rule| rule["limit"] = json!(8)).await;
        assert_eq!(last.get("burst_capacity").is_some(), has_burst, "{last}");
        let owned = [
            ("rule_id", json!("01a1e2df-4db4-72f7-a038-9cd19e1c4e85")),
            ("source", json!("file")),
            ("created_at", json!("2020-01-01T00:00:00Z")),
            ("updated_at", json!("2020-01-01T00:00:00Z")),
        ];
        owned_fields(&client, &path, &path, &owned).await;
    }
    let long = json!({"name": "long", "dimension": "user", "algorithm": "gcra", "limit": 5, "window_seconds": 31_622_399.001});
    let made = client.admin(Method::POST, "/api/v1/rules", long).await;
    let path = format!("/api/v1/rules/{}", made.body["rule_id"].as_str().unwrap());
    round_trip(&client, &path, &path, |rule| rule["window_seconds"] = json!(31_622_398.999)).await;
}

#[tokio::test]
async fn plan_can_be_edited_and_sent_back() {
    let client = Client::managed("default_limit: none").await;
    let limits: Vec<Value> = ALGORITHMS
        .iter()
        .filter(|(algorithm, _)| *algorithm != "sliding_window")
        .map(|(algorithm, _)| json!({"algorithm": algorithm, "limit": 5, "window_seconds": 0.25}))
        .collect();
    let path = "/api/v1/plans/all";
    assert_eq!(client.admin(Method::PUT, path, json!({"limits": limits})).await.status, 201);
    let edit = |plan: &mut Value| {
        plan["limits"].as_array_mut().unwrap().iter_mut().for_each(|limit| limit["limit"] = json!(8));
    };
    let last = round_trip(&client, path, path, edit).await;
    for (limit, (_, has_burst)) in last["limits"].as_array().unwrap().iter().zip(ALGORITHMS) {
        assert_eq!(limit.get("burst_capacity").is_some(), has_burst, "{limit}");
    }
    let owned =
        [("name", json!("other")), ("source", json!("file")), ("updated_at", json!("2020-01-01T00:00:00Z"))];
    owned_fields(&client, path, path, &owned).await;
    let mut stale = last.clone();
    stale["version"] = json!(1);
    assert_eq!(client.admin(Method::PUT, path, stale).await.status, 412, "the body has an earlier version");
}

#[tokio::test]
async fn policy_can_be_edited_and_sent_back() {
    let client = Client::managed("default_limit: none").await;
    for (algorithm, _) in ALGORITHMS {
        let body = json!({"key": algorithm, "type": algorithm.to_uppercase(), "capacity": 100, "refillRate": 10, "windowSeconds": 30});
        let made = client.admin(Method::POST, "/admin/policies", body.clone()).await;
        assert_eq!(made.status, 201, "{}", made.body);
        let kind = if algorithm == "sliding_log" { "SLIDING_WINDOW" } else { body["type"].as_str().unwrap() };
        assert_eq!((&made.body["type"], &made.body["windowSeconds"]), (&json!(kind), &json!(30)));
        let path = format!("/admin/policies/{algorithm}");
        round_trip(&client, &path, &path, |policy| {
            policy["capacity"] = json!(200);
            policy["windowSeconds"] = json!(45);
        })
        .await;
        owned_fields(&client, &path, &path, &[("id", json!(9_999)), ("policyKey", json!("other"))]).await;
    }
}

#[tokio::test]
async fn both_apis_preserve_each_others_fields_of_a_policy() {
    let client = Client::managed("default_limit: none").await;
    let body =
        json!({"key": "k", "type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 30});
    assert_eq!(client.admin(Method::POST, "/admin/policies", body).await.status, 201);
    let list = client.admin(Method::GET, "/api/v1/rules", Value::Null).await;
    let path = format!("/api/v1/rules/{}", list.body["rules"][0]["rule_id"].as_str().unwrap());
    round_trip(&client, &path, &path, |rule| rule["mode"] = json!("shadow")).await;
    let policy = client.admin(Method::GET, "/admin/policies/k", Value::Null).await;
    assert_eq!(policy.body["windowSeconds"], 30, "{}", policy.body);
    round_trip(&client, "/admin/policies/k", "/admin/policies/k", |policy| policy["capacity"] = json!(50))
        .await;
    let rule = client.admin(Method::GET, &path, Value::Null).await;
    assert_eq!((&rule.body["mode"], &rule.body["burst_capacity"]), (&json!("shadow"), &json!(50)));

    let mut slow = rule.body.clone();
    slow["window_seconds"] = json!(60);
    assert_eq!(client.admin(Method::PUT, &path, slow).await.status, 200);
    let policy = client.admin(Method::GET, "/admin/policies/k", Value::Null).await;
    assert_eq!(policy.status, 404, "10 per minute has no refillRate: {}", policy.body);
}

#[tokio::test]
async fn user_can_be_edited_and_sent_back() {
    let client = Client::managed("default_limit: none").await;
    let rule = json!({"name": "per-user", "dimension": "user", "algorithm": "token_bucket", "limit": 5, "window_seconds": 60});
    let made = client.admin(Method::POST, "/api/v1/rules", rule).await;
    let body = json!({"tier": "gold", "custom_limits": {"per-user": {"limit": 7, "window_seconds": 0.5, "burst_capacity": 9}}});
    assert_eq!(client.admin(Method::PUT, "/api/v1/users/u1/tier", body).await.status, 200);
    let (get, put) = ("/api/v1/users/u1", "/api/v1/users/u1/tier");
    let last = round_trip(&client, get, put, |user| user["tier"] = json!("silver")).await;
    let owned = [("user_id", json!("u2")), ("updated_at", json!("2020-01-01T00:00:00Z"))];
    owned_fields(&client, get, put, &owned).await;
    let mut stale = last.clone();
    stale["version"] = json!(1);
    assert_eq!(client.admin(Method::PUT, put, stale).await.status, 412, "the body has an earlier version");

    let path = format!("/api/v1/rules/{}", made.body["rule_id"].as_str().unwrap());
    assert_eq!(client.admin(Method::DELETE, &path, Value::Null).await.status, 204);
    let last = round_trip(&client, get, put, |user| user["tier"] = Value::Null).await;
    assert_eq!(last["custom_limits"]["per-user"]["limit"], 7, "custom limits outlive their rule");
}

#[tokio::test]
async fn config_can_be_edited_and_sent_back() {
    let client = Client::managed("default_limit: none").await;
    for (algorithm, has_burst) in ALGORITHMS {
        let body = json!({"user_id": "u1", "endpoint": format!("/{algorithm}"), "limit": 5, "window_seconds": 60, "strategy": algorithm});
        assert_eq!(client.admin(Method::PUT, "/v1/rate-limit/config", body).await.status, 200);
        let get = format!("/v1/rate-limit/config/u1/{algorithm}");
        let put = "/v1/rate-limit/config";
        let last = round_trip(&client, &get, put, |config| config["limit"] = json!(8)).await;
        assert_eq!(last.get("burst_capacity").is_some(), has_burst, "{last}");
        let owned = [
            ("rule_id", json!("01a1e2df-4db4-72f7-a038-9cd19e1c4e85")),
            ("updated_at", json!("2020-01-01T00:00:00Z")),
        ];
        owned_fields(&client, &get, put, &owned).await;
    }
}
