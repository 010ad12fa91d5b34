//! Responses while a remote store fails, and waiting for a remote store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Request, StatusCode};
use pacegate::{
    Algorithm, FailureMode, Limit, Limiter, MemoryStore, StoreError, Timestamp,
    store::{ApplyFuture, Command, Store},
};
use pacegate_tower::resolve::address;
use pacegate_tower::{Format, LayerBuilder, OnError, PacegateLayer};
use serde_json::json;

use support::{app, get, send};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Answer,
    Hang,
    Unavailable,
    Overloaded,
}

/// A remote store with scripted behaviour.
#[derive(Debug)]
struct Scripted {
    behaviour: Mutex<Behaviour>,
    memory: MemoryStore,
}

impl Store for Scripted {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(async move {
            let behaviour = *self.behaviour.lock().unwrap();
            tokio::task::yield_now().await;
            if behaviour == Behaviour::Hang {
                pending::<()>().await;
            }
            match behaviour {
                Behaviour::Unavailable => Err(StoreError::unavailable("connection refused by 10.1.2.3")),
                Behaviour::Overloaded => Err(StoreError::overloaded()),
                _ => self.memory.apply_now(command, now),
            }
        })
    }
}

fn layer(behaviour: Behaviour, mode: FailureMode) -> (LayerBuilder, Arc<Scripted>) {
    let store = Arc::new(Scripted { behaviour: Mutex::new(behaviour), memory: MemoryStore::default() });
    let limit = Limit::try_new(Algorithm::SlidingLog, 2, Duration::from_secs(86_400)).unwrap();
    let limiter = Limiter::builder().store(store.clone()).plan("far", [limit]).on_store_error(mode);
    let limiter = limiter.build().unwrap();
    assert!(!limiter.is_in_process());
    (PacegateLayer::builder(limiter).by(address()).plan("far"), store)
}

#[tokio::test(start_paused = true)]
async fn remote_store_is_awaited() {
    let (layer, _) = layer(Behaviour::Answer, FailureMode::Open);
    let app = app(layer.build().unwrap());
    assert_eq!(send(&app, get("/x")).await.remaining(), "1");
    assert_eq!(send(&app, get("/y")).await.header("ratelimit-policy"), r#""far";q=2;w=86400"#);
    let answer = send(&app, get("/x")).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "86400"));
    assert_eq!(answer.json()["rule"], "far");
}

#[tokio::test(start_paused = true)]
async fn limit_that_fails_open_passes_without_numbers() {
    for behaviour in [Behaviour::Hang, Behaviour::Unavailable] {
        let (layer, _) = layer(behaviour, FailureMode::Open);
        let app = app(layer.build().unwrap());
        for _ in 0..4 {
            let answer = send(&app, get("/x")).await;
            assert_eq!((answer.status, answer.remaining()), (StatusCode::OK, ""), "{behaviour:?}");
            assert_eq!((answer.header("x-ratelimit-limit"), answer.header("ratelimit")), ("2", ""));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_fails_closed_responds_503() {
    for behaviour in [Behaviour::Hang, Behaviour::Unavailable] {
        let (builder, _) = layer(behaviour, FailureMode::Closed);
        let answer = send(&app(builder.build().unwrap()), get("/x")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
        let body = answer.json();
        assert_eq!(body["error"]["code"], "SERVICE_UNAVAILABLE");
        assert_eq!((&body["reason"], &body["degraded"]), (&json!("FAIL_CLOSED"), &json!(true)));
        assert!(
            body["remaining"].is_null() && body.get("retry_after").is_none(),
            "unknown values are omitted"
        );
        let (builder, _) = layer(behaviour, FailureMode::Closed);
        let answer = send(&app(builder.format(Format::Problem).build().unwrap()), get("/x")).await;
        let body = answer.json();
        assert_eq!(
            body["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
        assert_eq!((&body["status"], &body["violated-policies"]), (&json!(503), &json!(["far"])));
    }
}

#[tokio::test(start_paused = true)]
async fn limit_that_falls_back_uses_local_counters() {
    let (layer, store) = layer(Behaviour::Unavailable, FailureMode::Local);
    let app = app(layer.build().unwrap());
    assert_eq!(send(&app, get("/x")).await.remaining(), "1");
    assert_eq!(send(&app, get("/x")).await.remaining(), "0");
    let answer = send(&app, get("/x")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.json()["reason"], "LOCAL_FALLBACK");
    *store.behaviour.lock().unwrap() = Behaviour::Answer;
    assert_eq!(send(&app, get("/x")).await.remaining(), "1", "the store is available again");
}

#[tokio::test(start_paused = true)]
async fn failed_check_is_rejected_or_passes_as_configured() {
    for (on_error, status) in
        [(OnError::Deny, StatusCode::SERVICE_UNAVAILABLE), (OnError::Pass, StatusCode::OK)]
    {
        let (builder, _) = layer(Behaviour::Overloaded, FailureMode::Open);
        let answer = send(&app(builder.on_error(on_error).build().unwrap()), get("/x")).await;
        assert_eq!((answer.status, answer.remaining()), (status, ""));
        if on_error == OnError::Deny {
            assert_eq!(answer.header("retry-after"), "1");
            assert_eq!(answer.json()["error"]["code"], "SERVICE_UNAVAILABLE");
        }
    }
}

#[tokio::test]
async fn too_long_path_is_a_client_error_even_if_errors_pass() {
    let (limiter, _) = support::gold();
    let layer =
        PacegateLayer::builder(limiter).by(address()).rules().on_error(OnError::Pass).build().unwrap();
    let path = format!("/{}", "a".repeat(pacegate::path::ENDPOINT_LENGTH_MAX));
    let (mut parts, body) = get("/x").into_parts();
    parts.uri = path.parse().unwrap();
    let answer = send(&app(layer), Request::from_parts(parts, body)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["details"]["field"], "path");
}
