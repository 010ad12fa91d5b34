//! Requests that are rejected before their body is read: the response arrives, and the connection
//! stays usable or is closed explicitly.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod sockets;

use std::process::{Command, Stdio};

use sockets::{Service, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns a management request that is rejected for its missing key before its body is read.
fn rejected(length: usize, more: &str) -> String {
    format!(
        "POST /api/v1/rules HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

/// Reads the head of one response and its body.
async fn read_response(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut byte = [0; 1];
    while !text.ends_with("\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).await.unwrap(), 1, "closed after {text:?}");
        text.push(char::from(byte[0]));
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    text + &String::from_utf8(body).unwrap()
}

#[tokio::test]
async fn rejected_request_leaves_the_connection_usable() {
    let service = Service::start("").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    for round in 0..30 {
        // The head first, so that the service responds before any of the body has arrived.
        stream.write_all(rejected(2_000, "").as_bytes()).await.unwrap();
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        stream.write_all(&[b' '; 2_000]).await.unwrap();
        let response = soon(read_response(&mut stream)).await;
        assert!(response.starts_with("HTTP/1.1 401"), "{response}");
        assert!(!response.contains("connection: close"), "{response}");
    }
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(soon(read_response(&mut stream)).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn body_of_three_megabytes_is_rejected_on_a_connection_that_stays_usable() {
    let service = Service::start("").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    let head = "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 3000000\r\n\r\n";
    for _ in 0..3 {
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; 3_000_000]).await.unwrap();
        let response = soon(read_response(&mut stream)).await;
        assert!(response.starts_with("HTTP/1.1 413"), "{response}");
        assert!(!response.contains("connection: close"), "{response}");
    }
}

#[tokio::test]
async fn body_above_the_bound_is_rejected_with_connection_close() {
    let service = Service::start("").await;
    let length = 20_000_000;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(rejected(length, "").as_bytes()).await.unwrap();
    // Like most clients, this one reads nothing before all is sent: a reset would lose the
    // response.
    let body = vec![b' '; length];
    soon(stream.write_all(&body)).await.unwrap();
    let response = soon(read_response(&mut stream)).await;
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    assert!(response.contains("connection: close"), "{response}");
    assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0, "closed gracefully");
}

#[tokio::test]
async fn missing_body_delays_the_response_only_briefly() {
    let service = Service::start("").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(rejected(2_000, "").as_bytes()).await.unwrap();
    stream.write_all(b"{").await.unwrap();
    let response = soon(read_response(&mut stream)).await;
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    assert!(response.contains("connection: close"), "{response}");
    assert_eq!(soon(stream.read(&mut [0; 1])).await.unwrap(), 0);
}

#[tokio::test]
async fn client_that_expects_100_continue_gets_the_final_response_instead() {
    let service = Service::start("").await;
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    stream.write_all(rejected(2_000, "expect: 100-continue\r\n").as_bytes()).await.unwrap();
    let response = soon(read_response(&mut stream)).await;
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    assert!(response.contains("connection: close"), "{response}");
}

/// Runs curl with a number of rejected uploads of `length` bytes on one connection; returns its
/// exit code and the statuses.
async fn curl(service: &Service, arguments: &[&str], length: usize, times: usize) -> (i32, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, vec![b' '; length]).unwrap();
    let url = format!("http://{}/api/v1/rules", service.http);
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail-early"]);
    for time in 0..times {
        if time > 0 {
            command.arg("--next").arg("--silent");
        }
        command.args(arguments).args([
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code} %{num_connects}\n",
        ]);
        command.args(["--header", "content-type: application/json"]);
        command.args(["--header", "expect:"]);
        command.arg("--data-binary").arg(format!("@{}", file.display())).arg(&url);
    }
    command.stdin(Stdio::null());
    let output = soon(tokio::task::spawn_blocking(move || command.output())).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.stderr.is_empty(), "{arguments:?} {length}: {text} {errors}");
    (output.status.code().unwrap(), text.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_receives_every_response() {
    let service = Service::start("").await;
    for length in [2_000, 300_000, 3_000_000] {
        let (code, statuses) = curl(&service, &["--http1.1"], length, 5).await;
        assert_eq!(code, 0, "{length}: {statuses:?}");
        assert_eq!(statuses, ["401 1", "401 0", "401 0", "401 0", "401 0"], "one connection: {length}");
    }
    let (code, statuses) = curl(&service, &["--http1.1"], 20_000_000, 2).await;
    assert_eq!((code, statuses), (0, vec!["401 1".to_owned(), "401 1".to_owned()]));
    // Several transfers of one curl over HTTP/2 with prior knowledge fail in curl itself.
    for length in [2_000, 300_000, 3_000_000, 20_000_000] {
        for _ in 0..5 {
            let (code, statuses) = curl(&service, &["--http2-prior-knowledge"], length, 1).await;
            assert_eq!((code, statuses), (0, vec!["401 1".to_owned()]), "{length}");
        }
    }
}
