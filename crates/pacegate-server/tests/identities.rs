//! Limits, overrides and resets of addresses, API keys and other identities.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::Client;
use hyper::Method;
use serde_json::{Value, json};

const RULES: &str = "
default_limit: none
rules:
  - {name: logins, dimension: ip, endpoint: /login, algorithm: fixed_window, limit: 3, window: 1d}
  - {name: logins, dimension: ip, endpoint: /token, algorithm: fixed_window, limit: 30, window: 1d}
  - {name: per-key, dimension: apikey, algorithm: token_bucket, limit: 10, window: 1d, burst: 20}
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 5, window: 1d}
";
const ADDRESS: &str = "/api/v1/identities/ip/203.0.113.9";

async fn check(client: &Client, dimension: &str, identifier: &str, endpoint: &str) -> Value {
    client.check(&json!({"dimension": dimension, "identifier": identifier, "endpoint": endpoint})).await.body
}

#[tokio::test]
async fn address_is_looked_up_overridden_and_reset() {
    let client = Client::managed(RULES).await;
    for _ in 0..4 {
        check(&client, "ip", "203.0.113.9", "/login").await;
    }
    let limits = client.admin(Method::GET, &format!("{ADDRESS}/limits"), Value::Null).await;
    assert_eq!(limits.status, 200, "{}", limits.body);
    assert_eq!(
        (&limits.body["dimension"], &limits.body["identifier"]),
        (&json!("ip"), &json!("203.0.113.9"))
    );
    let first = &limits.body["limits"][0];
    assert_eq!(
        (&first["rule"], &first["why"], &first["current_count"]),
        (&json!("logins"), &json!("anyone"), &json!(3))
    );

    let body = json!({"rule": "logins", "limit": 50, "expires_in_seconds": 600, "reason": "office"});
    let made = client.admin(Method::POST, &format!("{ADDRESS}/override"), body).await;
    assert_eq!(
        (made.status.as_u16(), &made.body["identifier"]),
        (201, &json!("203.0.113.9")),
        "{}",
        made.body
    );
    let raised = check(&client, "ip", "203.0.113.9", "/login").await;
    assert_eq!((&raised["limit"], &raised["remaining"]), (&json!(50), &json!(46)), "current usage is kept");
    assert_eq!(
        check(&client, "ip", "203.0.113.8", "/login").await["limit"],
        3,
        "other addresses are unaffected"
    );
    let limits = client.admin(Method::GET, &format!("{ADDRESS}/limits"), Value::Null).await;
    assert_eq!(limits.body["limits"][0]["why"], "override");
    let listed = client.admin(Method::GET, &format!("{ADDRESS}/override"), Value::Null).await;
    assert_eq!(listed.body["overrides"], json!([made.body]));

    // Together with a user, each identity has its own numbers.
    let both = json!({"keys": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/login"});
    let explained = client.admin(Method::POST, "/api/v1/explain", both).await;
    let rules: Vec<(&str, u64, &str)> = explained.body["rules"].as_array().unwrap()[..3]
        .iter()
        .map(|rule| {
            (
                rule["rule"].as_str().unwrap(),
                rule["limit"].as_u64().unwrap(),
                rule["verdict"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        rules,
        [("logins", 50, "applies"), ("per-user", 5, "applies"), ("logins", 30, "other_endpoint")]
    );

    let reset = json!({"dimension": "ip", "identifier": "203.0.113.9", "endpoint": "/login"});
    assert_eq!(client.admin(Method::POST, "/v1/rate-limit/reset", reset).await.status, 200);
    assert_eq!(check(&client, "ip", "203.0.113.9", "/login").await["remaining"], 49);

    let id = made.body["id"].as_str().unwrap();
    let path = format!("{ADDRESS}/override/{id}");
    assert_eq!(client.admin(Method::DELETE, &path.replace("113.9", "113.8"), Value::Null).await.status, 404);
    assert_eq!(client.admin(Method::DELETE, &path, Value::Null).await.status, 204);
    assert_eq!(check(&client, "ip", "203.0.113.9", "/login").await["limit"], 3);
    let audit = client.admin(Method::GET, "/api/v1/audit?limit=3", Value::Null).await;
    let actions: Vec<&str> = audit.body["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["override.delete", "counters.reset", "override.create"], "every action is audited");
    assert_eq!(audit.body["records"][2]["after"]["identifier"], "203.0.113.9");
}

#[tokio::test]
async fn identities_have_one_spelling() {
    let client = Client::managed(RULES).await;
    let body = json!({"rule": "logins", "limit": 50, "expires_in_seconds": 600});
    let path = "/api/v1/identities/IP/2001:db8::1/override";
    let made = client.admin(Method::POST, path, body).await;
    assert_eq!(made.body["identifier"], "2001:db8::/64", "{}", made.body);
    assert_eq!(check(&client, "ip", "2001:db8::2", "/login").await["limit"], 50, "the prefix is counted");
    let body = json!({"rule": "per-key", "limit": 100, "expires_in_seconds": 600});
    let made = client.admin(Method::POST, "/api/v1/identities/API_KEY/k1/override", body).await;
    assert_eq!((made.status.as_u16(), &made.body["dimension"]), (201, &json!("apikey")), "{}", made.body);
    assert_eq!(check(&client, "apikey", "k1", "/").await["limit"], 200, "the burst keeps its ratio");
    // Overrides of users are the same under both paths.
    let body = json!({"rule": "per-user", "limit": 9, "expires_in_seconds": 600});
    let made = client.admin(Method::POST, "/api/v1/identities/user/u1/override", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let listed = client.admin(Method::GET, "/api/v1/users/u1/override", Value::Null).await;
    assert_eq!(listed.body["overrides"][0]["id"], made.body["id"]);
    assert_eq!(check(&client, "user", "u1", "/").await["limit"], 9);
}

#[tokio::test]
async fn invalid_identities_and_rules_are_rejected_by_field() {
    let client = Client::managed(RULES).await;
    let body = json!({"rule": "logins", "limit": 5, "expires_in_seconds": 60});
    for (path, rule, field) in [
        ("/api/v1/identities/ip/example.org/override", "logins", "identifier"),
        ("/api/v1/identities/Tenant/t1/override", "logins", "dimension"),
        ("/api/v1/identities/apikey/k1/override", "logins", "rule"),
        ("/api/v1/identities/ip/192.0.2.1/override", "unknown", "rule"),
    ] {
        let mut body = body.clone();
        body["rule"] = json!(rule);
        let answer = client.admin(Method::POST, path, body).await;
        assert_eq!((answer.status.as_u16(), answer.error()), (400, ("INVALID_INPUT", field)), "{path}");
    }
}
