//! Answers while a store fails, and deadlines.

use std::sync::Arc;
use std::time::Duration;

use pacegate::Stores;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest, CheckResponse, QuotaRequest, ResetRequest, State};
use tokio::time::Instant;
use tonic::Code;

use super::check;
use super::client::Client;
use super::scripted::{Behaviour, Scripted};
use super::service::{Service, soon, with};

const RULES: &str = r#"
default_limit: none
rules:
  - {name: open, dimension: user, endpoint: /open, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: open}
  - {name: closed, dimension: user, endpoint: /closed, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: closed}
  - {name: local, dimension: user, endpoint: /local, algorithm: sliding_log, limit: 2, window: 1d, on_store_error: local}
"#;

async fn service(behaviour: Behaviour, deadline: Duration, settings: &str) -> (Service, Arc<Scripted>) {
    let yaml = format!("{RULES}{settings}");
    let store = Scripted::new(behaviour);
    let rest = Client::with_stores(&yaml, Stores::remote(store.clone(), deadline));
    (Service::serve(rest, &yaml).await, store)
}

/// What is configured may be said, what was counted may not.
fn unknown(rule: &str, allowed: bool, reason: &str) -> CheckResponse {
    CheckResponse {
        allowed,
        limit: Some(2),
        rule: rule.into(),
        algorithm: "sliding_log".into(),
        state: if allowed { State::Normal } else { State::Throttled }.into(),
        reason: reason.into(),
        degraded: true,
        ..CheckResponse::default()
    }
}

#[tokio::test]
async fn a_failing_store_is_answered_by_the_failure_mode_without_inventing_a_number() {
    for behaviour in [Behaviour::Unavailable, Behaviour::Hang, Behaviour::Rejected, Behaviour::Foreign] {
        let (service, store) = service(behaviour, Duration::from_millis(20), "").await;
        let mut client = service.limiter();
        for (rule, allowed, reason) in [("open", true, "FAIL_OPEN"), ("closed", false, "FAIL_CLOSED")] {
            let endpoint = format!("/{rule}");
            let mut answer = client.check_rate_limit(check("u", &endpoint)).await.unwrap().into_inner();
            answer.state = unknown(rule, allowed, reason).state;
            let decided_at_us = answer.decided_at_us;
            assert_eq!(
                answer,
                CheckResponse { decided_at_us, ..unknown(rule, allowed, reason) },
                "{behaviour:?}"
            );
            let quota = QuotaRequest { identifier: "u".into(), endpoint, ..QuotaRequest::default() };
            let quota = client.get_remaining_quota(quota).await.unwrap().into_inner();
            assert_eq!((quota.limit, quota.remaining, quota.current_count), (Some(2), None, None));
            assert_eq!(quota.check.unwrap().reason, reason);
        }
        for (allowed, remaining) in [(true, 1), (true, 0), (false, 0)] {
            let answer = client.check_rate_limit(check("u", "/local")).await.unwrap().into_inner();
            assert_eq!((answer.allowed, answer.remaining), (allowed, Some(remaining)), "{behaviour:?}");
            assert_eq!((answer.degraded, answer.reason.as_str()), (true, "LOCAL_FALLBACK"));
        }
        store.set(Behaviour::Answer);
    }
}

#[tokio::test]
async fn what_cannot_be_decided_is_unavailable() {
    let (service, store) = service(Behaviour::Overloaded, Duration::from_millis(50), "").await;
    let mut client = service.limiter();
    let refused = client.check_rate_limit(check("u", "/open")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "nobody decided: {refused}");
    store.set(Behaviour::Unavailable);
    let reset = ResetRequest { identifier: "u".into(), endpoint: "/open".into(), ..ResetRequest::default() };
    let refused = client.reset_limit(with(reset, &[("x-api-key", "secret")])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(!refused.message().contains("refused"), "servers are not the client's business: {refused}");
    let batch =
        BatchCheckRequest { checks: vec![check("u", "/open"), check("u", "/closed")], ..Default::default() };
    let results = client.batch_check(batch).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 2, "a batch is answered by the failure mode as well: {results:?}");
}

/// The same check, with a time-out that nobody but the service keeps.
async fn with_timeout(service: &Service, timeout: &str) -> (Result<CheckResponse, tonic::Status>, Duration) {
    let mut client = RateLimiterClient::with_origin(service.patient().await, service.origin());
    let request: tonic::Request<CheckRequest> = with(check("u", "/open"), &[("grpc-timeout", timeout)]);
    let start = Instant::now();
    let answer = soon(client.check_rate_limit(request)).await;
    (answer.map(tonic::Response::into_inner), start.elapsed())
}

#[tokio::test]
async fn the_clients_deadline_is_kept() {
    let (service, store) = service(Behaviour::Hang, Duration::from_secs(10), "").await;
    for timeout in ["50m", "50000u", "50000000n", "1n"] {
        let (answer, took) = with_timeout(&service, timeout).await;
        assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded, "{timeout}");
        assert!(took < Duration::from_secs(5), "{timeout}: {took:?}");
    }
    for wrong in ["50", "m", "-1m", "999999999S", "1.5S", "50 m"] {
        let refused = with_timeout(&service, wrong).await.0.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}");
        assert!(refused.message().starts_with("grpc-timeout: "), "{refused}");
    }
    store.set(Behaviour::Answer);
    for timeout in ["10S", "1M", "99999999H"] {
        assert!(with_timeout(&service, timeout).await.0.is_ok(), "{timeout}");
    }
}

#[tokio::test]
async fn no_request_takes_longer_than_the_service_allows() {
    let settings = "server: {request_timeout: 200ms}\n";
    let (service, _) = service(Behaviour::Hang, Duration::from_secs(10), settings).await;
    let refused = soon(service.limiter().check_rate_limit(check("u", "/open"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);
    assert_eq!(refused.message(), "the request took too long");
    let (answer, took) = with_timeout(&service, "1H").await;
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(took < Duration::from_secs(5), "{took:?}");
}
