//! Silent connections and streams must not block others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use pacegate_proto::v1::CheckRequest;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_testkit::effort;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::callers::{alone, timed};
use crate::process::{Service, file};

/// Time within which other callers need a response. Attackers are disconnected much later.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Longer than any attack, so that only the bounds on connections can end it.
const IDLE: &str = "idle_timeout: 10m, request_timeout: 10m";

fn start(directory: &tempfile::TempDir, server: &str) -> Service {
    let config = file(directory.path(), &format!("server: {{{server}}}\n"));
    Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")])
}

fn address(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap()
}

/// Opens `count` connections from `sources` loopback addresses. Refused ones are left out.
fn connections(
    runtime: &Runtime,
    target: SocketAddr,
    sources: u8,
    count: usize,
    head: &str,
) -> Vec<TcpStream> {
    let sources = (0..count).map(|number| [127, 0, 1, u8::try_from(number % usize::from(sources)).unwrap()]);
    let connect = async {
        let mut streams = Vec::new();
        for source in sources {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from((source, 0))).unwrap();
            // The queue of the operating system can be full, which serves the attack as well.
            let connected = tokio::time::timeout(Duration::from_millis(200), socket.connect(target)).await;
            if let Ok(Ok(stream)) = connected {
                streams.push(stream.into_std().unwrap());
            }
        }
        streams
    };
    let mut streams = runtime.block_on(connect);
    streams.retain_mut(|stream| stream.write_all(head.as_bytes()).is_ok());
    streams
}

/// Sends a health check on a new connection from 127.0.0.1. Returns the time until the response.
fn probe(target: SocketAddr) -> Duration {
    let (response, took) = timed(|| {
        let mut stream = TcpStream::connect_timeout(&target, TIMEOUT).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    });
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    took
}

#[test]
fn silent_clients_do_not_block_the_health_check() {
    let _alone = alone();
    let (clients, max_connections) = effort((220, 200), (10_100, 10_000));
    let directory = tempfile::tempdir().unwrap();
    let service = start(&directory, &format!("max_connections: {max_connections}, {IDLE}"));
    let runtime = Runtime::new().unwrap();
    let before = probe(address(&service.url));
    let silent = connections(&runtime, address(&service.url), 100, clients, "");
    let during = probe(address(&service.url));
    println!(
        "PASS attack_connections_silent clients={} max_connections={max_connections} probe_before_ms={} probe_ms={}",
        silent.len(),
        before.as_millis(),
        during.as_millis()
    );
}

#[test]
fn slow_clients_of_one_address_do_not_block_others() {
    let _alone = alone();
    let clients = effort(120, 1_000);
    let directory = tempfile::tempdir().unwrap();
    let service = start(&directory, &format!("max_connections: {}, {IDLE}", effort(100, 1_000)));
    let runtime = Runtime::new().unwrap();
    // The body never arrives, so none of these connections is idle.
    let head = "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
    let slow = connections(&runtime, address(&service.url), 1, clients, head);
    let probes: Vec<Duration> = (0..10).map(|_| probe(address(&service.url))).collect();
    let response = service.post("/v1/rate-limit/check", "", r#"{"user_id":"u","endpoint":"/"}"#);
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(service.ask("GET", "/readyz", "").unwrap().0, 200);
    println!(
        "PASS attack_connections_slow clients={} probe_max_ms={}",
        slow.len(),
        probes.iter().max().unwrap().as_millis()
    );
}

#[test]
fn idle_streams_are_closed() {
    let _alone = alone();
    let streams = 100;
    let directory = tempfile::tempdir().unwrap();
    let server = "max_connections: 100, max_connections_per_address: 100, idle_timeout: 1s";
    let service = start(&directory, server);
    let runtime = Runtime::new().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap();
    let ended = runtime.block_on(async {
        let mut opened = Vec::new();
        for _ in 0..streams {
            let mut client = RateLimiterClient::new(endpoint.connect().await.unwrap());
            let one =
                CheckRequest { identifier: "u".into(), endpoint: "/".into(), ..CheckRequest::default() };
            let messages = tokio_stream::once(one).chain(tokio_stream::pending());
            let mut stream = client.check_stream(messages).await.unwrap().into_inner();
            stream.message().await.unwrap().unwrap();
            opened.push((client, stream));
        }
        // All connections are used; another caller gets one when streams end.
        let mut other = RateLimiterClient::new(endpoint.connect_lazy());
        let check = CheckRequest { identifier: "v".into(), endpoint: "/".into(), ..CheckRequest::default() };
        tokio::time::timeout(TIMEOUT, other.check_rate_limit(check)).await.unwrap().unwrap();
        let mut ended = 0;
        for (_, stream) in &mut opened {
            let end = tokio::time::timeout(TIMEOUT, stream.message()).await.unwrap().unwrap_err();
            ended += u32::from(end.code() == Code::Unavailable);
        }
        ended
    });
    assert_eq!(ended, streams);
    println!("PASS attack_connections_streams streams={streams} ended={ended}");
}
