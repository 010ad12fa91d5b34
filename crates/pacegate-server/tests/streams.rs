//! Misbehaving HTTP/2 clients: streams are bounded, and a client that resets them, is slow or takes
//! no responses is disconnected while others are served.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod frames;
mod sockets;

use frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, INITIAL_WINDOW, MAX_STREAMS, PING,
    PREFACE, RESET, SETTINGS, Target, Wire, bytes,
};
use pacegate_testkit::server::{Fault, FaultProxy};
use sockets::{Service, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep};

const REFUSED_STREAM: u32 = 7;

/// Returns whether a new connection gets a response.
async fn is_served(target: &Target) -> bool {
    Wire::open(target, &[]).await.is_answered(1).await
}

/// Sends one byte after another until the connection is closed; returns how long that took.
async fn dribble(mut stream: TcpStream, bytes: impl Iterator<Item = u8>) -> Duration {
    let since = Instant::now();
    let mut buffer = [0; 1_024];
    let dribble = async {
        for byte in bytes {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            let pause = sleep(Duration::from_millis(20));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    read = stream.read(&mut buffer) => if matches!(read, Ok(0) | Err(_)) { return },
                }
            }
        }
        panic!("the connection must be closed");
    };
    soon(dribble).await;
    since.elapsed()
}

#[tokio::test]
async fn streams_above_the_bound_are_refused() {
    let service = Service::start("server: {max_streams: 4}").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        let settings = soon(wire.receive()).await.unwrap();
        assert_eq!(settings.kind, SETTINGS);
        let said = settings.payload.chunks(6).find(|setting| setting[..2] == MAX_STREAMS.to_be_bytes());
        assert_eq!(said.unwrap()[2..], 4_u32.to_be_bytes(), "the bound is sent in the settings");
        for stream in [1, 3, 5, 7, 9, 11] {
            wire.begin(stream).await.unwrap();
        }
        for stream in [9, 11] {
            let rejected = wire.next().await.unwrap();
            assert_eq!((rejected.kind, rejected.stream, rejected.reason()), (RESET, stream, REFUSED_STREAM));
        }
        // The other streams continue, and free their slots as they end.
        for stream in [1, 3, 5, 7] {
            wire.finish(stream).await.unwrap();
            while wire.next().await.unwrap().flags & END_STREAM == 0 {}
        }
        assert!(wire.is_answered(13).await, "{target:?}");
    }
}

#[tokio::test]
async fn client_that_opens_and_resets_streams_is_disconnected() {
    // Many at once, and then each only after the previous one is in flight.
    for pairs in [100, 1] {
        let service = Service::start("default_limit: none").await;
        for target in Target::both(&service) {
            let mut honest = Wire::open(&target, &[]).await;
            let mut wire = Wire::open(&target, &[]).await;
            let mut resets = 0;
            'flood: for stream in (1..).step_by(2 * pairs) {
                assert!(resets < 3_000, "{target:?} {pairs}");
                let stream = u32::try_from(stream).unwrap();
                for stream in (stream..).step_by(2).take(pairs) {
                    let reset = bytes(RESET, 0, stream, &8_u32.to_be_bytes());
                    let begin = bytes(HEADERS, END_HEADERS, stream, &target.head());
                    if wire.stream.write_all(&begin).await.is_err()
                        || (pairs == 1 && wire.is_seen().await.is_err())
                        || wire.stream.write_all(&reset).await.is_err()
                    {
                        break 'flood;
                    }
                    resets += 1;
                }
                if wire.is_seen().await.is_err() {
                    break;
                }
                assert!(honest.is_answered(stream).await, "other clients are served");
            }
            assert!(resets >= 20, "a few cancellations are allowed: {resets}");
            assert!(is_served(&target).await);
        }
    }
}

#[tokio::test]
async fn client_that_cancels_some_requests_is_not_disconnected() {
    let service = Service::start("default_limit: none").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        for stream in (1..8_000).step_by(4) {
            wire.begin(stream).await.unwrap();
            wire.is_seen().await.unwrap();
            wire.send(RESET, 0, stream, &8_u32.to_be_bytes()).await.unwrap();
            assert!(wire.is_answered(stream + 2).await, "{target:?} {stream}");
        }
    }
}

#[tokio::test]
async fn slow_client_is_disconnected() {
    let service = Service::start("server: {idle_timeout: 400ms, max_connections: 1}").await;
    for target in Target::both(&service) {
        let head = target.head();
        let begun = [PREFACE, &bytes(SETTINGS, 0, 0, &[])].concat();
        let headers = [begun.clone(), bytes(HEADERS, END_HEADERS, 1, &vec![0; 16_000])].concat();
        let endless = bytes(CONTINUATION, 0, 1, &[]).repeat(1_000);
        let continued = [begun.clone(), bytes(HEADERS, 0, 1, &head), endless].concat();
        for (slow, text) in [("preface", PREFACE.to_vec()), ("headers", headers), ("continuation", continued)]
        {
            let text = text.into_iter().chain(std::iter::repeat(0));
            let took = dribble(TcpStream::connect(target.address).await.unwrap(), text).await;
            assert!(took >= Duration::from_millis(350), "{slow} {target:?} {took:?}");
            assert!(took <= Duration::from_secs(5), "{slow} {target:?} {took:?}");
        }
        for text in [&b""[..], &PREFACE[..10], PREFACE, &begun] {
            let mut silent = TcpStream::connect(target.address).await.unwrap();
            silent.write_all(text).await.unwrap();
            while let Ok(1..) = soon(silent.read(&mut [0; 1_024])).await {}
        }
        assert!(is_served(&target).await, "the only slot is free again");
    }
}

#[tokio::test]
async fn heads_are_bounded() {
    let service = Service::start("default_limit: none").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        // One header of some 60 kB, in four frames.
        let mut head = target.head();
        head.extend_from_slice(b"\0\x01a\x7f\xe1\xd3\x03");
        wire.send(HEADERS, END_STREAM, 1, &head).await.unwrap();
        for rest in [false, false, false, true] {
            let flags = if rest { END_HEADERS } else { 0 };
            // The connection may be closed before all of it is sent.
            let _ = wire.send(CONTINUATION, flags, 1, &[b'a'; 15_024]).await;
        }
        while let Some(frame) = wire.next().await {
            assert!(!frame.is_ok(), "{frame:?}");
            if frame.flags & END_STREAM != 0 || frame.kind == RESET || frame.kind == GO_AWAY {
                break;
            }
        }
        // A header that never ends.
        let mut wire = Wire::open(&target, &[]).await;
        wire.send(HEADERS, 0, 1, &target.head()).await.unwrap();
        let mut sent = 0;
        let endless = async {
            while wire.send(CONTINUATION, 0, 1, &[b'\0'; 1_024]).await.is_ok() {
                sent += 1;
                assert!(sent < 100_000, "{target:?}");
            }
        };
        soon(endless).await;
        assert!(is_served(&target).await);
    }
}

#[tokio::test]
async fn client_with_a_closed_window_is_disconnected() {
    let service =
        Service::start("server: {idle_timeout: 300ms, request_timeout: 300ms, max_connections: 1}").await;
    for target in Target::both(&service) {
        // A window of zero, or of one byte.
        for window in [0, 1] {
            let mut wire = Wire::open(&target, &[(INITIAL_WINDOW, window)]).await;
            for stream in [1, 3, 5] {
                wire.begin(stream).await.unwrap();
                wire.finish(stream).await.unwrap();
            }
            // The client responds to all other frames.
            while wire.next().await.is_some() {}
            assert!(is_served(&target).await, "the only slot is free again: {window} {target:?}");
        }
    }
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let yaml =
        "default_limit: none\nserver: {idle_timeout: 300ms, request_timeout: 300ms, max_connections: 1}";
    let service = Service::start(yaml).await;
    for target in Target::both(&service) {
        let wide = [(INITIAL_WINDOW, i32::MAX.unsigned_abs())];
        let mut wire = Wire::open(&target, &wide).await;
        // Writes until the service stops reading: first its responses fill the buffers, then it
        // closes the connection.
        let flood = async {
            for stream in (1..).step_by(2) {
                if wire.begin(stream).await.is_err() || wire.finish(stream).await.is_err() {
                    return;
                }
            }
        };
        soon(flood).await;
        assert!(is_served(&target).await, "the only slot is free again: {target:?}");
    }
}

#[tokio::test]
async fn stream_of_checks_with_unread_responses_is_disconnected() {
    let service =
        Service::start("server: {idle_timeout: 10s, request_timeout: 300ms, max_connections: 1}").await;
    let target = Target::stream(&service);
    let mut wire = Wire::open(&target, &[(INITIAL_WINDOW, 0)]).await;
    wire.begin(1).await.unwrap();
    // More than the number of responses that the service buffers.
    wire.stream.write_all(&bytes(DATA, 0, 1, &target.body()).repeat(1_000)).await.unwrap();
    while wire.next().await.is_some() {}
    assert!(is_served(&Target::both(&service)[1]).await, "the only slot is free again");
}

#[tokio::test]
async fn floods_of_pings_and_settings_are_harmless() {
    let service = Service::start("default_limit: none").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        for (kind, payload) in [(PING, &b"are here"[..]), (SETTINGS, b"\0\x04\0\0\xff\xff")] {
            for _ in 0..100 {
                wire.stream.write_all(&bytes(kind, 0, 0, payload).repeat(100)).await.unwrap();
                let mut answers = 0;
                while answers < 100 {
                    let frame = soon(wire.receive()).await.unwrap();
                    answers += u32::from((frame.kind, frame.flags) == (kind, ACK));
                }
            }
        }
        assert!(wire.is_answered(1).await, "{target:?}");
    }
}

#[tokio::test]
async fn idle_stream_of_checks_ends() {
    let service = Service::start("server: {idle_timeout: 500ms}").await;
    for path in [Target::stream(&service).path, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"] {
        let target = Target { path, ..Target::stream(&service) };
        let mut wire = Wire::open(&target, &[]).await;
        wire.begin(1).await.unwrap();
        let since = Instant::now();
        // The head and the trailers.
        while wire.next().await.unwrap().flags & END_STREAM == 0 {}
        assert!(since.elapsed() >= Duration::from_millis(450), "{path} {:?}", since.elapsed());
    }
    // A stream in use continues.
    let target = Target::stream(&service);
    let mut wire = Wire::open(&target, &[]).await;
    wire.begin(1).await.unwrap();
    for number in 0..5 {
        wire.send(DATA, 0, 1, &target.body()).await.unwrap();
        while wire.next().await.unwrap().kind != DATA {}
        if number < 4 {
            sleep(Duration::from_millis(300)).await;
        }
    }
}

#[tokio::test]
async fn vanished_client_is_detected() {
    let service = Service::start("server: {idle_timeout: 300ms, max_connections: 1}").await;
    let proxy = FaultProxy::start(service.grpc).await;
    let path = "/grpc.health.v1.Health/Watch";
    let through = Target { address: proxy.address(), path, ..Target::stream(&service) };
    let mut wire = Wire::open(&through, &[]).await;
    wire.begin(1).await.unwrap();
    wire.send(DATA, END_STREAM, 1, &[0; 5]).await.unwrap();
    assert!(wire.next().await.unwrap().is_ok());
    // A health watch may stay unchanged for any time: several idle timeouts pass.
    let quiet = async {
        while let Some(frame) = wire.next().await {
            assert_ne!(frame.kind, GO_AWAY);
        }
        panic!("the stream must stay open");
    };
    assert!(tokio::time::timeout(Duration::from_millis(1_500), quiet).await.is_err());
    // From now on, the client receives nothing.
    proxy.set(Fault::DropReplies);
    assert!(is_served(&Target::both(&service)[1]).await, "the only slot is free again");
}

#[tokio::test]
async fn idle_connection_is_closed_gracefully() {
    let service = Service::start("server: {idle_timeout: 300ms}").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        assert!(wire.is_answered(1).await);
        let since = Instant::now();
        // The first GOAWAY announces the shutdown, the second names the last request.
        for last in [i32::MAX.unsigned_abs(), 1] {
            let go_away = wire.next().await.unwrap();
            assert_eq!((go_away.kind, go_away.go_away()), (GO_AWAY, (last, 0)), "{target:?}");
        }
        assert!(since.elapsed() >= Duration::from_millis(200), "{:?}", since.elapsed());
        assert!(wire.is_closed().await, "closed and not reset: {target:?}");
    }
}
