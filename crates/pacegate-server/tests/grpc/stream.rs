//! A stream of checks: order, errors in place, flow control, and its end.

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

/// A check whose answer says which one it was.
fn numbered(number: u32) -> CheckRequest {
    CheckRequest { cost: number + 1, ..check(&format!("u{number}"), "/x") }
}

async fn assert_in_order(answers: Streaming<CheckResult>, count: u32) {
    let answers: Vec<_> = soon(answers.collect()).await;
    assert_eq!(answers.len(), count as usize, "the client's end is the end");
    for (number, answer) in (0..).zip(answers) {
        assert_eq!(response(answer).current_count, Some(number + 1));
    }
}

#[tokio::test]
async fn ten_thousand_checks_are_answered_in_their_order() {
    let service = Service::start(LARGE).await;
    let answers =
        service.limiter().check_stream(tokio_stream::iter((0..10_000).map(numbered))).await.unwrap();
    assert_in_order(answers.into_inner(), 10_000).await;
}

#[tokio::test]
async fn the_order_holds_though_the_store_answers_in_another() {
    let stores = Stores::remote(Scripted::new(Behaviour::Uneven), Duration::from_secs(5));
    let service = Service::serve(Client::with_stores(LARGE, stores), LARGE).await;
    let answers = service.limiter().check_stream(tokio_stream::iter((0..2_000).map(numbered))).await.unwrap();
    assert_in_order(answers.into_inner(), 2_000).await;
}

#[tokio::test]
async fn each_check_is_answered_before_the_next_is_sent_if_the_client_likes() {
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
async fn a_client_that_reads_no_answers_is_not_read_from_and_then_cut_off() {
    let yaml = format!("{LARGE}server: {{request_timeout: 300ms}}\n");
    let service = Service::start(&yaml).await;
    // As a client in need of little memory would have it.
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
    // Its messages are dropped with the connection.
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
    // What was answered before arrives yet; then it is over.
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
async fn a_slow_reader_gets_everything() {
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
async fn a_service_that_stops_answers_what_it_read_and_says_so() {
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
async fn a_stream_with_nothing_in_it_ends_with_nothing() {
    let service = Service::start(RULES).await;
    let answers = service.limiter().check_stream(tokio_stream::empty()).await.unwrap();
    assert!(soon(answers.into_inner().next()).await.is_none());
}
