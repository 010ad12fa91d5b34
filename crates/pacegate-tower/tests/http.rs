//! A real axum server on a real socket.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get as on_get;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use pacegate::Limit;
use pacegate_tower::resolve::address;
use pacegate_tower::{IpNet, PacegateLayer};
use tokio::net::TcpListener;

use support::{Answer, limiter, read};

/// A server that runs for the duration of the test.
struct Served {
    address: SocketAddr,
    client: Client<HttpConnector, Body>,
}

impl Served {
    async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(self.client.request(request.body(Body::empty()).unwrap()).await.unwrap()).await
    }
}

#[tokio::test]
async fn router_is_limited_as_a_whole_and_by_route() {
    let per_hour = |quota| Limit::per_hour(quota);
    let (limiter, _) = limiter(|builder| builder.plan("all", [per_hour(5)]).plan("login", [per_hour(2)]));
    let layer = |plan| PacegateLayer::builder(limiter.clone()).by(address()).plan(plan).build().unwrap();
    let app = Router::new()
        .route("/login", on_get(|| async { "in" }).layer(layer("login")))
        .route("/", on_get(|| async { "hello" }))
        .layer(layer("all"));
    let served = Served::start(app).await;
    let answer = served.get("/", &[]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, b"hello".as_slice()));
    for (name, value) in [
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "4"),
        ("x-ratelimit-reset", "1790000721"),
        ("x-ratelimit-strategy", "token_bucket"),
        ("ratelimit-policy", r#""all";q=5;w=3600"#),
        ("ratelimit", r#""all";r=4;t=720"#),
        ("content-type", "text/plain; charset=utf-8"),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    for left in ["1", "0"] {
        assert_eq!(served.get("/login", &[]).await.remaining(), left);
    }
    let denied = served.get("/login", &[("x-forwarded-for", "6.6.6.6")]).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1800"));
    assert_eq!(denied.json()["error"]["code"], "RATE_LIMITED");
    assert_eq!(denied.header("content-length"), denied.body.len().to_string());
    assert_eq!(served.get("/", &[]).await.remaining(), "0");
    assert_eq!(served.get("/", &[]).await.json()["rule"], "all");
}

#[tokio::test]
async fn local_proxy_can_be_trusted() {
    let (limiter, _) = limiter(|builder| builder.plan("all", [Limit::per_hour(5)]));
    let loopback: IpNet = "127.0.0.0/8".parse().unwrap();
    let layer = PacegateLayer::builder(limiter).by(address().trust([loopback])).plan("all").build().unwrap();
    let served = Served::start(Router::new().route("/", on_get(|| async {})).layer(layer)).await;
    assert_eq!(served.get("/", &[("x-forwarded-for", "203.0.113.1")]).await.remaining(), "4");
    assert_eq!(served.get("/", &[("x-forwarded-for", "203.0.113.2")]).await.remaining(), "4");
    assert_eq!(served.get("/", &[("x-forwarded-for", "6.6.6.6, 203.0.113.2")]).await.remaining(), "3");
    assert_eq!(served.get("/", &[]).await.remaining(), "4", "the proxy itself");
}
