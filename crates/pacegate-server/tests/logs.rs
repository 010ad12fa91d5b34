//! The decision log, usage and the audit trail over REST.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::Client;
use hyper::Method;
use serde_json::{Value, json};

const RULES: &str = "rules: [{name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1h}]";

async fn check(client: &Client, user_id: &str, endpoint: &str) -> u16 {
    client.check(&json!({"user_id": user_id, "endpoint": endpoint, "method": "GET"})).await.status.as_u16()
}

async fn get(client: &Client, path: &str) -> Value {
    let answer = client.admin(Method::GET, path, Value::Null).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn decisions_are_logged_and_found() {
    let client = Client::managed(&format!("{RULES}\ndecision_log: {{rows_per_second: 1000}}")).await;
    for (user, expected) in [("u1", 200), ("u1", 200), ("u1", 429), ("u2", 200)] {
        assert_eq!(check(&client, user, "/orders").await, expected);
    }
    let batch = json!({"checks": [{"user_id": "u3", "endpoint": "/batch"}]});
    assert_eq!(client.post("/v1/rate-limit/batch-check", &batch).await.status, 200);
    client.live().finish_logs().await;
    let all = get(&client, "/api/v1/logs").await;
    let decisions = all["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 5);
    let newest = &decisions[0];
    assert_eq!((&newest["user_id"], &newest["endpoint"]), (&json!("u3"), &json!("/batch")));
    let denied = get(&client, "/api/v1/logs?allowed=false").await;
    let denied = &denied["decisions"][0];
    assert_eq!(denied["user_id"], "u1");
    assert_eq!((&denied["rule"], &denied["reason"]), (&json!("few"), &json!("LIMIT_EXCEEDED")));
    assert_eq!((&denied["limit"], &denied["remaining"]), (&json!(2), &json!(0)));
    assert_eq!((&denied["method"], &denied["cost"]), (&json!("GET"), &json!(1)));
    assert!(denied["request_id"].as_str().unwrap().starts_with("req_"));
    for (query, count) in [
        ("user_id=u1", 3),
        ("endpoint=/orders", 4),
        ("endpoint=%2Forders&user_id=u2", 1),
        ("since=2020-01-01T00:00:00Z", 5),
        ("since=4102444800", 0),
        ("user_id=unknown", 0),
    ] {
        let found = get(&client, &format!("/api/v1/logs?{query}")).await;
        assert_eq!(found["decisions"].as_array().unwrap().len(), count, "{query}");
    }
    let mut cursor = String::new();
    let mut seen = 0;
    loop {
        let page = get(&client, &format!("/api/v1/logs?limit=2&cursor={cursor}")).await;
        seen += page["decisions"].as_array().unwrap().len();
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, 5);
    for bad in ["since=yesterday", "allowed=maybe", "allowed=", "limit=100000", "cursor=x", "nonsense=1"] {
        let answer = client.admin(Method::GET, &format!("/api/v1/logs?{bad}"), Value::Null).await;
        assert_eq!(answer.error(), ("INVALID_INPUT", bad.split('=').next().unwrap()));
    }
}

#[tokio::test]
async fn usage_is_summed() {
    let client = Client::managed(RULES).await;
    for _ in 0..5 {
        check(&client, "u1", "/").await;
    }
    check(&client, "u2", "/").await;
    client.live().finish_logs().await;
    let usage = get(&client, "/api/v1/usage").await;
    let shown: Vec<Value> = usage["usage"].as_array().unwrap().clone();
    let of = |identifier: &str| shown.iter().find(|one| one["identifier"] == identifier).unwrap();
    assert_eq!((&of("u1")["allowed"], &of("u1")["blocked"]), (&json!(2), &json!(3)));
    assert_eq!(of("u2")["allowed"], 1);
    assert_eq!(shown[0]["identifier"], "u1", "most requests first");
    let hours = get(&client, "/api/v1/usage?since=2020-01-01T00:00:00Z&identifier=u1").await;
    assert_eq!(hours["usage"].as_array().unwrap().len(), 1);
    assert_eq!(hours["usage"][0]["blocked"], 3);
}

#[tokio::test]
async fn decisions_above_the_bounds_are_dropped_and_counted() {
    let nothing = Client::managed("decision_log: {allowed: 0, denied: 0}").await;
    check(&nothing, "u1", "/").await;
    nothing.live().finish_logs().await;
    assert_eq!(get(&nothing, "/api/v1/logs").await["decisions"], json!([]));
    assert_eq!(
        get(&nothing, "/admin/status").await["logDropped"],
        0,
        "decisions that are not sampled do not count as dropped"
    );

    // Half of the queue is reserved for denials.
    let small = Client::managed("decision_log: {queue: 6, rows_per_second: 1000}").await;
    for _ in 0..10 {
        check(&small, "u1", "/").await;
    }
    assert_eq!(get(&small, "/admin/status").await["logDropped"], 7);
    small.live().finish_logs().await;
    assert_eq!(get(&small, "/api/v1/logs").await["decisions"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn audit_trail_records_actor_and_change() {
    let client = Client::managed("").await;
    let rule =
        json!({"name": "a", "dimension": "user", "algorithm": "gcra", "limit": 5, "window_seconds": 60});
    let made = client.admin(Method::POST, "/api/v1/rules", rule).await;
    let id = made.body["rule_id"].as_str().unwrap();
    client.admin(Method::PUT, "/api/v1/users/u1/tier", json!({"tier": "gold"})).await;
    client.admin(Method::DELETE, &format!("/api/v1/rules/{id}"), Value::Null).await;
    let all = get(&client, "/api/v1/audit").await;
    let records = all["records"].as_array().unwrap();
    let actions: Vec<&str> = records.iter().map(|record| record["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["rule.delete", "user.put", "rule.create"]);
    assert_eq!((&records[0]["before"]["name"], &records[0]["after"]), (&json!("a"), &Value::Null));
    assert_eq!((&records[2]["subject"], &records[2]["actor"]), (&json!(id), &json!("configured")));
    assert_eq!(records[2]["request_id"], made.header("x-request-id"));
    for (query, count) in
        [("user=u1", 1), ("actor=configured", 3), ("actor=unknown", 0), ("since=4102444800", 0)]
    {
        let found = get(&client, &format!("/api/v1/audit?{query}")).await;
        assert_eq!(found["records"].as_array().unwrap().len(), count, "{query}");
    }
    let page = get(&client, "/api/v1/audit?limit=2").await;
    let rest = get(&client, &format!("/api/v1/audit?cursor={}", page["next_cursor"].as_str().unwrap())).await;
    assert_eq!(rest["records"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn allowed_requests_do_not_use_up_the_rows_of_denials() {
    let client = Client::managed(
        "rules: [{name: few, dimension: user, algorithm: fixed_window, limit: 200, window: 1h}]",
    )
    .await;
    for _ in 0..200 {
        assert_eq!(check(&client, "u1", "/orders").await, 200);
    }
    for _ in 0..5 {
        assert_eq!(check(&client, "u1", "/orders").await, 429);
    }
    client.live().finish_logs().await;
    let denied = get(&client, "/api/v1/logs?allowed=false").await;
    assert_eq!(denied["decisions"].as_array().unwrap().len(), 5);
    let allowed = get(&client, "/api/v1/logs?allowed=true").await;
    assert!(allowed["decisions"].as_array().unwrap().len() < 200, "allowed requests have their own budget");
}
