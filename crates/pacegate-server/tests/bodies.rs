//! Request bodies in flight: keys are checked before any byte of a body is stored, and all bodies
//! share one memory budget.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod frames;
mod sockets;

use frames::{DATA, END_STREAM, HEADERS, Target, Wire};
use sockets::{Service, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A small memory budget, and timeouts that are long enough for the tests.
const SMALL: &str = "server: {max_request_memory: 1MiB, request_timeout: 60s}";
const CHECK: &str = r#"{"user_id":"u","endpoint":"/x"}"#;

/// Returns the head of a check.
fn head(length: usize, more: &str) -> String {
    format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

/// Starts a check over HTTP/1 and sends `sent` bytes of its body.
async fn begin(service: &Service, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(head(200_000, "").as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; sent]).await.unwrap();
    stream
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

async fn check(service: &Service, more: &str) -> String {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all((head(CHECK.len(), more) + CHECK).as_bytes()).await.unwrap();
    answer(&mut stream).await
}

async fn metric(service: &Service, name: &str) -> f64 {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let text = answer(&mut stream).await;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Starts a gRPC request and sends the first bytes of a message of 200,000 bytes.
async fn announce(wire: &mut Wire, stream: u32, sent: usize) {
    wire.begin(stream).await.unwrap();
    let message = [&[0][..], &200_000_u32.to_be_bytes(), &vec![b'x'; sent]].concat();
    for piece in message.chunks(16_384) {
        wire.send(DATA, 0, stream, piece).await.unwrap();
    }
}

#[tokio::test]
async fn caller_without_a_key_is_rejected_before_its_body_arrives() {
    let service = Service::start("server: {require_key: true, request_timeout: 60s}").await;
    let [_, unary] = Target::both(&service);
    let envoy = Target { path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", ..unary };
    let reset = Target { path: "/pacegate.v1.RateLimiter/ResetLimit", ..unary };
    for target in [unary, Target::stream(&service), envoy, reset] {
        let mut wire = Wire::open(&target, &[]).await;
        announce(&mut wire, 1, 0).await;
        let frame = soon(wire.next()).await.unwrap();
        assert_eq!(
            (frame.kind, frame.flags & END_STREAM),
            (HEADERS, END_STREAM),
            "{}: {frame:?}",
            target.path
        );
    }
    let mut stream = begin(&service, 10).await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 401"));
    assert_eq!(metric(&service, "pacegate_request_memory_bytes").await, 0.0);
    assert!(check(&service, "x-api-key: secret\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn half_sent_bodies_are_rejected_oldest_first_and_others_are_served() {
    let service = Service::start(SMALL).await;
    let mut streams = Vec::new();
    for _ in 0..12 {
        streams.push(begin(&service, 100_000).await);
    }
    let oldest = answer(&mut streams[0]).await;
    assert!(oldest.starts_with("HTTP/1.1 503"), "{oldest}");
    assert!(oldest.contains("retry-after: 1\r\n") && oldest.contains("\"OVERLOADED\""), "{oldest}");
    assert!(check(&service, "").await.starts_with("HTTP/1.1 200"));
    let held = metric(&service, "pacegate_request_memory_bytes").await;
    assert!((100_000.0..=1_048_576.0).contains(&held), "{held}");
    assert!(metric(&service, "pacegate_overloaded_total{reason=\"memory\"}").await >= 1.0);
    // A body that was not rejected is answered when its rest arrives.
    let newest = &mut streams[11];
    newest.write_all(&vec![b' '; 100_000 - CHECK.len()]).await.unwrap();
    newest.write_all(CHECK.as_bytes()).await.unwrap();
    assert!(answer(newest).await.starts_with("HTTP/1.1 200"));
    drop(streams);
}

#[tokio::test]
async fn half_sent_messages_are_rejected_and_envoy_gets_the_failure_mode() {
    let service = Service::start(SMALL).await;
    let [_, unary] = Target::both(&service);
    let envoy = Target { path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", ..unary };
    for (target, has_message) in [(unary, false), (Target::stream(&service), false), (envoy, true)] {
        let mut wires = Vec::new();
        for _ in 0..8 {
            let mut wire = Wire::open(&target, &[]).await;
            // The service sends its settings first.
            wire.is_seen().await.unwrap();
            for stream in [1, 3, 5] {
                announce(&mut wire, stream, 50_000).await;
            }
            wires.push(wire);
        }
        let mut answered = false;
        loop {
            let frame = wires[0].next().await.unwrap();
            answered |= frame.kind == DATA;
            if frame.flags & END_STREAM != 0 {
                break;
            }
        }
        assert_eq!(answered, has_message, "{}", target.path);
        let mut other = Wire::open(&unary, &[]).await;
        assert!(other.is_answered(1).await, "{}", target.path);
    }
}

#[tokio::test]
async fn message_of_a_stream_must_arrive_within_the_request_timeout() {
    let service = Service::start("server: {request_timeout: 300ms}").await;
    let mut wire = Wire::open(&Target::stream(&service), &[]).await;
    announce(&mut wire, 1, 10).await;
    while let Some(frame) = soon(wire.next()).await {
        if frame.flags & END_STREAM != 0 {
            assert_eq!(frame.kind, HEADERS);
            return;
        }
    }
    panic!("the stream must end");
}
