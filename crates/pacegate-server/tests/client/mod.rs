//! Shared helpers of the REST tests.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::{HeaderMap, Method, Request, StatusCode};
use pacegate::{MemoryStore, Stores};
use pacegate_catalog::Catalog;
use pacegate_config::Config;
use pacegate_server::{AdminKey, App, Live};
use pacegate_testkit::SimulatedClock;
use serde_json::Value;

/// Rules that the tests share.
pub const RULES: &str = r#"
default_limit: {algorithm: token_bucket, limit: 10, window: 1s, burst: 100}
plans:
  gold: [{algorithm: fixed_window, limit: 3, window: 60s}]
  daily: [{algorithm: fixed_window, limit: 5, window: 1d}, {algorithm: gcra, limit: 100, window: 1h}]
rules:
  - {name: per-user-minute, dimension: user, endpoint: "/api/v1/{*rest}", algorithm: sliding_counter, limit: 100, window: 60s}
  - {name: per-ip, dimension: ip, endpoint: "*", algorithm: fixed_window, limit: 2, window: 60s}
  - {name: queue, dimension: user, endpoint: /queue, algorithm: leaky_bucket, limit: 1, window: 1s, burst: 3}
"#;

/// A client of a service on simulated time.
pub struct Client {
    pub clock: Arc<SimulatedClock>,
    live: Option<Arc<Live>>,
    app: App,
}

/// A response of the service.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The error's code and the field it names.
    pub fn error(&self) -> (&str, &str) {
        let error = &self.body["error"];
        assert_eq!(error["request_id"], self.header("x-request-id"), "{}", self.body);
        assert!(!error["message"].as_str().unwrap().is_empty());
        (error["code"].as_str().unwrap(), error["details"]["field"].as_str().unwrap_or(""))
    }
}

impl Client {
    pub fn new(yaml: &str) -> Self {
        let config = Config::parse(yaml).unwrap();
        let clock = Arc::new(SimulatedClock::default());
        let store = Arc::new(MemoryStore::with_clock(config.stores[0].memory, clock.clone()));
        Self { app: app(&config, Stores::memory(store)), live: None, clock }
    }

    /// Like [`new`](Self::new), with the test's own stores.
    pub fn with_stores(yaml: &str, stores: Stores) -> Self {
        let clock = Arc::new(SimulatedClock::default());
        Self { app: app(&Config::parse(yaml).unwrap(), stores), live: None, clock }
    }

    /// Like [`new`](Self::new), with a catalog in memory.
    pub async fn managed(yaml: &str) -> Self {
        Self::with_catalog(yaml, Catalog::open("sqlite::memory:").await.unwrap()).await
    }

    pub async fn with_catalog(yaml: &str, catalog: Catalog) -> Self {
        let config = Config::parse(yaml).unwrap();
        let clock = Arc::new(SimulatedClock::default());
        let store = Arc::new(MemoryStore::with_clock(config.stores[0].memory, clock.clone()));
        let live = Live::start(config.clone(), Stores::memory(store), catalog).await.unwrap();
        let app = App::managed(&config, live.clone(), Some(AdminKey::new("secret")));
        Self { app, live: Some(live), clock }
    }

    /// Returns the service, for access over other protocols.
    pub fn app(&self) -> App {
        self.app.clone()
    }

    /// Returns the catalog state of a [`managed`](Self::managed) service.
    pub fn live(&self) -> &Live {
        self.live.as_ref().unwrap()
    }

    /// Sends a request with the admin key.
    pub async fn admin(&self, method: Method, path: &str, body: Value) -> Answer {
        self.admin_with(method, path, &[], body).await
    }

    /// Sends a request with the admin key and further headers.
    pub async fn admin_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> Answer {
        let mut all = vec![("content-type", "application/json"), ("x-api-key", "secret")];
        all.extend_from_slice(headers);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &all, body).await
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let peer = SocketAddr::from(([127, 0, 0, 1], 9999));
        let response = self.app.respond(request.body(body.into()).unwrap(), peer).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        if body.is_empty() {
            assert!([204, 304].contains(&parts.status.as_u16()), "{} without a body", parts.status);
            return Answer { status: parts.status, headers: parts.headers, body: Value::Null };
        }
        let body = match parts.headers["content-type"].to_str().unwrap() {
            "application/json" => {
                serde_json::from_slice(&body).unwrap_or_else(|_| panic!("not JSON: {body:?}"))
            }
            kind if kind.starts_with("application/openmetrics-text") => {
                Value::String(String::from_utf8(body.to_vec()).unwrap())
            }
            kind => panic!("{kind}"),
        };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Body::empty()).await
    }

    pub async fn check(&self, body: &Value) -> Answer {
        self.post("/v1/rate-limit/check", body).await
    }

    pub async fn reset(&self, body: &Value) -> Answer {
        let headers = [("content-type", "application/json"), ("x-api-key", "secret")];
        self.send(Method::POST, "/v1/rate-limit/reset", &headers, body.to_string()).await
    }
}

fn app(config: &Config, stores: Stores) -> App {
    App::new(config, config.limiter_with(stores).unwrap(), AdminKey::new("secret"))
}
