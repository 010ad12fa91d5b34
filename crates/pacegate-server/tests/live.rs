//! Rule changes under load: every response belongs to one revision, and checks do not block
//! management.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::Request;
use pacegate::{MemoryStore, Stores};
use pacegate_catalog::Catalog;
use pacegate_config::Config;
use pacegate_server::{AdminKey, App, Live};
use serde_json::{Value, json};

/// Two rules that both apply, whose numbers identify their revision.
fn yaml(revision: u64) -> String {
    format!(
        "rules:\n  - {{name: a, dimension: user, algorithm: gcra, limit: {}, window: 1s}}\n  - {{name: b, dimension: user, algorithm: gcra, limit: {}, window: 1s}}\n",
        1_000_000 + revision,
        2_000_000 + revision
    )
}

async fn start() -> (Arc<Live>, App) {
    let config = Config::parse(&yaml(0)).unwrap();
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let stores = Stores::memory(Arc::new(MemoryStore::default()));
    let live = Live::start(config.clone(), stores, catalog).await.unwrap();
    let app = App::managed(&config, live.clone(), Some(AdminKey::new("secret")));
    (live, app)
}

async fn send(app: &App, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .header("x-api-key", "secret")
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = app.respond(request, SocketAddr::from(([127, 0, 0, 1], 9))).await;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Sends checks until `stop` is set; `look` verifies each response.
async fn checks(app: App, stop: Arc<AtomicBool>, count: Arc<AtomicU64>, look: impl Fn(&Value)) {
    let body = json!({"user_id": "u1", "endpoint": "/"});
    while !stop.load(Ordering::Relaxed) {
        let (status, answer) = send(&app, "POST", "/v1/rate-limit/check", &body).await;
        assert_eq!(status, 200, "{answer}");
        look(&answer);
        count.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn thousand_valid_and_invalid_reloads_under_load() {
    let (live, app) = start().await;
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reached = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let reached = reached.clone();
            let seen = AtomicU64::new(0);
            tokio::spawn(checks(app.clone(), stop.clone(), count.clone(), move |answer| {
                let quota = |place: usize| answer["limits"][place]["quota"].as_u64().unwrap();
                let revision = quota(0) - 1_000_000;
                assert_eq!(quota(1), 2_000_000 + revision, "both rules are of one revision: {answer}");
                assert!(seen.swap(revision, Ordering::Relaxed) <= revision, "revisions never decrease");
                assert!(revision <= reached.load(Ordering::SeqCst));
            }))
        })
        .collect();
    let (mut good, mut bad) = (0, 0);
    for revision in 1..=1_000 {
        if revision % 3 == 0 {
            // As the file watcher may find it: with errors, or with rules for unknown stores.
            match Config::parse(&yaml(revision).replace("gcra", "nonsense")) {
                Ok(_) => panic!("an invalid file was accepted"),
                Err(errors) => assert_eq!(errors.0.len(), 2),
            }
            let foreign = "stores: {other: {url: \"memory:\"}}\n".to_owned()
                + &yaml(revision).replace("window: 1s", "window: 1s, store: other");
            assert!(live.reload(Config::parse(&foreign).unwrap()).await.is_err());
            bad += 1;
        } else {
            reached.store(revision, Ordering::SeqCst);
            live.reload(Config::parse(&yaml(revision)).unwrap()).await.unwrap();
            good += 1;
        }
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let checks = count.load(Ordering::Relaxed);
    println!("PASS reloads good={good} bad={bad} checks={checks} mixed=0");
    assert!(checks > 1_000, "only {checks} checks were made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn management_works_while_checks_run() {
    let (_live, app) = start().await;
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> =
        (0..4).map(|_| tokio::spawn(checks(app.clone(), stop.clone(), count.clone(), |_| {}))).collect();
    for number in 0..20 {
        let rule = json!({"name": format!("r{number}"), "dimension": "user", "algorithm": "gcra", "limit": 1_000_000, "window_seconds": 1});
        let (status, made) = send(&app, "POST", "/api/v1/rules", &rule).await;
        assert_eq!(status, 201);
        let path = format!("/api/v1/rules/{}", made["rule_id"].as_str().unwrap());
        assert_eq!(send(&app, "PUT", &path, &rule).await.0, 200);
        let user = format!("/api/v1/users/u{number}/tier");
        assert_eq!(send(&app, "PUT", &user, &json!({"tier": "gold"})).await.0, 200);
        assert_eq!(send(&app, "DELETE", &path, &Value::Null).await.0, 204, "while it is in use");
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert!(count.load(Ordering::Relaxed) > 100);
}
