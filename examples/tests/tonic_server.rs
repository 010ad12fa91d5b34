//! The gRPC server, called by a tonic client.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use support::{Example, command};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// A client with a new connection.
async fn connect(server: &Example) -> HealthClient<Channel> {
    HealthClient::new(Endpoint::new(server.url.clone()).unwrap().connect().await.unwrap())
}

#[tokio::test]
async fn fourth_call_is_resource_exhausted_with_retry_after() {
    let server = Example::start(&mut command(env!("CARGO_BIN_EXE_tonic_server"), &["127.0.0.1:0"]));
    let mut client = connect(&server).await;
    for remaining in ["2", "1", "0"] {
        let response = client.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), remaining);
        assert_eq!(response.get_ref().status(), ServingStatus::Serving);
    }
    let denied = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(denied.message().starts_with("rate limit `calls` exceeded; retry in "), "{denied}");
    let wait: u32 = denied.metadata().get("retry-after").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{denied}");
    // Another connection from the same address shares the limit.
    let mut other = connect(&server).await;
    assert_eq!(other.check(HealthCheckRequest::default()).await.unwrap_err().code(), Code::ResourceExhausted);
}
