//! Checks above `server.max_checks_per_second` are shed over every protocol, and health checks are
//! always answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod service;

use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code as EnvoyCode;
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest};
use serde_json::json;
use service::Service;
use tokio_stream::StreamExt;
use tonic::Code;

/// Enough attempts that two of them fall into the same second, in which one check is allowed.
const ATTEMPTS: usize = 50;

fn settings(mode: &str) -> String {
    format!("default_limit: none\nserver: {{max_checks_per_second: 1}}\nfailure: {{mode: {mode}}}\n")
}

fn check() -> CheckRequest {
    CheckRequest { identifier: "u".into(), endpoint: "/x".into(), ..CheckRequest::default() }
}

#[tokio::test]
async fn rest_checks_and_batches_above_the_rate_are_shed_and_health_is_not() {
    let service = Service::start(&settings("open")).await;
    let single = json!({"user_id": "u", "endpoint": "/x"});
    let batch = json!({"checks": [single, single]});
    for (path, body) in [("/v1/rate-limit/check", &single), ("/v1/rate-limit/batch-check", &batch)] {
        let mut rejected = None;
        for _ in 0..ATTEMPTS {
            let answer = service.rest.post(path, body).await;
            assert_eq!(service.rest.get("/healthz").await.status, 200);
            assert_eq!(service.rest.get("/readyz").await.status, 200);
            if answer.status == 503 {
                rejected = Some(answer);
                break;
            }
            assert_eq!(answer.status, 200);
        }
        let rejected = rejected.expect("a check above the rate");
        assert_eq!(rejected.error(), ("OVERLOADED", ""));
        assert_eq!(rejected.header("retry-after"), "1");
        assert!(rejected.body.get("allowed").is_none(), "nothing was decided");
    }
    let metrics = service.rest.get("/metrics").await.body;
    let counted =
        metrics.as_str().unwrap().lines().find(|line| line.contains("overloaded_total{reason=\"rate\"}"));
    assert!(counted.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}

#[tokio::test]
async fn grpc_checks_batches_and_streams_above_the_rate_are_unavailable() {
    let service = Service::start(&settings("open")).await;
    let mut client = service.limiter();
    let mut rejected = [None, None];
    for _ in 0..ATTEMPTS {
        let batch = BatchCheckRequest { checks: vec![check(); 2], ..BatchCheckRequest::default() };
        if rejected[0].is_none() {
            rejected[0] = client.check_rate_limit(check()).await.err();
        } else if rejected[1].is_none() {
            rejected[1] = client.batch_check(batch).await.err();
        }
    }
    for status in rejected {
        let status = status.expect("a check and a batch above the rate");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(status.metadata().get("retry-after").unwrap(), "1");
    }
    let stream = client.check_stream(tokio_stream::iter(vec![check(); ATTEMPTS])).await.unwrap().into_inner();
    let answers: Vec<_> = stream.collect().await;
    let errors: Vec<_> = answers
        .into_iter()
        .filter_map(|answer| match answer.unwrap().result {
            Some(Outcome::Error(error)) => Some(error),
            _ => None,
        })
        .collect();
    assert!(errors.iter().any(|error| error.code == "OVERLOADED"), "{errors:?}");
}

#[tokio::test]
async fn envoy_gets_the_failure_mode_when_overloaded() {
    for (mode, code) in [("open", EnvoyCode::Ok), ("closed", EnvoyCode::OverLimit)] {
        let service = Service::start(&settings(mode)).await;
        let mut client = service.envoy();
        let request = RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![RateLimitDescriptor::default()],
            hits_addend: 0,
        };
        let mut degraded = 0;
        for _ in 0..ATTEMPTS {
            let answer = client.should_rate_limit(request.clone()).await.unwrap().into_inner();
            if answer.response_headers_to_add.iter().any(|header| header.key == "x-pacegate-degraded") {
                assert_eq!(answer.overall_code(), code, "{mode}");
                degraded += 1;
            }
        }
        assert!(degraded > 0, "{mode}");
    }
}
