//! Streams of checks: order, errors in place, flow control and the end of a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::Stores;
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{CheckRequest, CheckResponse, CheckResult};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::check;
use super::client::{Client, RULES};
use super::scripted::{Behaviour, Scripted};
use super::service::{Service, soon, with};

const LARGE: &str = "default_limit: none\nrules: [{name: r, dimension: user, algorithm: fixed_window, limit: 1000000, window: 365d}]\n";

fn response(result: Result<CheckResult, Status>) -> CheckResponse {
    match result.unwrap().result {
        Some(Outcome::Response(response)) => response,
        other => panic!("{other:?}"),
    }
}

/// Returns a check whose response identifies it.
fn numbered(number: u32) -> CheckRequest {
    CheckRequest { cost: number + 1, ..check(&format!("u{number}"), "/x") }
}

async fn assert_in_order(answers: Streaming<CheckResult>, count: u32) {
    let answers: Vec<_> = soon(answers.collect()).await;
    assert_eq!(answers.len(), count as usize, "the stream ends when the client ends it");
    for (number, answer) in (0..).zip(answers) {
        assert_eq!(response(answer).current_count, Some(number + 1));
    }
}

#[tokio::test]
async fn ten_thousand_checks_are_answered_in_order() {
    let service = Service::start(LARGE).await;
    let answers =
        service.limiter().check_stream(tokio_stream::iter((0..10_000).map(numbered))).await.unwrap();
    assert_in_order(answers.into_inner(), 10_000).await;
}

#[tokio::test]
async fn order_holds_when_the_store_responds_out_of_order() {
    let stores = Stores::remote(Scripted::new(Behaviour::Uneven), Duration::from_secs(5));
    let service = Service::serve(Client::with_stores(LARGE, stores), LARGE).await;
    let answers = service.limiter().check_stream(tokio_stream::iter((0..2_000).map(numbered))).await.unwrap();
    assert_in_order(answers.into_inner(), 2_000).await;
}

#[tokio::test]
async fn checks_can_be_sent_one_at_a_time() {
    let service = Service::start(RULES).await;
    let (sender, receiver) = mpsc::channel(1);
    let key = [("x-idempotency-key", "of the call and not of each check")];
    let request = with(ReceiverStream::new(receiver), &key);
    let mut answers = service.limiter().check_stream(request).await.unwrap().into_inner();
    for remaining in [99, 98, 97] {
        sender.send(check("u", "/x")).await.unwrap();
        let answer = response(soon(answers.next()).await.unwrap());
        assert_eq!((answer.remaining, answer.replayed), (Some(remaining), false));
    }
    for replayed in [false, true] {
        let keyed = CheckRequest { idempotency_key: "k".into(), ..check("u", "/x") };
        sender.send(keyed).await.unwrap();
        let answer = response(soon(answers.next()).await.unwrap());
        assert_eq!((answer.remaining, answer.replayed), (Some(96), replayed));
    }
    drop(sender);
    assert!(soon(answers.next()).await.is_none());
}

#[tokio::test]
async fn client_that_reads_no_responses_gets_backpressure_and_is_disconnected() {
    let yaml = format!("{LARGE}server: {{request_timeout: 300ms}}\n");
    let service = Service::start(&yaml).await;
    // The smallest window, as used by a client with little memory.
    let channel = service.endpoint().initial_stream_window_size(65_535).connect_lazy();
    let taken = Arc::new(AtomicU64::new(0));
    let identifier = "x".repeat(1_000);
    let endless = {
        let taken = taken.clone();
        tokio_stream::iter(std::iter::repeat_with(move || {
            taken.fetch_add(1, Ordering::Relaxed);
            check(&identifier, "/x")
        }))
    };
    let mut answers = RateLimiterClient::new(channel).check_stream(endless).await.unwrap().into_inner();
    // Its queued messages are dropped with the connection.
    soon(async {
        while Arc::strong_count(&taken) > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let taken = taken.load(Ordering::Relaxed);
    assert!((1..10_000).contains(&taken), "{taken} messages were taken from a client that reads nothing");
    let path = format!("/v1/rate-limit/status/{}/x", "x".repeat(1_000));
    let decided = service.rest.get(&path).await.body["current_count"].as_u64().unwrap();
    assert!((1..5_000).contains(&decided), "{decided}");
    // The responses sent before still arrive; then the stream ends.
    let end = soon(async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    })
    .await;
    let end = end.expect("the stream must not look complete");
    assert_ne!(end.code(), Code::Ok);
    assert_eq!(service.rest.get(&path).await.body["current_count"], decided, "nothing more was decided");
}

#[tokio::test]
async fn slow_reader_receives_all_responses() {
    let service = Service::start(&format!("{LARGE}server: {{request_timeout: 5s}}\n")).await;
    let channel = service.endpoint().initial_stream_window_size(65_535).connect_lazy();
    let many = tokio_stream::iter((0..20_000).map(|_| check("u", "/x")));
    let mut answers = RateLimiterClient::new(channel).check_stream(many).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(answer) = soon(answers.next()).await {
        count += 1;
        assert_eq!(response(answer).current_count, Some(count));
        if count % 5_000 == 0 {
            sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(count, 20_000);
}

#[tokio::test]
async fn shutdown_answers_received_checks_and_ends_the_stream_with_a_status() {
    let yaml = format!("{LARGE}server: {{drain_delay: 0s}}\n");
    let service = Service::start(&yaml).await;
    let (sender, receiver) = mpsc::channel(100);
    let mut answers =
        service.limiter().check_stream(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    for _ in 0..50 {
        sender.send(check("u", "/x")).await.unwrap();
    }
    let decided =
        async || service.rest.get("/v1/rate-limit/status/u/x").await.body["current_count"].as_u64().unwrap();
    soon(async {
        while decided().await < 50 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (_, running) = service.stop();
    for count in 1..=50 {
        assert_eq!(response(soon(answers.next()).await.unwrap()).current_count, Some(count));
    }
    let end = soon(answers.next()).await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable, "{end}");
    drop((sender, answers));
    soon(running).await.unwrap();
}

#[tokio::test]
async fn empty_stream_ends_empty() {
    let service = Service::start(RULES).await;
    let answers = service.limiter().check_stream(tokio_stream::empty()).await.unwrap();
    assert!(soon(answers.into_inner().next()).await.is_none());
}
