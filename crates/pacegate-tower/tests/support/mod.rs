//! Shared by the tests: a limiter whose clock is stopped, requests, and responses with their bodies
//! read.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its own part, and fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::any;
use axum::{Router, http};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use pacegate::{Limit, Limiter, LimiterBuilder, MemoryOptions, MemoryStore};
use pacegate_testkit::SimulatedClock;
use pacegate_tower::PacegateLayer;
use serde_json::Value;
use tower::ServiceExt;

/// A limiter on a clock that is at 1790000000.123456 s until it is set.
pub(crate) fn limiter(
    build: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
) -> (Limiter, Arc<SimulatedClock>) {
    let clock = Arc::new(SimulatedClock::default());
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    let limiter = build(Limiter::builder().memory(Arc::new(store))).build().unwrap();
    (limiter, clock)
}

/// A limiter with one plan, `gold`: a burst of ten, and one more each second.
pub(crate) fn gold() -> (Limiter, Arc<SimulatedClock>) {
    limiter(|builder| builder.plan("gold", [Limit::per_second(1).burst(10)]))
}

/// A router that answers every request with `hello`, behind `layer`.
pub(crate) fn app(layer: PacegateLayer) -> Router {
    Router::new().route("/{*path}", any(|| async { "hello" })).layer(layer)
}

/// A request from `192.0.2.1`.
pub(crate) fn get(path: &str) -> Request<Body> {
    get_from("192.0.2.1", path)
}

pub(crate) fn get_from(peer: &str, path: &str) -> Request<Body> {
    let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
    Request::builder().uri(path).extension(ConnectInfo(peer)).body(Body::empty()).unwrap()
}

pub(crate) fn with_header(mut request: Request<Body>, name: &'static str, value: &[u8]) -> Request<Body> {
    request.headers_mut().append(name, http::HeaderValue::from_bytes(value).unwrap());
    request
}

/// A response with its body read.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// A header, or the empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn remaining(&self) -> &str {
        self.header("x-ratelimit-remaining")
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    read(app.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn read<B>(response: http::Response<B>) -> Answer
where
    B: BodyExt,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Answer { status: parts.status, headers: parts.headers, body }
}
