//! HTTP/2 used badly: streams are bounded, and whoever opens and resets them, dawdles or takes no answers is cut off while others are served.

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

/// A connection of its own gets an answer.
async fn is_served(target: &Target) -> bool {
    Wire::open(target, &[]).await.is_answered(1).await
}

/// Sends one byte after another until the connection is closed; says how long that took.
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
        panic!("it was not cut off");
    };
    soon(dribble).await;
    since.elapsed()
}

#[tokio::test]
async fn streams_beyond_the_bound_are_refused() {
    let service = Service::start("server: {max_streams: 4}").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        let settings = soon(wire.receive()).await.unwrap();
        assert_eq!(settings.kind, SETTINGS);
        let said = settings.payload.chunks(6).find(|setting| setting[..2] == MAX_STREAMS.to_be_bytes());
        assert_eq!(said.unwrap()[2..], 4_u32.to_be_bytes(), "clients are told");
        for stream in [1, 3, 5, 7, 9, 11] {
            wire.begin(stream).await.unwrap();
        }
        for stream in [9, 11] {
            let refused = wire.next().await.unwrap();
            assert_eq!((refused.kind, refused.stream, refused.reason()), (RESET, stream, REFUSED_STREAM));
        }
        // The others go on, and make room as they end.
        for stream in [1, 3, 5, 7] {
            wire.finish(stream).await.unwrap();
            while wire.next().await.unwrap().flags & END_STREAM == 0 {}
        }
        assert!(wire.is_answered(13).await, "{target:?}");
    }
}

#[tokio::test]
async fn whoever_opens_and_resets_streams_is_cut_off() {
    // Many at once, and each only when the one before is surely under way.
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
                assert!(honest.is_answered(stream).await, "others are served meanwhile");
            }
            assert!(resets >= 20, "a few may be given up: {resets}");
            assert!(is_served(&target).await);
        }
    }
}

#[tokio::test]
async fn whoever_gives_up_some_requests_is_not_cut_off() {
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
async fn whoever_dawdles_is_cut_off() {
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
        assert!(is_served(&target).await, "the only place is free again");
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
            // It may be closed before all of it is sent.
            let _ = wire.send(CONTINUATION, flags, 1, &[b'a'; 15_024]).await;
        }
        while let Some(frame) = wire.next().await {
            assert!(!frame.is_ok(), "{frame:?}");
            if frame.flags & END_STREAM != 0 || frame.kind == RESET || frame.kind == GO_AWAY {
                break;
            }
        }
        // One that never ends.
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
async fn whoever_takes_no_answers_is_cut_off() {
    let service =
        Service::start("server: {idle_timeout: 300ms, request_timeout: 300ms, max_connections: 1}").await;
    for target in Target::both(&service) {
        // No room for answers at all, or for their first byte alone.
        for window in [0, 1] {
            let mut wire = Wire::open(&target, &[(INITIAL_WINDOW, window)]).await;
            for stream in [1, 3, 5] {
                wire.begin(stream).await.unwrap();
                wire.finish(stream).await.unwrap();
            }
            // It takes part in everything else.
            while wire.next().await.is_some() {}
            assert!(is_served(&target).await, "the only place is free again: {window} {target:?}");
        }
    }
}

#[tokio::test]
async fn whoever_does_not_read_is_cut_off() {
    let yaml =
        "default_limit: none\nserver: {idle_timeout: 300ms, request_timeout: 300ms, max_connections: 1}";
    let service = Service::start(yaml).await;
    for target in Target::both(&service) {
        let wide = [(INITIAL_WINDOW, i32::MAX.unsigned_abs())];
        let mut wire = Wire::open(&target, &wide).await;
        // Writes until the service stops taking: first its answers fill the buffers, then it gives the connection up.
        let flood = async {
            for stream in (1..).step_by(2) {
                if wire.begin(stream).await.is_err() || wire.finish(stream).await.is_err() {
                    return;
                }
            }
        };
        soon(flood).await;
        assert!(is_served(&target).await, "the only place is free again: {target:?}");
    }
}

#[tokio::test]
async fn a_stream_of_checks_whose_answers_are_not_taken_is_cut_off() {
    let service =
        Service::start("server: {idle_timeout: 10s, request_timeout: 300ms, max_connections: 1}").await;
    let target = Target::stream(&service);
    let mut wire = Wire::open(&target, &[(INITIAL_WINDOW, 0)]).await;
    wire.begin(1).await.unwrap();
    // More than the service keeps answers for.
    wire.stream.write_all(&bytes(DATA, 0, 1, &target.body()).repeat(1_000)).await.unwrap();
    while wire.next().await.is_some() {}
    assert!(is_served(&Target::both(&service)[1]).await, "the only place is free again");
}

#[tokio::test]
async fn pings_and_settings_do_no_harm() {
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
        // Its head, and its trailers.
        while wire.next().await.unwrap().flags & END_STREAM == 0 {}
        assert!(since.elapsed() >= Duration::from_millis(450), "{path} {:?}", since.elapsed());
    }
    // One that is used goes on.
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
async fn a_client_that_vanished_is_noticed() {
    let service = Service::start("server: {idle_timeout: 300ms, max_connections: 1}").await;
    let proxy = FaultProxy::start(service.grpc).await;
    let path = "/grpc.health.v1.Health/Watch";
    let through = Target { address: proxy.address(), path, ..Target::stream(&service) };
    let mut wire = Wire::open(&through, &[]).await;
    wire.begin(1).await.unwrap();
    wire.send(DATA, END_STREAM, 1, &[0; 5]).await.unwrap();
    assert!(wire.next().await.unwrap().is_ok());
    // A watched health may stay the same for as long as it likes: several times the idle time passes.
    let quiet = async {
        while let Some(frame) = wire.next().await {
            assert_ne!(frame.kind, GO_AWAY);
        }
        panic!("the stream was ended");
    };
    assert!(tokio::time::timeout(Duration::from_millis(1_500), quiet).await.is_err());
    // Whatever the service says from now on, nobody hears it.
    proxy.set(Fault::DropReplies);
    assert!(is_served(&Target::both(&service)[1]).await, "the only place is free again");
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_in_peace() {
    let service = Service::start("server: {idle_timeout: 300ms}").await;
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        assert!(wire.is_answered(1).await);
        let since = Instant::now();
        // The first says that the end is near, the second which request was the last.
        for last in [i32::MAX.unsigned_abs(), 1] {
            let farewell = wire.next().await.unwrap();
            assert_eq!((farewell.kind, farewell.farewell()), (GO_AWAY, (last, 0)), "{target:?}");
        }
        assert!(since.elapsed() >= Duration::from_millis(200), "{:?}", since.elapsed());
        assert!(wire.is_closed().await, "closed and not reset: {target:?}");
    }
}
