//! Connections on real sockets: bounds, timeouts and graceful shutdown.

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

/// Reads one response whose body is an object, or what arrived before the connection was closed.
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

/// Sends a request on a connection, and reads the response.
async fn request(stream: &mut TcpStream) -> String {
    stream.write_all(format!("{}{BODY}", head()).as_bytes()).await.unwrap();
    read_response(stream).await
}

/// Connects from one of the machine's own addresses.
async fn connect_from(source: [u8; 4], target: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((source, 0))).unwrap();
    socket.connect(target).await.unwrap()
}

/// Returns whether the service reports that it is ready, on a new connection.
async fn is_ready(service: &Service) -> bool {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200") || response.starts_with("HTTP/1.1 503"), "{response}");
    response.starts_with("HTTP/1.1 200")
}

#[tokio::test]
async fn graceful_shutdown_asks_clients_to_disconnect_first() {
    let mut service = Service::start("server: {drain_delay: 1s}").await;
    let mut kept = TcpStream::connect(service.http).await.unwrap();
    assert!(!request(&mut kept).await.contains("connection: close"));
    let mut silent = TcpStream::connect(service.http).await.unwrap();
    assert!(request(&mut silent).await.starts_with("HTTP/1.1 200"));
    assert!(is_ready(&service).await);

    service.stop();
    soon(async { while is_ready(&service).await {} }).await;
    // A new client is still served, and asked to close its connection.
    let mut late = TcpStream::connect(service.http).await.unwrap();
    for stream in [&mut kept, &mut late] {
        let response = request(stream).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
        assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0);
    }
    assert!(Wire::open(&Target::both(&service)[1], &[]).await.is_answered(1).await);
    // Then the service stops listening, and idle connections are closed.
    assert_eq!(soon(silent.read(&mut [0; 1])).await.unwrap(), 0);
    let (http, grpc) = (service.http, service.grpc);
    service.ended().await;
    for address in [http, grpc] {
        assert!(TcpStream::connect(address).await.is_err(), "the service no longer listens");
    }
}

#[tokio::test]
async fn requests_in_flight_complete_during_shutdown() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(&BODY.as_bytes()[..10]).await.unwrap();
    // A second request on another connection is answered, so the first one has arrived.
    let mut other = TcpStream::connect(service.http).await.unwrap();
    assert!(request(&mut other).await.starts_with("HTTP/1.1 200"));

    service.stop();
    // The idle connection is closed; the other one gets its response after the service stopped
    // listening.
    assert_eq!(read_response(&mut other).await, "");
    soon(async { while TcpStream::connect(service.http).await.is_ok() {} }).await;
    stream.write_all(&BODY.as_bytes()[10..]).await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"remaining\":98"), "{response}");
    service.ended().await;
}

#[tokio::test]
async fn streams_in_flight_complete_during_shutdown() {
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
        let go_away = wire.next().await.unwrap();
        assert_eq!((go_away.kind, go_away.go_away()), (GO_AWAY, (i32::MAX.unsigned_abs(), 0)));
        // Sent before the client could notice the shutdown, so it is answered.
        wire.begin(3).await.unwrap();
        let go_away = wire.next().await.unwrap();
        assert_eq!((go_away.kind, go_away.go_away()), (GO_AWAY, (3, 0)));
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
async fn stream_of_checks_ends_with_the_service() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let target = Target::stream(&service);
    let mut wire = Wire::open(&target, &[]).await;
    wire.begin(1).await.unwrap();
    wire.send(DATA, 0, 1, &target.body()).await.unwrap();
    assert!(wire.next().await.unwrap().is_ok());
    assert_eq!(wire.next().await.unwrap().kind, DATA);
    service.stop();
    // The status arrives in trailers, and the connection is closed and not reset.
    while wire.next().await.unwrap().flags & END_STREAM == 0 {}
    assert!(wire.is_closed().await);
    service.ended().await;
}

#[tokio::test]
async fn silent_client_does_not_delay_shutdown() {
    let mut service = Service::start("server: {drain_delay: 0s}").await;
    let mut wires = Vec::new();
    for target in Target::both(&service) {
        let mut wire = Wire::open(&target, &[]).await;
        assert!(wire.is_answered(1).await);
        wires.push(wire);
    }
    service.stop();
    // The client does not acknowledge the GOAWAY.
    service.ended().await;
}

#[tokio::test]
async fn connection_just_before_shutdown_is_served() {
    for _ in 0..20 {
        let mut service = Service::start("server: {drain_delay: 0s}").await;
        let mut stream = TcpStream::connect(service.http).await.unwrap();
        let mut wires = Vec::new();
        for target in Target::both(&service) {
            wires.push(Wire::open(&target, &[]).await);
        }
        service.stop();
        let response = request(&mut stream).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        for mut wire in wires {
            assert!(wire.is_answered(1).await);
        }
        service.ended().await;
    }
}

#[tokio::test]
async fn slow_request_head_times_out() {
    let service = Service::start("server: {idle_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "{response}");
}

#[tokio::test]
async fn slow_request_body_gets_408() {
    let service = Service::start("server: {request_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(b"{").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    assert!(response.contains("REQUEST_TIMEOUT"), "{response}");
}

#[tokio::test]
async fn client_that_reads_no_responses_is_disconnected() {
    let service = Service::start("server: {request_timeout: 200ms}").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    let item = BODY;
    let body = format!("{{\"checks\":[{}]}}", vec![item; 1_000].join(","));
    let length = body.len();
    let head = "POST /v1/rate-limit/batch-check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    // Writes until the service stops reading: first its responses fill the buffers, then it closes
    // the connection.
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
async fn connections_above_the_bound_wait_for_a_slot() {
    let service = Service::start("server: {max_connections: 1}").await;
    let request = format!("{}{BODY}", head());
    let mut first = TcpStream::connect(service.http).await.unwrap();
    first.write_all(request.as_bytes()).await.unwrap();
    assert!(read_response(&mut first).await.contains("\"remaining\":99"));
    let mut second = TcpStream::connect(service.http).await.unwrap();
    second.write_all(request.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), second.readable()).await;
    assert!(early.is_err(), "the only slot is taken");
    drop(first);
    assert!(read_response(&mut second).await.contains("\"remaining\":"));
}

#[tokio::test]
async fn address_with_too_many_connections_is_rejected_and_others_are_served() {
    let service = Service::start("server: {max_connections: 20, max_connections_per_address: 4}").await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        // Each has sent the head of a request, so that none is idle.
        let mut stream = connect_from([127, 0, 0, 2], service.http).await;
        stream.write_all(head().as_bytes()).await.unwrap();
        slow.push(stream);
    }
    // Accepted after the others, so that their heads have arrived.
    assert!(is_ready(&service).await);
    let mut further = connect_from([127, 0, 0, 2], service.http).await;
    assert_eq!(soon(further.read(&mut [0; 1])).await.unwrap_or(0), 0, "closed immediately");
    assert!(request(&mut connect_from([127, 0, 0, 3], service.http).await).await.starts_with("HTTP/1.1 200"));
    // A slot is free again when one of them is answered and disconnected.
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
async fn silent_connections_are_evicted_for_active_ones() {
    let service = Service::start("server: {max_connections: 10, idle_timeout: 10m}").await;
    let mut silent = Vec::new();
    for target in [service.http, service.grpc] {
        for source in [2, 3, 4] {
            for _ in 0..4 {
                silent.push(connect_from([127, 0, 0, source], target).await);
            }
        }
    }
    // More than the slots of each listener; only their idle time lets them be evicted.
    assert!(soon(is_ready(&service)).await);
    let [_, grpc] = Target::both(&service);
    assert!(soon(async { Wire::open(&grpc, &[]).await.is_answered(1).await }).await);
    drop(silent);
}

#[tokio::test]
async fn admin_listener_has_its_own_slots() {
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
async fn two_host_headers_are_rejected() {
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
