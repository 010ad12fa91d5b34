//! Traffic shaping: requests leave a leaky bucket at a constant rate, within the maximum wait and
//! number of waiters.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::any;
use axum::{Extension, Router};
use pacegate::{Algorithm, Limit, Limiter, MemoryOptions, MemoryStore, Timestamp, store::Clock};
use pacegate_tower::resolve::address;
use pacegate_tower::{LayerBuilder, PacegateLayer};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, advance, sleep};

use support::{get, send};

/// Tokio's clock, which tests pause, as the clock of the store.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000).saturating_add(self.0.elapsed())
    }
}

/// A limiter with a queue of five, one of which leaves each second.
fn queue() -> Limiter {
    let clock = Arc::new(PausedClock(Instant::now()));
    let store = Arc::new(MemoryStore::with_clock(MemoryOptions::default(), clock));
    let limit = Limit::try_new(Algorithm::LeakyBucket, 1, Duration::from_secs(1)).unwrap();
    Limiter::builder().memory(store).plan("queue", [limit.with_burst(5).unwrap()]).build().unwrap()
}

/// A router that reports the time of each call, in milliseconds.
fn watched(layer: LayerBuilder) -> (Router, UnboundedReceiver<u128>) {
    let (called, calls) = unbounded_channel();
    let start = Instant::now();
    let handler = move |Extension(called): Extension<UnboundedSender<u128>>| async move {
        called.send(start.elapsed().as_millis()).unwrap();
    };
    let app = Router::new().route("/{*path}", any(handler)).layer(layer.build().unwrap());
    (app.layer(Extension(called)), calls)
}

fn shaped(wait_max: Duration) -> LayerBuilder {
    PacegateLayer::builder(queue()).by(address()).plan("queue").shape(wait_max)
}

/// Starts a request in the background, and gives it time to be decided.
async fn start(app: &Router) -> tokio::task::JoinHandle<support::Answer> {
    let app = app.clone();
    let task = tokio::spawn(async move { send(&app, get("/x")).await });
    tokio::task::yield_now().await;
    task
}

#[tokio::test(start_paused = true)]
async fn allowed_requests_leave_at_a_constant_rate() {
    let (app, mut calls) = watched(shaped(Duration::from_secs(10)));
    let mut tasks = Vec::new();
    for _ in 0..6 {
        tasks.push(start(&app).await);
    }
    let mut statuses = Vec::new();
    for task in tasks {
        let answer = task.await.unwrap();
        statuses.push((answer.status.as_u16(), answer.remaining().to_owned()));
    }
    let expected = [(200, "4"), (200, "3"), (200, "2"), (200, "1"), (200, "0"), (429, "0")];
    assert_eq!(statuses, expected.map(|(status, left)| (status, left.to_owned())));
    for expected in [0, 1_000, 2_000, 3_000, 4_000] {
        let called = calls.recv().await.unwrap();
        // Tokio's timers have a resolution of one millisecond.
        assert!((expected..=expected + 2).contains(&called), "{called} instead of {expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn allowed_requests_pass_immediately_without_shaping() {
    let (app, mut calls) = watched(PacegateLayer::builder(queue()).by(address()).plan("queue"));
    for _ in 0..5 {
        assert_eq!(send(&app, get("/x")).await.status, StatusCode::OK);
        assert_eq!(calls.recv().await.unwrap(), 0);
    }
    assert_eq!(send(&app, get("/x")).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn request_that_would_wait_too_long_is_denied_and_refunded() {
    let (app, _calls) = watched(shaped(Duration::from_millis(1_500)));
    let (first, second) = (start(&app).await, start(&app).await);
    for _ in 0..3 {
        let answer = send(&app, get("/x")).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!((answer.header("retry-after"), answer.remaining()), ("1", "3"), "after the refund");
        let body = answer.json();
        assert_eq!(body["error"]["message"], "the queue of rate limit `queue` is full; retry in 1 s");
        assert_eq!((&body["reason"], &body["retry_after_ms"]), (&json!("QUEUE_FULL"), &json!(500)));
    }
    advance(Duration::from_millis(500)).await;
    let third = start(&app).await;
    assert_eq!(third.await.unwrap().status, StatusCode::OK, "after the announced time");
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn number_of_waiters_is_bounded() {
    let (app, _calls) = watched(shaped(Duration::from_secs(10)).waiters(2));
    let tasks = [start(&app).await, start(&app).await, start(&app).await];
    let answer = send(&app, get("/x")).await;
    assert_eq!(
        (answer.status, answer.remaining()),
        (StatusCode::TOO_MANY_REQUESTS, "2"),
        "one passes immediately, two wait"
    );
    assert_eq!(answer.header("retry-after"), "3");
    for task in tasks {
        assert_eq!(task.await.unwrap().status, StatusCode::OK);
    }
    let later = [start(&app).await, start(&app).await];
    for task in later {
        assert_eq!(task.await.unwrap().status, StatusCode::OK, "requests can wait again");
    }
}

#[tokio::test(start_paused = true)]
async fn disconnected_waiter_is_refunded() {
    let (app, mut calls) = watched(shaped(Duration::from_secs(10)).waiters(1));
    assert_eq!(send(&app, get("/x")).await.remaining(), "4");
    for _ in 0..20 {
        let waiting = start(&app).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    }
    let answer = send(&app, get("/x")).await;
    assert_eq!(
        (answer.status, answer.remaining()),
        (StatusCode::OK, "3"),
        "neither quota nor waiters were lost"
    );
    assert_eq!(calls.recv().await.unwrap(), 0);
    assert!(calls.recv().await.unwrap() <= 1_002, "the turn of the second request");
    sleep(Duration::from_secs(10)).await;
    assert!(calls.try_recv().is_err(), "disconnected requests never reach the service");
}
