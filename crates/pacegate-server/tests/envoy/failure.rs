//! While a store is unavailable, Envoy still gets a response in time: it allows a request on
//! errors.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use pacegate::Stores;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::time::Instant;
use tonic::{Code as Grpc, Request};

use super::client::Client;
use super::scripted::{Behaviour, Scripted};
use super::service::{NoTimeoutChannel, Service, soon, with};
use super::{ask, descriptor, headers, numbers, request};

const RULES: &str = r#"
default_limit: none
descriptors:
  - {domain: edge, name: open, entries: [{key: open}], algorithm: sliding_log, limit: 2, window: 1d, on_store_error: open}
  - {domain: edge, name: closed, entries: [{key: closed}], algorithm: sliding_log, limit: 2, window: 1d, on_store_error: closed}
  - {domain: edge, name: local, entries: [{key: local}], algorithm: sliding_log, limit: 2, window: 1d, on_store_error: local}
  - {domain: edge, name: unsaid, entries: [{key: unsaid}], algorithm: sliding_log, limit: 2, window: 1d}
"#;

const DEGRADED: (&str, &str) = ("x-pacegate-degraded", "true");

async fn service(behaviour: Behaviour, settings: &str) -> (Service, Arc<Scripted>) {
    let yaml = format!("{RULES}{settings}");
    let store = Scripted::new(behaviour);
    // Far longer than Envoy waits: its requests have their own deadline.
    let rest = Client::with_stores(&yaml, Stores::remote(store.clone(), Duration::from_secs(10)));
    (Service::serve(rest, &yaml).await, store)
}

fn without_numbers(code: Code) -> DescriptorStatus {
    DescriptorStatus { code: code.into(), ..DescriptorStatus::default() }
}

#[tokio::test]
async fn failure_mode_decides_and_unknown_numbers_are_omitted() {
    for behaviour in [Behaviour::Unavailable, Behaviour::Hang, Behaviour::Rejected, Behaviour::Foreign] {
        let (service, _) = service(behaviour, "").await;
        for (key, code) in [("open", Code::Ok), ("closed", Code::OverLimit), ("unsaid", Code::Ok)] {
            let response = ask(&service, vec![descriptor(&[(key, "x")])]).await;
            assert_eq!(response.overall_code(), code, "{behaviour:?} {key}");
            assert_eq!(response.statuses, [without_numbers(code)], "{behaviour:?} {key}");
            let policy = format!("\"{key}\";q=2;w=86400");
            let found = headers(&response);
            let configured = [
                ("ratelimit-policy", policy.as_str()),
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-strategy", "sliding_log"),
            ];
            for header in configured.into_iter().chain([DEGRADED]) {
                assert!(found.contains(&header), "{behaviour:?}: {found:?}");
            }
            for (name, _) in &found {
                let counted = ["x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "retry-after"];
                assert!(!counted.contains(name), "{behaviour:?}: {found:?}");
            }
        }
        for (code, remaining) in [(Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
            let response = ask(&service, vec![descriptor(&[("local", "x")])]).await;
            assert_eq!(
                numbers(&response),
                (code, vec![remaining]),
                "{behaviour:?}: counted by local counters"
            );
            assert!(headers(&response).contains(&DEGRADED));
        }
        let both = ask(&service, vec![descriptor(&[("open", "x")]), descriptor(&[("closed", "x")])]).await;
        assert_eq!(both.overall_code(), Code::OverLimit);
        assert_eq!(both.statuses, [without_numbers(Code::Ok), without_numbers(Code::OverLimit)]);
        let nothing = ask(&service, vec![descriptor(&[("none", "x")])]).await;
        assert_eq!((nothing.overall_code(), headers(&nothing).len()), (Code::Ok, 0), "no store was called");
    }
}

#[tokio::test]
async fn healthy_store_is_not_degraded() {
    // The result must depend on the store, not on the speed of the machine.
    let (service, store) = service(Behaviour::Unavailable, "failure: {envoy_timeout: 5s}\n").await;
    assert!(headers(&ask(&service, vec![descriptor(&[("open", "x")])]).await).contains(&DEGRADED));
    store.set(Behaviour::Answer);
    let response = ask(&service, vec![descriptor(&[("open", "x")])]).await;
    assert!(!headers(&response).contains(&DEGRADED));
    assert_eq!(numbers(&response), (Code::Ok, vec![1]));
}

#[tokio::test]
async fn undecidable_request_gets_a_response() {
    for (mode, code) in [("open", Code::Ok), ("closed", Code::OverLimit), ("local", Code::Ok)] {
        let (service, _) = service(Behaviour::Overloaded, &format!("failure: {{mode: {mode}}}\n")).await;
        let response =
            ask(&service, vec![descriptor(&[("unsaid", "x")]), descriptor(&[("open", "x")])]).await;
        let expected = vec![without_numbers(code); 2];
        assert_eq!((response.overall_code(), response.statuses.clone()), (code, expected), "{mode}");
        assert_eq!(headers(&response), [DEGRADED]);
    }
}

/// Returns a request with a timeout that the service enforces.
fn within(timeout: &str, key: &str, number: usize) -> Request<RateLimitRequest> {
    let number = number.to_string();
    let descriptors = vec![descriptor(&[(key, &number)]), descriptor(&[("local", &number)])];
    with(request(descriptors), &[("grpc-timeout", timeout)])
}

/// Asserts that a request gets a response within 15 ms; after that, the service itself returns an
/// error. The clock advances only while all tasks are idle, so a busy machine makes no difference.
async fn assert_answered(client: &RateLimitServiceClient<NoTimeoutChannel>, number: usize) {
    let (key, code) = if number % 2 == 1 { ("closed", Code::OverLimit) } else { ("open", Code::Ok) };
    let answer = client.clone().should_rate_limit(within("15m", key, number)).await;
    let response = answer.unwrap_or_else(|status| panic!("{number}: {status}")).into_inner();
    assert_eq!(response.overall_code(), code, "{number}");
    assert!(headers(&response).contains(&DEGRADED));
}

async fn without_timeout(service: &Service) -> RateLimitServiceClient<NoTimeoutChannel> {
    RateLimitServiceClient::with_origin(service.without_timeout().await, service.origin())
}

#[tokio::test(start_paused = true)]
async fn hanging_store_delays_no_request_beyond_envoys_deadline() {
    let (service, _) = service(Behaviour::Hang, "").await;
    let client = without_timeout(&service).await;
    // One after the other, then many at once: the first requests wait for the timeout, later ones
    // do not.
    for number in 0..100 {
        assert_answered(&client, number).await;
    }
    join_all((100..200).map(|number| assert_answered(&client, number))).await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_on_a_store_that_just_hung_are_answered_in_time() {
    let (service, store) = service(Behaviour::Answer, "").await;
    let client = without_timeout(&service).await;
    let healthy = client.clone().should_rate_limit(within("15m", "open", 0)).await.unwrap().into_inner();
    assert!(!headers(&healthy).contains(&DEGRADED));
    store.set(Behaviour::Hang);
    join_all((0..200).map(|number| assert_answered(&client, number))).await;
}

#[tokio::test(start_paused = true)]
async fn hits_of_many_sizes_share_one_deadline() {
    let (service, _) = service(Behaviour::Hang, "").await;
    let mut client = without_timeout(&service).await;
    for _ in 0..20 {
        let descriptors = (1..=20)
            .map(|hits| RateLimitDescriptor {
                hits_addend: Some(hits),
                ..descriptor(&[("closed", &hits.to_string())])
            })
            .collect();
        let answer = client.should_rate_limit(with(request(descriptors), &[("grpc-timeout", "15m")])).await;
        assert_eq!(answer.unwrap().into_inner().overall_code(), Code::OverLimit);
    }
}

#[tokio::test]
async fn shorter_deadline_of_a_request_is_kept() {
    // The store may take longer than the client waits: the service returns an error at the
    // deadline.
    let (service, _) = service(Behaviour::Hang, "failure: {envoy_timeout: 5s}\n").await;
    let mut client = without_timeout(&service).await;
    let start = Instant::now();
    let rejected = soon(client.should_rate_limit(within("20m", "open", 1))).await.unwrap_err();
    assert_eq!(rejected.code(), Grpc::DeadlineExceeded);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn store_that_is_too_slow_for_envoy_alone_leaves_the_service_ready() {
    let (service, store) = service(Behaviour::Slow, "").await;
    let client = without_timeout(&service).await;
    for number in 0..20 {
        assert_answered(&client, number).await;
    }
    let metrics = service.rest.get("/metrics").await.body;
    let metrics = metrics.as_str().unwrap();
    let breaker = |caller| format!("pacegate_breaker_state{{store=\"default\",caller=\"{caller}\"}}");
    assert!(metrics.contains(&format!("{} 2", breaker("envoy"))), "{metrics}");
    assert!(metrics.contains(&format!("{} 0", breaker("any"))), "{metrics}");
    assert!(metrics.contains("pacegate_store_up{store=\"default\"} 1"), "{metrics}");
    assert_eq!(service.rest.get("/readyz").await.status, 200);
    store.set(Behaviour::Hang);
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(service.rest.get("/readyz").await.status, 503);
}
