//! Connections on real sockets: bounded, timed out when slow, and finished in peace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::Config;
use tollgate_server::{AdminKey, App, run};

struct Service {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

async fn start(yaml: &str) -> Service {
    let config = Config::parse(yaml).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = App::new(&config, config.limiter().unwrap(), AdminKey::new("secret"));
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(async move {
        run(listener, app, &config.server, async { stopped.await.unwrap_or_default() }).await;
    });
    Service { address, stop, running }
}

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

#[tokio::test]
async fn requests_in_flight_finish_and_the_service_ends() {
    let service = start("").await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(&BODY.as_bytes()[..10]).await.unwrap();
    // A second request on another connection is answered, so the first one has surely arrived.
    let mut other = TcpStream::connect(service.address).await.unwrap();
    other.write_all(format!("{}{BODY}", head()).as_bytes()).await.unwrap();
    assert!(read_response(&mut other).await.starts_with("HTTP/1.1 200"));

    service.stop.send(()).unwrap();
    // The idle connection is closed; the other one is answered first.
    assert_eq!(read_response(&mut other).await, "");
    stream.write_all(&BODY.as_bytes()[10..]).await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"remaining\":98"), "{response}");
    service.running.await.unwrap();
    assert!(TcpStream::connect(service.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_client_that_dawdles_with_its_head_is_cut_off() {
    let service = start("server: {idle_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(b"POST /v1/rate-limit/check HTTP/1.1\r\nhost").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "{response}");
}

#[tokio::test]
async fn a_client_that_dawdles_with_its_body_is_told_so() {
    let service = start("server: {request_timeout: 150ms}").await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(head().as_bytes()).await.unwrap();
    stream.write_all(b"{").await.unwrap();
    let response = read_response(&mut stream).await;
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    assert!(response.contains("REQUEST_TIMEOUT"), "{response}");
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_cut_off() {
    let service = start("server: {request_timeout: 200ms}").await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
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
    let service = start("server: {max_connections: 1}").await;
    let request = format!("{}{BODY}", head());
    let mut first = TcpStream::connect(service.address).await.unwrap();
    first.write_all(request.as_bytes()).await.unwrap();
    assert!(read_response(&mut first).await.contains("\"remaining\":99"));
    let mut second = TcpStream::connect(service.address).await.unwrap();
    second.write_all(request.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), second.readable()).await;
    assert!(early.is_err(), "the only place is taken");
    drop(first);
    assert!(read_response(&mut second).await.contains("\"remaining\":"));
}

#[tokio::test]
async fn garbage_closes_its_own_connection_only() {
    let service = start("").await;
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01"[..], b"GET\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let response = read_response(&mut stream).await;
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 400"), "{response}");
    }
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(format!("{}{BODY}", head()).as_bytes()).await.unwrap();
    assert!(read_response(&mut stream).await.starts_with("HTTP/1.1 200"));
}
