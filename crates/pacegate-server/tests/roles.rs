//! Access control: roles, expiry, revocation, addresses and rate limits.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

mod client;

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use hyper::Method;
use pacegate::store::Clock as _;
use pacegate_catalog::{Actor, Catalog, CatalogOptions};
use pacegate_testkit::SimulatedClock;
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Returns each operation with the access it needs: check, look, read or write.
fn operations() -> Vec<(Method, &'static str, Value, &'static str)> {
    let check = json!({"user_id": "u1", "endpoint": "/"});
    let nothing = Value::Null;
    vec![
        (Method::POST, "/v1/rate-limit/check", check.clone(), "check"),
        (Method::POST, "/v1/rate-limit/batch-check", json!({"checks": [check.clone()]}), "check"),
        (Method::GET, "/v1/rate-limit/status/u1/x", nothing.clone(), "look"),
        (Method::POST, "/v1/rate-limit/reset", check.clone(), "write"),
        (Method::POST, "/api/v1/explain", check, "read"),
        (Method::GET, "/api/v1/live", nothing.clone(), "read"),
        (Method::GET, "/api/v1/live/history", nothing.clone(), "read"),
        (Method::PUT, "/v1/rate-limit/config", json!({}), "write"),
        (Method::GET, "/v1/rate-limit/config/u1/x", nothing.clone(), "read"),
        (Method::DELETE, "/v1/rate-limit/config/u1/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/rules", nothing.clone(), "read"),
        (Method::POST, "/api/v1/rules", json!({}), "write"),
        (Method::GET, "/api/v1/rules/x", nothing.clone(), "read"),
        (Method::PUT, "/api/v1/rules/x", json!({}), "write"),
        (Method::DELETE, "/api/v1/rules/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/plans", nothing.clone(), "read"),
        (Method::GET, "/api/v1/plans/x", nothing.clone(), "read"),
        (Method::PUT, "/api/v1/plans/x", json!({}), "write"),
        (Method::DELETE, "/api/v1/plans/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/users", nothing.clone(), "read"),
        (Method::GET, "/api/v1/users/u1", nothing.clone(), "read"),
        (Method::GET, "/api/v1/users/u1/limits", nothing.clone(), "read"),
        (Method::PUT, "/api/v1/users/u1/tier", json!({}), "write"),
        (Method::GET, "/api/v1/users/u1/override", nothing.clone(), "read"),
        (Method::POST, "/api/v1/users/u1/override", json!({}), "write"),
        (Method::DELETE, "/api/v1/users/u1/override/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/identities/ip/192.0.2.1/limits", nothing.clone(), "read"),
        (Method::GET, "/api/v1/identities/ip/192.0.2.1/override", nothing.clone(), "read"),
        (Method::POST, "/api/v1/identities/ip/192.0.2.1/override", json!({}), "write"),
        (Method::DELETE, "/api/v1/identities/ip/192.0.2.1/override/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/keys", nothing.clone(), "read"),
        (Method::POST, "/api/v1/keys", json!({}), "write"),
        (Method::DELETE, "/api/v1/keys/x", nothing.clone(), "write"),
        (Method::GET, "/api/v1/audit", nothing.clone(), "read"),
        (Method::GET, "/api/v1/whoami", nothing.clone(), "read"),
        (Method::GET, "/admin/status", nothing.clone(), "read"),
        (Method::GET, "/admin/metrics", nothing.clone(), "read"),
        (Method::GET, "/admin/metrics/k", nothing.clone(), "read"),
        (Method::POST, "/admin/reset/k", nothing.clone(), "write"),
        (Method::GET, "/admin/policies", nothing.clone(), "read"),
        (Method::POST, "/admin/policies", json!({}), "write"),
        (Method::GET, "/admin/policies/k", nothing.clone(), "read"),
        (Method::PUT, "/admin/policies/k", json!({}), "write"),
        (Method::DELETE, "/admin/policies/k", nothing, "write"),
    ]
}

async fn send(client: &Client, method: &Method, path: &str, body: &Value, key: Option<&str>) -> u16 {
    let mut headers = vec![JSON];
    headers.extend(key.map(|key| ("x-api-key", key)));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    client.send(method.clone(), path, &headers, body).await.status.as_u16()
}

async fn catalog_with_keys() -> (Catalog, [(&'static str, String); 3]) {
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let mut keys = Vec::new();
    for role in ["admin", "reader", "checker"] {
        keys.push((role, catalog.create_key(&Actor::default(), role, role, None).await.unwrap().1));
    }
    (catalog, keys.try_into().unwrap())
}

#[tokio::test]
async fn every_role_permits_its_operations_only() {
    let (catalog, keys) = catalog_with_keys().await;
    let client = Client::with_catalog("server: {require_key: true}", catalog).await;
    for (method, path, body, need) in operations() {
        for (role, secret) in &keys {
            let status = send(&client, &method, path, &body, Some(secret)).await;
            let may = match *role {
                "admin" => true,
                "reader" => ["look", "read"].contains(&need),
                _ => ["check", "look"].contains(&need),
            };
            assert_eq!(status != 403, may, "{role} {method} {path}: {status}");
            assert!(status != 401 && status < 500, "{role} {method} {path}: {status}");
        }
        assert_eq!(send(&client, &method, path, &body, None).await, 401, "{method} {path}");
    }
}

#[tokio::test]
async fn whoami_returns_the_key_and_role() {
    let (catalog, keys) = catalog_with_keys().await;
    let client = Client::with_catalog("", catalog).await;
    for (role, secret) in keys.iter().filter(|(role, _)| *role != "checker") {
        let answer =
            client.send(Method::GET, "/api/v1/whoami", &[("x-api-key", secret)], String::new()).await;
        assert_eq!(answer.body["role"], *role);
        assert!(secret.contains(answer.body["key_id"].as_str().unwrap()), "{}", answer.body);
    }
    let configured = client.admin(Method::GET, "/api/v1/whoami", Value::Null).await.body;
    assert_eq!(
        configured,
        json!({"key_id": "configured", "role": "admin", "version": env!("CARGO_PKG_VERSION")})
    );
}

#[tokio::test]
async fn checks_require_a_key_only_if_configured() {
    let (catalog, _) = catalog_with_keys().await;
    let client = Client::with_catalog("", catalog).await;
    let body = json!({"user_id": "u1", "endpoint": "/"});
    assert_eq!(send(&client, &Method::POST, "/v1/rate-limit/check", &body, None).await, 200);
    assert_eq!(send(&client, &Method::GET, "/v1/rate-limit/status/u1/x", &Value::Null, None).await, 200);
    assert_eq!(send(&client, &Method::GET, "/healthz", &Value::Null, None).await, 200);
}

#[tokio::test]
async fn keys_expire_and_are_revoked() {
    let client = Client::managed("").await;
    let made =
        client.admin(Method::POST, "/api/v1/keys", json!({"role": "reader", "name": "a dashboard"})).await;
    assert_eq!((made.status.as_u16(), &made.body["role"]), (201, &json!("reader")));
    let (secret, id) = (made.body["secret"].as_str().unwrap(), made.body["key_id"].as_str().unwrap());
    let list = client.admin(Method::GET, "/api/v1/keys", Value::Null).await;
    let shown = &list.body["keys"][0];
    assert_eq!((&shown["name"], &shown["state"]), (&json!("a dashboard"), &json!("active")));
    assert!(!list.body.to_string().contains(secret), "the secret is shown once");
    let read = async |key: &str| {
        let answer = client.send(Method::GET, "/api/v1/rules", &[("x-api-key", key)], String::new()).await;
        (answer.status.as_u16(), answer.body["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(read(secret).await.0, 200);
    let bearer = format!("Bearer {secret}");
    let answer =
        client.send(Method::GET, "/api/v1/rules", &[("authorization", &bearer)], String::new()).await;
    assert_eq!(answer.status, 200);
    let list = async || client.admin(Method::GET, "/api/v1/keys", Value::Null).await.body["keys"][0].clone();
    // The last use is recorded in the background.
    let mut looks = 0;
    while list().await["last_used_at"].is_null() {
        looks += 1;
        assert!(looks < 1_000, "the last use of a key is recorded");
        tokio::task::yield_now().await;
    }
    assert_eq!(client.admin(Method::DELETE, &format!("/api/v1/keys/{id}"), Value::Null).await.status, 204);
    assert_eq!(read(secret).await, (401, "the API key was revoked".to_owned()), "immediately on this node");
    assert_eq!(client.admin(Method::DELETE, "/api/v1/keys/nonsense", Value::Null).await.status, 404);

    for bad in [
        json!({}),
        json!({"role": "owner"}),
        json!({"role": "admin", "name": ""}),
        json!({"role": "admin", "expires_in_seconds": 0}),
        json!({"role": "admin", "expires_at": "yesterday"}),
        json!({"role": "admin", "secret": "mine"}),
    ] {
        assert_eq!(client.admin(Method::POST, "/api/v1/keys", bad.clone()).await.status, 400, "{bad}");
    }
    let audit = client.admin(Method::GET, "/api/v1/audit?limit=2", Value::Null).await;
    let actions: Vec<&str> = audit.body["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["key.revoke", "key.create"]);
    assert_eq!(audit.body["records"][0]["actor"], "configured");
    assert_eq!(audit.body["records"][0]["address"], "127.0.0.1");
    assert!(audit.body["records"][0]["request_id"].is_string());
    assert!(!audit.body.to_string().contains(secret));
}

#[tokio::test]
async fn expired_key_is_reported_as_expired() {
    // A catalog whose clock is years behind: its keys with a lifetime of a second have expired.
    let clock = Arc::new(SimulatedClock::default());
    let expires_at = Some(clock.now().saturating_add(Duration::from_secs(1)));
    let options = CatalogOptions { clock, ..CatalogOptions::default() };
    let catalog = Catalog::open_with("sqlite::memory:", options).await.unwrap();
    let (_, secret) = catalog.create_key(&Actor::default(), "reader", "old", expires_at).await.unwrap();
    let client = Client::with_catalog("", catalog).await;
    let answer = client.send(Method::GET, "/api/v1/rules", &[("x-api-key", &secret)], String::new()).await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.body["error"]["message"], "the API key has expired");
}

#[tokio::test]
async fn disallowed_addresses_are_rejected_before_keys_are_checked() {
    let (catalog, keys) = catalog_with_keys().await;
    let client = Client::with_catalog("server: {admin_allow: [10.0.0.0/8]}", catalog).await;
    for key in [None, Some(keys[0].1.as_str()), Some("guess")] {
        assert_eq!(send(&client, &Method::GET, "/api/v1/rules", &Value::Null, key).await, 403);
    }
    let body = json!({"user_id": "u1", "endpoint": "/"});
    assert_eq!(send(&client, &Method::POST, "/v1/rate-limit/check", &body, None).await, 200);
}

#[tokio::test]
async fn management_api_is_rate_limited() {
    let client = Client::managed("management: {reads_per_minute: 5, writes_per_minute: 2}").await;
    for _ in 0..5 {
        assert_eq!(client.admin(Method::GET, "/api/v1/rules", Value::Null).await.status, 200);
    }
    let denied = client.admin(Method::GET, "/api/v1/rules", Value::Null).await;
    assert_eq!((denied.status.as_u16(), denied.error().0), (429, "RATE_LIMITED"));
    assert!(denied.header("retry-after").parse::<u64>().unwrap() >= 1);
    for _ in 0..2 {
        assert_eq!(client.admin(Method::POST, "/admin/reset/k", Value::Null).await.status, 200);
    }
    let denied = client.admin(Method::POST, "/admin/reset/k", Value::Null).await;
    assert_eq!(denied.body["status"], 429);
    let check = client.check(&json!({"user_id": "u1", "endpoint": "/"})).await;
    assert_eq!(check.status, 200, "checks are not management");
}

#[tokio::test]
async fn guessing_keys_is_limited_by_address_and_affects_no_valid_key() {
    let (catalog, keys) = catalog_with_keys().await;
    let client = Client::with_catalog("server: {require_key: true}", catalog).await;
    let check = json!({"user_id": "u1", "endpoint": "/"});
    let as_checker = async |client: &Client| {
        send(client, &Method::POST, "/v1/rate-limit/check", &check, Some(&keys[2].1)).await
    };
    assert_eq!(as_checker(&client).await, 200);
    let mut statuses = Vec::new();
    for guess in 0..30 {
        let key = format!("pgk_{guess:016x}_{guess:064x}");
        statuses.push(send(&client, &Method::GET, "/api/v1/rules", &Value::Null, Some(&key)).await);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 20);
    assert!(statuses[20..].iter().all(|status| *status == 429), "{statuses:?}");
    assert_eq!(as_checker(&client).await, 200, "a cached key still works from that address");
    let status =
        async |key: &str| send(&client, &Method::GET, "/api/v1/rules", &Value::Null, Some(key)).await;
    assert_eq!(status(&keys[1].1).await, 200, "an existing key that is not cached still works");
    assert_eq!(status("secret").await, 429, "a key that is short enough to be guessed is locked out");
    let metrics = client.get("/metrics").await.body;
    for line in ["{reason=\"unknown\"} 20", "{reason=\"locked_out\"} 11", "{reason=\"revoked\"} 0"] {
        let line = format!("pacegate_refused_keys_total{line}");
        assert!(metrics.as_str().unwrap().contains(&line), "{line} is missing in {metrics}");
    }
}
