//! Connections on real sockets: bounded, timed out when slow, and finished in peace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod frames;
mod sockets;

use std::net::SocketAddr;
use std::time::Duration;

use frames::{DATA, END_STREAM, GO_AWAY, Target, Wire};
use sockets::{Service, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const BODY: &str = r#"{"user_id":"u","endpoint":"/x"}"#;

fn head() -> String {
    let length = BODY.len();
    format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Reads one response whose body is an object, or what came before the connection was closed.
async fn read_response(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        text.extend_from_slice(&buffer[..count]);
        if count == 0 || text.ends_with(b"}") {
            return String::from_utf8(text).unwrap();
        }
    }
}

/// Asks on a connection, and reads the answer.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(format!("{}{BODY}", head()).as_bytes()).await.unwrap();
    read_response(stream).await
}

/// A connection from one of the machine's own addresses.
async fn connect_from(source: [u8; 4], target: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((source, 0))).unwrap();
    socket.connect(target).await.unwrap()
}

/// Whether the service says that it is ready, on a connection of its own.
async fn is_ready(service: &Service) -> bool {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200") || response.starts_with("HTTP/1.1 503"), "{response}");
    response.starts_with("HTTP/1.1 200")
}

#[tokio::test]
async fn a_service_that_stops_asks_clients_to_leave_first() {
    let mut service = Service::start("server: {drain_delay: 1s}").await;
    let mut kept = TcpStream::connect(service.http).await.unwrap();
    assert!(!ask(&mut kept).await.contains("connection: close"));
    let mut silent = TcpStream::connect(service.http).await.unwrap();
    assert!(ask(&mut silent).await.starts_with("HTTP/1.1 200"));
    assert!(is_ready(&service).await);

    service.stop();
    soon(async { while is_ready(&service).await {} }).await;
    // Whoever comes all the same is served, and told to come back elsewhere.
    let mut late = TcpStream::connect(service.http).await.unwrap();
    for stream in [&mut kept, &mut late] {
        let response = ask(stream).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
        assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0);
    }
    assert!(Wire::open(&Target::both(&service)[1], &[]).await.is_answered(1).await);
    // Then nobody listens any more, and connections without a request are closed.
    assert_eq!(soon(silent.read(&mut [0; 1])).await.unwrap(), 0);
    let (http, grpc) = (service.http, service.grpc);
    service.ended().await;
    for address in [http, grpc] {
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }
}

#[tokio::test]
async fn requests_in_flight_finish_and_the_service_ends() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(&BODY.as_bytes()[..10]).await.unwrap();
    // A second request on another connection is answered, so the first one has surely arrived.
    let mut other = TcpStream::connect(service.http).await.unwrap();
    assert!(ask(&mut other).await.starts_with("HTTP/1.1 200"));

    service.stop();
    // The idle connection is closed; the other one is answered first, when nobody listens any more.
    assert_eq!(read_response(&mut other).await, "");
    soon(async { while TcpStream::connect(service.http).await.is_ok() {} }).await;
    stream.write_all(&BODY.as_bytes()[10..]).await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"remaining\":98"), "{response}");
    service.ended().await;
}

#[tokio::test]
async fn streams_in_flight_finish_and_the_service_ends() {
    let mut service = Service::start("server: {drain_delay: 200ms}").await;
    let mut wires = Vec::new();
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        wire.begin(1).await.unwrap();
        wire.is_seen().await.unwrap();
        wires.push(wire);
    }
    service.stop();
    for wire in &mut wires {
        let farewell = wire.next().await.unwrap();
        assert_eq!((farewell.kind, farewell.farewell()), (GO_AWAY, (i32::MAX.unsigned_abs(), 0)));
        // Sent before the client could know, so it counts.
        wire.begin(3).await.unwrap();
        let farewell = wire.next().await.unwrap();
        assert_eq!((farewell.kind, farewell.farewell()), (GO_AWAY, (3, 0)));
    }
    soon(async { while TcpStream::connect(service.grpc).await.is_ok() {} }).await;
    for wire in &mut wires {
        for stream in [1, 3] {
            wire.finish(stream).await.unwrap();
            assert!(wire.next().await.unwrap().is_ok());
            while wire.next().await.unwrap().flags & END_STREAM == 0 {}
        }
        assert!(wire.is_closed().await);
    }
    service.ended().await;
}

#[tokio::test]
async fn a_stream_of_checks_ends_with_the_service() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let target = Target::stream(&service);
    let mut wire = Wire::open(&target, &[]).await;
    wire.begin(1).await.unwrap();
    wire.send(DATA, 0, 1, &target.body()).await.unwrap();
    assert!(wire.next().await.unwrap().is_ok());
    assert_eq!(wire.next().await.unwrap().kind, DATA);
    service.stop();
    // The status comes in trailers, and the connection is closed and not reset.
    while wire.next().await.unwrap().flags & END_STREAM == 0 {}
    assert!(wire.is_closed().await);
    service.ended().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_does_not_hold_up_the_end() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let mut wires = Vec::new();
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        assert!(wire.is_answered(1).await);
        wires.push(wire);
    }
    service.stop();
    // Nobody answers that the farewell was heard.
    service.ended().await;
}

#[tokio::test]
async fn who_came_just_before_the_end_is_served() {
    for _ in 0..20 {
        let mut service = Service::start("server: {drain_delay: 0s}").await;
        let mut stream = TcpStream::connect(service.http).await.unwrap();
        let mut wires = Vec::new();
        for target in Target::both(&service) {
            wires.push(Wire::open(&target, &[]).await);
        }
        service.stop();
        let response = ask(&mut stream).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        for mut wire in wires {
            assert!(wire.is_answered(1).await);
        }
        service.ended().await;
    }
}

#[tokio::test]
async fn a_client_that_dawdles_with_its_head_is_cut_off() {
    let service = Service::start("server: {idle_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "{response}");
}

#[tokio::test]
async fn a_client_that_dawdles_with_its_body_is_told_so() {
    let service = Service::start("server: {request_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(b"{").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    assert!(response.contains("REQUEST_TIMEOUT"), "{response}");
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_cut_off() {
    let service = Service::start("server: {request_timeout: 200ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    let item = BODY;
    let body = format!("{{\"checks\":[{}]}}", vec![item; 1_000].join(","));
    let length = body.len();
    let head = "POST /v1/rate-limit/batch-check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    // Writes until the service stops taking: first its answers fill the buffers, then it gives the connection up.
    let flood = async {
        loop {
            if stream.write_all(request.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), flood).await.expect("the connection is closed");
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let service = Service::start("server: {max_connections: 1}").await;
    let request = format!("{}{BODY}", head());
    let mut first = TcpStream::connect(service.http).await.unwrap();
    first.write_all(request.as_bytes()).await.unwrap();
    assert!(read_response(&mut first).await.contains("\"remaining\":99"));
    let mut second = TcpStream::connect(service.http).await.unwrap();
    second.write_all(request.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), second.readable()).await;
    assert!(early.is_err(), "the only place is taken");
    drop(first);
    assert!(read_response(&mut second).await.contains("\"remaining\":"));
}

#[tokio::test]
async fn address_with_too_many_connections_is_refused_and_others_are_served() {
    let service = Service::start("server: {max_connections: 20, max_connections_per_address: 4}").await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        // The head of a request is there, so that none of them is idle.
        let mut stream = connect_from([127, 0, 0, 2], service.http).await;
        stream.write_all(head().as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // Accepted after the others, so that their heads count.
    assert!(is_ready(&service).await);
    let mut further = connect_from([127, 0, 0, 2], service.http).await;
    assert_eq!(soon(further.read(&mut [0; 1])).await.unwrap_or(0), 0, "closed at once");
    assert!(ask(&mut connect_from([127, 0, 0, 3], service.http).await).await.starts_with("HTTP/1.1 200"));
    // A place is free again when one of them is answered and has left.
    let mut first = slow.remove(0);
    first.write_all(BODY.as_bytes()).await.unwrap();
    assert!(read_response(&mut first).await.starts_with("HTTP/1.1 200"));
    drop(first);
    soon(async {
        loop {
            let mut again = connect_from([127, 0, 0, 2], service.http).await;
            let _ = again.write_all(format!("{}{BODY}", head()).as_bytes()).await;
            if read_response(&mut again).await.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn silent_connections_leave_for_those_that_ask() {
    let service = Service::start("server: {max_connections: 10, idle_timeout: 10m}").await;
    let mut silent = Vec::new();
    for target in [service.http, service.grpc] {
        for source in [2, 3, 4] {
            for _ in 0..4 {
                silent.push(connect_from([127, 0, 0, source], target).await);
            }
        }
    }
    // More than there are places for at each address, and nothing but their age lets them go.
    assert!(soon(is_ready(&service)).await);
    let [_, grpc] = Target::both(&service);
    assert!(soon(async { Wire::open(&grpc, &[]).await.is_answered(1).await }).await);
    drop(silent);
}

#[tokio::test]
async fn operators_have_an_address_of_their_own() {
    let service = Service::start("server: {max_connections: 1}").await;
    let mut busy = TcpStream::connect(service.http).await.unwrap();
    busy.write_all(head().as_bytes()).await.unwrap();
    let mut operator = TcpStream::connect(service.admin).await.unwrap();
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/rules"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: secret\r\n\r\n");
        operator.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 15];
        soon(operator.read_exact(&mut start)).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK", "{path}");
        operator = TcpStream::connect(service.admin).await.unwrap();
    }
}

#[tokio::test]
async fn two_host_headers_are_refused() {
    let service = Service::start("").await;
    for path in ["/v1/rate-limit/check", "/healthz"] {
        let mut stream = TcpStream::connect(service.http).await.unwrap();
        let method = if path == "/healthz" { "GET" } else { "POST" };
        let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let response = read_response(&mut stream).await;
        assert!(response.starts_with("HTTP/1.1 400"), "{response}");
        assert!(response.contains("the request must have one Host header"), "{response}");
    }
}

#[tokio::test]
async fn garbage_closes_its_own_connection_only() {
    let service = Service::start("").await;
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01"[..], b"GET\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(service.http).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let response = read_response(&mut stream).await;
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 400"), "{response}");
    }
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(format!("{}{BODY}", head()).as_bytes()).await.unwrap();
    assert!(read_response(&mut stream).await.starts_with("HTTP/1.1 200"));
}
