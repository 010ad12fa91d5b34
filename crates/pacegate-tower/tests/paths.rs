//! Spellings of one path in front of axum: every spelling that serves the limited file is counted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use pacegate::{Limit, Limiter, PathOptions, Pattern, Rule, path::EncodedSlashes};
use pacegate_testkit::REPORT_SPELLINGS;
use pacegate_tower::PacegateLayer;
use pacegate_tower::resolve::address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CONTENT: &str = "day,visits";

/// Serves the limited file by its own route, and by handlers that read the rest of the path: as a
/// decoded file name, as a route with a parameter, and segment by segment.
fn app() -> Router {
    async fn by_name(Path(path): Path<String>) -> (StatusCode, &'static str) {
        let mut names = Vec::new();
        for name in path.split(['/', '\\']) {
            match name {
                "" | "." => {}
                ".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        if names == ["report.csv"] { (StatusCode::OK, CONTENT) } else { (StatusCode::NOT_FOUND, "") }
    }
    Router::new()
        .route("/report.csv", get(|| async { CONTENT }))
        .route("/reports/{name}", get(|| async { CONTENT }))
        .route("/all/{*rest}", get(|| async { CONTENT }))
        .route("/{*path}", get(by_name))
}

async fn start(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// Returns the response to a request whose target is sent unchanged.
async fn send(address: SocketAddr, method: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn served<'a>(address: SocketAddr, spellings: &[&'a str]) -> Vec<&'a str> {
    let mut served = Vec::new();
    for spelling in spellings {
        if send(address, "GET", spelling).await.contains(CONTENT) {
            served.push(*spelling);
        }
    }
    served
}

fn limited(pattern: &str, paths: PathOptions) -> Router {
    let mut rule = Rule::new("reports", "ip", Limit::per_hour(1).build().unwrap());
    rule.endpoint = Pattern::parse(pattern).unwrap();
    rule.methods = pacegate::Methods::try_new(["GET"]).unwrap();
    let limiter = Limiter::builder().rule(rule).paths(paths).build().unwrap();
    app().layer(PacegateLayer::builder(limiter).by(address()).build().unwrap())
}

#[tokio::test]
async fn every_served_spelling_of_a_limited_path_is_counted_or_rejected() {
    // To a router, a name with an encoded slash is one segment, and dots are an ordinary name.
    let parameters = [
        "/reports/a",
        "/reports/a%2Fb",
        "/reports/a\\b",
        "/reports/a%5Cb",
        "/reports/..",
        "/reports/%2e%2e",
        "/reports/..%2fx",
        "/reports/.",
    ];
    let rests =
        ["/all/a", "/all/..", "/all/../x", "/all/x/../../y", "/all/%2e%2e/x", "/all/..%2f..", "/all/..\\x"];
    let tables: [(&str, &[&str], usize); 3] = [
        ("/report.csv", &REPORT_SPELLINGS, 30),
        ("/reports/{name}", &parameters, 8),
        ("/all/{*rest}", &rests, 7),
    ];
    for (pattern, spellings, served_min) in tables {
        let unlimited = served(start(app()).await, spellings).await;
        assert!(
            unlimited.len() >= served_min,
            "{pattern}: the table has too few served spellings: {unlimited:?}"
        );
        for encoded_slashes in [None, Some(EncodedSlashes::Refuse)] {
            let address =
                start(limited(pattern, PathOptions { encoded_slashes, ..PathOptions::default() })).await;
            // A HEAD request is charged like a GET request.
            let first = send(address, "HEAD", spellings[0]).await;
            assert!(first.starts_with("HTTP/1.1 200"), "{first}");
            let slipped = served(address, spellings).await;
            assert!(slipped.is_empty(), "{pattern}: served uncounted: {slipped:?}");
        }
    }
}
