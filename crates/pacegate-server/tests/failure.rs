//! REST responses while a store is unavailable, and when it is available again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod scripted;

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use pacegate::Stores;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use client::{Answer, Client};
use scripted::{Behaviour, Scripted};

const DEADLINE: Duration = Duration::from_millis(50);
/// Sliding logs over a day have no window edge at which a count would restart: local counters use
/// the machine's clock.
const RULES: &str = r#"
default_limit: none
rules:
  - {name: open, dimension: user, endpoint: /open, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: open}
  - {name: closed, dimension: user, endpoint: /closed, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: closed}
  - {name: local, dimension: user, endpoint: /local, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: local}
  - {name: shadow, dimension: user, endpoint: /shadow, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: closed, mode: shadow}
  - {name: near, dimension: user, endpoint: /mixed, algorithm: sliding_log, limit: 2, window: 1d, store: near}
  - {name: far, dimension: user, endpoint: /mixed, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: open}
stores: {near: {url: "memory:"}}
"#;

fn service(behaviour: Behaviour) -> (Client, Arc<Scripted>) {
    let store = Scripted::new(behaviour);
    let stores = Stores::remote(store.clone(), DEADLINE).and_memory("near", Arc::default());
    (Client::with_stores(RULES, stores), store)
}

fn at(endpoint: &str) -> Value {
    json!({"user_id": "u", "endpoint": endpoint})
}

/// Fails until the circuit breaker opens.
async fn open_breaker(client: &Client) {
    for _ in 0..20 {
        assert_eq!(client.check(&at("/open")).await.body["degraded"], true);
    }
}

/// Returns the fields that the tests compare.
fn core_of(answer: &Value) -> Value {
    let fields = ["allowed", "degraded", "reason", "limit", "remaining", "reset_at", "current_count", "rule"];
    fields
        .into_iter()
        .map(|field| (field.to_owned(), answer[field].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn unknown(rule: &str, allowed: bool, reason: &str) -> Value {
    json!({
        "allowed": allowed, "degraded": true, "reason": reason, "limit": 2, "remaining": null, "reset_at": null,
        "current_count": null, "rule": rule,
    })
}

/// Configured numbers may be shown, counted numbers may not.
fn assert_no_count_in_headers(answer: &Answer) {
    assert_eq!(answer.header("x-ratelimit-limit"), "2");
    assert_eq!(answer.header("x-ratelimit-strategy"), "sliding_log");
    assert!(answer.header("ratelimit-policy").ends_with(";q=2;w=86400"));
    for name in ["x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "x-ratelimit-state"] {
        assert!(!answer.headers.contains_key(name), "{name}: {}", answer.header(name));
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_fails_open_allows_and_omits_unknown_numbers() {
    for behaviour in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected, Behaviour::Foreign] {
        let (client, _) = service(behaviour);
        for _ in 0..3 {
            let answer = client.check(&at("/open")).await;
            assert_eq!(answer.status, StatusCode::OK, "{behaviour:?}");
            assert_eq!(core_of(&answer.body), unknown("open", true, "FAIL_OPEN"), "{behaviour:?}");
            assert_eq!(
                answer.body["limits"],
                json!([{
                    "rule": "open", "dimension": "user", "allowed": true, "limit": 2, "remaining": null, "reset_at": null,
                    "strategy": "sliding_log", "quota": 2, "window_seconds": 86_400, "state": "normal",
                    "reason": "FAIL_OPEN", "degraded": true,
                }])
            );
            assert!(answer.body.get("error").is_none());
            assert_no_count_in_headers(&answer);
            assert_eq!(answer.header("retry-after"), "");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_fails_closed_denies_with_503() {
    for behaviour in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Rejected, Behaviour::Foreign] {
        let (client, _) = service(behaviour);
        let answer = client.check(&at("/closed")).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{behaviour:?}");
        assert_eq!(core_of(&answer.body), unknown("closed", false, "FAIL_CLOSED"), "{behaviour:?}");
        assert_eq!(answer.error(), ("SERVICE_UNAVAILABLE", ""), "the error has the request id");
        assert!(answer.header("x-request-id").starts_with("req_"));
        assert_eq!(answer.header("retry-after"), "1");
        assert!(answer.body.get("retry_after").is_none(), "the time of recovery is unknown");
        assert_no_count_in_headers(&answer);
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_falls_back_to_local_counters_denies_at_its_limit() {
    let (client, store) = service(Behaviour::Unavailable);
    for remaining in [1, 0] {
        let answer = client.check(&at("/local")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!((&answer.body["allowed"], &answer.body["degraded"]), (&json!(true), &json!(true)));
        assert_eq!(answer.body["reason"], "LOCAL_FALLBACK");
        assert_eq!(answer.body["remaining"], remaining);
        assert_eq!(answer.body["current_count"], 2 - remaining);
        assert!(answer.body["reset_at"].is_u64());
        assert_eq!(answer.header("x-ratelimit-remaining"), remaining.to_string());
        assert!(answer.header("ratelimit").starts_with(&format!("\"local\";r={remaining};t=")));
    }
    let denied = client.check(&at("/local")).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!((&denied.body["allowed"], &denied.body["degraded"]), (&json!(false), &json!(true)));
    assert_eq!((&denied.body["reason"], &denied.body["remaining"]), (&json!("LOCAL_FALLBACK"), &json!(0)));
    assert!(denied.body["retry_after"].as_u64().unwrap() > 86_000);
    assert_eq!(denied.header("retry-after"), denied.body["retry_after"].to_string());
    assert!(denied.body.get("error").is_none());

    store.set(Behaviour::Answer);
    let back = client.check(&at("/local")).await;
    assert_eq!((&back.body["degraded"], &back.body["remaining"]), (&json!(false), &json!(1)));
    assert_eq!(back.body["reason"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn shadow_limit_that_fails_closed_denies_nothing() {
    let (client, _) = service(Behaviour::Unavailable);
    let answer = client.check(&at("/shadow")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!((&answer.body["allowed"], &answer.body["degraded"]), (&json!(true), &json!(true)));
    assert_eq!(answer.body["limits"][0]["shadow"], true);
    assert_eq!(answer.header("x-ratelimit-limit"), "", "shadow limits are not visible to clients");
}

#[tokio::test(start_paused = true)]
async fn numbers_of_a_working_store_are_shown_when_another_fails() {
    let (client, _) = service(Behaviour::Unavailable);
    let answer = client.check(&at("/mixed")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!((&answer.body["rule"], &answer.body["remaining"]), (&json!("near"), &json!(1)));
    assert_eq!((&answer.body["degraded"], &answer.body["reason"]), (&json!(true), &Value::Null));
    assert_eq!(answer.body["limits"][1]["reason"], "FAIL_OPEN");
    assert_eq!(answer.header("ratelimit"), "\"near\";r=1;t=86400", "only known numbers");
    assert_eq!(answer.header("ratelimit-policy"), "\"near\";q=2;w=86400, \"far\";q=2;w=86400");
    client.check(&at("/mixed")).await;
    let denied = client.check(&at("/mixed")).await;
    assert_eq!(
        denied.status,
        StatusCode::TOO_MANY_REQUESTS,
        "a working limit is enforced when another store fails"
    );
    assert_eq!(denied.body["reason"], "LIMIT_EXCEEDED");
}

#[tokio::test(start_paused = true)]
async fn batch_items_follow_their_failure_modes() {
    let (client, _) = service(Behaviour::Hang);
    let checks = ["/open", "/closed", "/local", "/local", "/local", "/mixed"].map(at);
    let start = Instant::now();
    let answer = client.post("/v1/rate-limit/batch-check", &json!({"checks": checks})).await;
    assert!(start.elapsed() <= 2 * DEADLINE, "{:?}", start.elapsed());
    assert_eq!(answer.status, StatusCode::OK);
    let results = answer.body["results"].as_array().unwrap();
    assert_eq!(core_of(&results[0]), unknown("open", true, "FAIL_OPEN"));
    assert_eq!(core_of(&results[1]), unknown("closed", false, "FAIL_CLOSED"));
    for (place, (allowed, remaining)) in [(true, 1), (true, 0), (false, 0)].into_iter().enumerate() {
        let item = &results[2 + place];
        assert_eq!((&item["allowed"], &item["remaining"]), (&json!(allowed), &json!(remaining)));
        assert_eq!((&item["reason"], &item["degraded"]), (&json!("LOCAL_FALLBACK"), &json!(true)));
    }
    assert_eq!((&results[5]["remaining"], &results[5]["degraded"]), (&json!(1), &json!(true)));
    for (item, check) in results.iter().zip(&checks) {
        assert_eq!(item["endpoint"], check["endpoint"]);
    }
}

#[tokio::test(start_paused = true)]
async fn batch_with_an_idempotency_key_is_repeatable_during_an_outage() {
    let (client, _) = service(Behaviour::Unavailable);
    let batch = json!({"checks": [at("/local")], "idempotency_key": "k"});
    for replayed in [false, true] {
        let answer = client.post("/v1/rate-limit/batch-check", &batch).await;
        let item = &answer.body["results"][0];
        assert_eq!(item["remaining"], 1, "{item}");
        assert_eq!(item["replayed"].as_bool().unwrap_or(false), replayed);
    }
    let other =
        json!({"checks": [{"user_id": "u", "endpoint": "/local", "cost": 2}], "idempotency_key": "k"});
    let rejected = client.post("/v1/rate-limit/batch-check", &other).await;
    assert_eq!(rejected.error(), ("IDEMPOTENCY_MISMATCH", "idempotency_key"));
}

#[tokio::test(start_paused = true)]
async fn status_omits_unknown_numbers() {
    let (client, _) = service(Behaviour::Unavailable);
    for (rule, allowed, reason) in [("open", true, "FAIL_OPEN"), ("closed", false, "FAIL_CLOSED")] {
        let answer = client.get(&format!("/v1/rate-limit/status/u/{rule}")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(core_of(&answer.body), unknown(rule, allowed, reason));
        assert!(answer.body.get("usage_percentage").is_none(), "{}", answer.body);
        assert_no_count_in_headers(&answer);
    }
    client.check(&at("/local")).await;
    for _ in 0..2 {
        let local = client.get("/v1/rate-limit/status/u/local").await;
        assert_eq!((&local.body["degraded"], &local.body["remaining"]), (&json!(true), &json!(1)));
        assert_eq!(
            (&local.body["reason"], &local.body["usage_percentage"]),
            (&json!("LOCAL_FALLBACK"), &json!(50.0))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn reset_of_a_failing_store_is_an_error() {
    for behaviour in [Behaviour::Hang, Behaviour::Unavailable, Behaviour::Overloaded] {
        let (client, store) = service(behaviour);
        let start = Instant::now();
        let answer = client.reset(&at("/local")).await;
        // A reset may search a store for longer than a check waits.
        assert!(start.elapsed() <= Duration::from_secs(10));
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{behaviour:?}: {}", answer.body);
        assert_eq!(answer.error(), ("SERVICE_UNAVAILABLE", ""));
        assert!(answer.body.get("reset_at").is_none());
        store.set(Behaviour::Answer);
        // The probes detected the outage during the wait, and detect its end.
        sleep(Duration::from_secs(4)).await;
        assert_eq!(client.reset(&at("/local")).await.status, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn full_store_is_an_error_in_every_failure_mode() {
    let (client, _) = service(Behaviour::Overloaded);
    for endpoint in ["/open", "/closed", "/local"] {
        let answer = client.check(&at(endpoint)).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.error(), ("SERVICE_UNAVAILABLE", ""));
        assert!(answer.body.get("allowed").is_none(), "there is no decision");
    }
    assert_eq!(client.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn service_is_not_ready_while_a_store_is_unavailable() {
    for (behaviour, message) in [
        (Behaviour::Unavailable, "store `default` unavailable"),
        (Behaviour::Hang, "store `default` unavailable"),
        (Behaviour::Rejected, "store `default` rejects this service"),
    ] {
        let (client, store) = service(behaviour);
        assert_eq!(client.get("/readyz").await.body, json!({"status": "ready"}));
        open_breaker(&client).await;
        let answer = client.get("/readyz").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{behaviour:?}");
        assert_eq!(answer.error(), ("SERVICE_UNAVAILABLE", ""));
        assert_eq!(answer.body["error"]["message"], message);
        assert_eq!(client.get("/healthz").await.status, StatusCode::OK, "the process stays alive");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(client.get("/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);

        // No requests arrive: a load balancer sends none to a node that is not ready.
        store.set(Behaviour::Answer);
        sleep(Duration::from_secs(4)).await;
        let answer = client.get("/readyz").await;
        assert_eq!(
            (answer.status, answer.body),
            (StatusCode::OK, json!({"status": "ready"})),
            "{behaviour:?}"
        );
        assert_eq!(client.check(&at("/open")).await.body["degraded"], false);
        assert_eq!(client.get("/healthz").await.body, json!({"status": "ok"}));
    }
}

#[tokio::test(start_paused = true)]
async fn one_rejection_makes_the_service_unready_and_one_failure_does_not() {
    let (client, store) = service(Behaviour::Unavailable);
    client.check(&at("/open")).await;
    assert_eq!(client.get("/readyz").await.status, StatusCode::OK);
    store.set(Behaviour::Rejected);
    client.check(&at("/open")).await;
    assert_eq!(client.get("/readyz").await.status, StatusCode::SERVICE_UNAVAILABLE);
    store.set(Behaviour::Answer);
    client.check(&at("/open")).await;
    assert_eq!(client.get("/readyz").await.status, StatusCode::OK, "ready as soon as the store is available");
}

#[tokio::test(start_paused = true)]
async fn foreign_values_leave_the_service_ready() {
    let (client, _) = service(Behaviour::Foreign);
    for _ in 0..100 {
        assert_eq!(client.check(&at("/closed")).await.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(client.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn hanging_store_delays_requests_up_to_the_deadline_and_later_not_at_all() {
    let (client, _) = service(Behaviour::Hang);
    for _ in 0..5 {
        let start = Instant::now();
        client.check(&at("/open")).await;
        assert_eq!(start.elapsed().as_millis(), DEADLINE.as_millis());
    }
    let start = Instant::now();
    for endpoint in ["/open", "/closed", "/local", "/mixed"] {
        client.check(&at(endpoint)).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}
