//! Responses while a store is unavailable, and deadlines.

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

/// Configured numbers may be shown, counted numbers may not.
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
async fn failing_store_gets_the_failure_mode_and_omits_unknown_numbers() {
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
async fn undecidable_check_is_unavailable() {
    let (service, store) = service(Behaviour::Overloaded, Duration::from_millis(50), "").await;
    let mut client = service.limiter();
    let rejected = client.check_rate_limit(check("u", "/open")).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "there is no decision: {rejected}");
    store.set(Behaviour::Unavailable);
    let reset = ResetRequest { identifier: "u".into(), endpoint: "/open".into(), ..ResetRequest::default() };
    let rejected = client.reset_limit(with(reset, &[("x-api-key", "secret")])).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable);
    assert!(!rejected.message().contains("refused"), "internal details are not sent to clients: {rejected}");
    let batch =
        BatchCheckRequest { checks: vec![check("u", "/open"), check("u", "/closed")], ..Default::default() };
    let results = client.batch_check(batch).await.unwrap().into_inner().results;
    assert_eq!(results.len(), 2, "a batch follows the failure mode as well: {results:?}");
}

/// Sends the same check with a timeout that only the service enforces.
async fn with_timeout(service: &Service, timeout: &str) -> (Result<CheckResponse, tonic::Status>, Duration) {
    let mut client = RateLimiterClient::with_origin(service.without_timeout().await, service.origin());
    let request: tonic::Request<CheckRequest> = with(check("u", "/open"), &[("grpc-timeout", timeout)]);
    let start = Instant::now();
    let answer = soon(client.check_rate_limit(request)).await;
    (answer.map(tonic::Response::into_inner), start.elapsed())
}

#[tokio::test]
async fn client_deadline_is_kept() {
    let (service, store) = service(Behaviour::Hang, Duration::from_secs(10), "").await;
    for timeout in ["50m", "50000u", "50000000n", "1n"] {
        let (answer, took) = with_timeout(&service, timeout).await;
        assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded, "{timeout}");
        assert!(took < Duration::from_secs(5), "{timeout}: {took:?}");
    }
    for wrong in ["50", "m", "-1m", "999999999S", "1.5S", "50 m"] {
        let rejected = with_timeout(&service, wrong).await.0.unwrap_err();
        assert_eq!(rejected.code(), Code::InvalidArgument, "{wrong}");
        assert!(rejected.message().starts_with("grpc-timeout: "), "{rejected}");
    }
    store.set(Behaviour::Answer);
    for timeout in ["10S", "1M", "99999999H"] {
        assert!(with_timeout(&service, timeout).await.0.is_ok(), "{timeout}");
    }
}

#[tokio::test]
async fn request_timeout_of_the_service_is_kept() {
    let settings = "server: {request_timeout: 200ms}\n";
    let (service, _) = service(Behaviour::Hang, Duration::from_secs(10), settings).await;
    let rejected = soon(service.limiter().check_rate_limit(check("u", "/open"))).await.unwrap_err();
    assert_eq!(rejected.code(), Code::DeadlineExceeded);
    assert_eq!(rejected.message(), "the request timed out");
    let (answer, took) = with_timeout(&service, "1H").await;
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(took < Duration::from_secs(5), "{took:?}");
}
