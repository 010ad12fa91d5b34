//! Denied gRPC requests get gRPC responses, also from a real tonic server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pacegate::{
    FailureMode, Limit, Limiter, LimiterBuilder, StoreError, Timestamp,
    store::{ApplyFuture, Command, Store},
};
use pacegate_tower::resolve::{address, api_key};
use pacegate_tower::{Format, LayerBuilder, PacegateLayer};
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::Service;

use support::{Answer, app, get, limiter, read, send, with_header};

fn call(content_type: &str) -> Request<Body> {
    with_header(get("/shop.v1.Orders/List"), "content-type", content_type.as_bytes())
}

fn once(builder: LimiterBuilder) -> LimiterBuilder {
    builder.plan("100 %", [Limit::per_hour(1)])
}

fn assert_rejected(answer: &Answer, content_type: &str, status: &str, message: &str) {
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), content_type);
    assert_eq!((answer.header("grpc-status"), answer.header("grpc-message")), (status, message));
    assert!(answer.body.is_empty());
}

#[tokio::test]
async fn denial_is_resource_exhausted_with_the_usual_headers() {
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
        let layer = PacegateLayer::builder(limiter(once).0).by(address()).plan("100 %");
        // The format for other requests does not matter for gRPC.
        let layer = layer.format(Format::Problem).respond_with(|_| Response::new("own".into()));
        let app = app(layer.build().unwrap());
        assert_eq!(send(&app, call(content_type)).await.remaining(), "0");
        let answer = send(&app, call(content_type)).await;
        assert_rejected(&answer, content_type, "8", "rate limit `100 %25` exceeded; retry in 3600 s");
        assert_eq!((answer.header("retry-after"), answer.remaining()), ("3600", "0"));
        assert_eq!(answer.header("ratelimit"), r#""100 %";r=0;t=3600"#);
    }
}

#[tokio::test]
async fn missing_key_is_unauthenticated_and_invalid_key_is_invalid_argument() {
    let layer = PacegateLayer::builder(limiter(once).0).by(api_key()).plan("100 %").build().unwrap();
    let answer = send(&app(layer.clone()), call("application/grpc")).await;
    assert_rejected(&answer, "application/grpc", "16", "header `x-api-key` is missing");
    let answer = send(&app(layer), with_header(call("application/grpc"), "x-api-key", b"\xff")).await;
    assert_rejected(&answer, "application/grpc", "3", "x-api-key: must be UTF-8");
}

/// An unavailable store.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    fn apply<'a>(&'a self, _: &'a Command<'a>, _: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(ready(Err(StoreError::unavailable("gone"))))
    }
}

#[tokio::test]
async fn limit_that_fails_closed_is_unavailable() {
    let limiter = once(Limiter::builder()).store(Arc::new(Gone)).on_store_error(FailureMode::Closed);
    let layer = PacegateLayer::builder(limiter.build().unwrap()).by(address()).plan("100 %");
    let answer = send(&app(layer.build().unwrap()), call("application/grpc")).await;
    let message = "store unavailable; this limit fails closed";
    assert_rejected(&answer, "application/grpc", "14", message);
    assert_eq!(answer.header("retry-after"), "1");
}

/// A gRPC service that answers every call with an empty success.
#[derive(Clone)]
struct Orders;

impl NamedService for Orders {
    const NAME: &'static str = "shop.v1.Orders";
}

impl Service<Request<tonic::body::Body>> for Orders {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<tonic::body::Body>) -> Self::Future {
        let response =
            Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
        ready(Ok(response.body(tonic::body::Body::empty()).unwrap()))
    }
}

#[tokio::test]
async fn tonic_server_is_limited_by_peer_address() {
    let build = |layer: LayerBuilder| layer.by(address()).plan("100 %").build().unwrap();
    let layer = build(PacegateLayer::builder(limiter(once).0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(Orders);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let ask = || async {
        let request = Request::post(format!("http://{target}/shop.v1.Orders/List"))
            .header("content-type", "application/grpc")
            .body(Body::empty());
        read(client.request(request.unwrap()).await.unwrap()).await
    };
    let answer = ask().await;
    assert_eq!((answer.header("grpc-status"), answer.remaining()), ("0", "0"));
    let answer = ask().await;
    assert_rejected(&answer, "application/grpc", "8", "rate limit `100 %25` exceeded; retry in 3600 s");
    assert_eq!(answer.header("retry-after"), "3600");
}
