//! `pacegate proxy` as a process, in front of an upstream in this test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;
mod upstream;

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2;
use hyper::header::{CONNECTION, HeaderMap, UPGRADE};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use process::{Service, file, run, signal};
use upstream::{Proxy, Upstream, client};

const THREE: &str = "rules:\n  - {name: per-address, dimension: ip, algorithm: fixed_window, limit: 3, window: 1h}\ndefault_limit: none\n";
const MANY: &str = "default_limit: {algorithm: token_bucket, limit: 1000000, window: 1s}\n";

fn get(proxy: &Proxy, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("{}{path}", proxy.url)).body(Full::default()).unwrap()
}

/// Sends a request and returns the whole response.
async fn send(request: Request<Full<Bytes>>) -> (StatusCode, HeaderMap, String) {
    let response = client(false).request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8(body.into()).unwrap())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).unwrap_or_else(|| panic!("no {name} in {headers:?}")).to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_requests_are_forwarded_and_denied_ones_get_429() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &[]);
    for remaining in ["2", "1", "0"] {
        let (status, headers, body) = send(get(&proxy, "/a?b=c")).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "hello"));
        assert_eq!(text(&headers, "x-ratelimit-limit"), "3");
        assert_eq!(text(&headers, "x-ratelimit-remaining"), remaining);
        assert!(text(&headers, "ratelimit").contains(&format!("r={remaining}")), "{headers:?}");
        assert_eq!(text(&headers, "x-upstream"), "yes");
    }
    let (status, headers, body) = send(get(&proxy, "/a")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!((1..=3_600).contains(&text(&headers, "retry-after").parse::<u32>().unwrap()));
    assert_eq!(text(&headers, "x-ratelimit-remaining"), "0");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["error"]["code"], &body["rule"]), (&"RATE_LIMITED".into(), &"per-address".into()));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 3, "a denied request does not reach the upstream");
    assert_eq!(seen[0].uri, "/a?b=c");
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_address_serves_health_and_metrics() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &["--admin", "127.0.0.1:0"]);
    for _ in 0..5 {
        send(get(&proxy, "/orders")).await;
    }
    let admin = proxy.admin.clone().unwrap();
    let look =
        async |path: &str| send(Request::get(format!("{admin}{path}")).body(Full::default()).unwrap()).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(look(path).await.0, StatusCode::OK, "{path}");
    }
    let (status, headers, page) = look("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text(&headers, "content-type").starts_with("application/openmetrics-text"));
    let counted = |metric: &str| {
        let line = page.lines().find(|line| line.starts_with(metric) && line.contains("\"per-address\""));
        line.unwrap_or_else(|| panic!("no {metric} in {page}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(
        (counted("pacegate_allowed_total"), counted("pacegate_blocked_total")),
        ("3".into(), "2".into())
    );
    assert!(page.contains("pacegate_responses_total{protocol=\"http\",status=\"4xx\"} 2"), "{page}");
    for path in ["/v1/rate-limit/check", "/admin/status", "/api/v1/rules", "/", "/docs"] {
        assert_eq!(look(path).await.0, StatusCode::NOT_FOUND, "{path} is the service's");
    }
    let check = Request::post(format!("{admin}/v1/rate-limit/check")).body(Full::default()).unwrap();
    assert_eq!(send(check).await.0, StatusCode::NOT_FOUND);
    let many = Proxy::start(&upstream.url, MANY, &[]);
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(
            send(get(&many, path)).await.2,
            "hello",
            "{path} of the proxy's own address is the upstream's"
        );
    }
    assert_eq!(many.admin, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_upstream_and_log_have_the_same_request_id() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, &format!("{THREE}log: {{format: json, decisions: all}}\n"), &[]);
    let mut named = get(&proxy, "/a");
    named.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    // A client cannot remove the id.
    named.headers_mut().insert(CONNECTION, "x-request-id".parse().unwrap());
    let (_, headers, _) = send(named).await;
    assert_eq!(text(&headers, "x-request-id"), "mine-1");
    let mut unusable = get(&proxy, "/a");
    unusable.headers_mut().insert("x-request-id", "two words".parse().unwrap());
    let (_, headers, _) = send(unusable).await;
    let generated = text(&headers, "x-request-id").to_owned();
    assert!(generated.starts_with("req_"), "{generated}");
    let seen = upstream.seen();
    let ids: Vec<&str> = seen.iter().map(|seen| text(&seen.headers, "x-request-id")).collect();
    assert_eq!(ids, ["mine-1", &generated]);
    send(get(&proxy, "/a")).await;
    let (status, headers, body) = send(get(&proxy, "/a")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let denied = text(&headers, "x-request-id").to_owned();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["request_id"], denied);
    let details = &body["error"]["details"];
    assert_eq!((&details["limit"], &details["remaining"]), (&3.into(), &0.into()), "{body}");
    assert_eq!(details["reset_at"].to_string(), text(&headers, "x-ratelimit-reset"));
    let log = proxy.log();
    let lines: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["target"] == "pacegate::decision")
        .collect();
    let logged: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
    assert_eq!(
        (logged.len(), logged[0], logged[1], logged[3]),
        (4, "mine-1", &*generated, &*denied),
        "{log}"
    );
    assert_eq!((&lines[3]["message"], &lines[3]["rule"]), (&"denied".into(), &"per-address".into()));
    assert!(!log.contains("127.0.0.1\""), "identifiers are hashed: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_match_the_path_and_the_method() {
    let upstream = Upstream::start().await;
    let rules = "default_limit: none\nrules:\n  - {name: logins, dimension: ip, endpoint: /login, method: POST, algorithm: fixed_window, limit: 1, window: 1h}\n";
    let proxy = Proxy::start(&upstream.url, rules, &[]);
    let post = |path| {
        let url = format!("{}{path}", proxy.url);
        Request::post(url).body(Full::from("x")).unwrap()
    };
    assert_eq!(send(post("/login")).await.0, StatusCode::OK);
    assert_eq!(send(post("/login")).await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(post("//login")).await.0, StatusCode::TOO_MANY_REQUESTS, "all spellings are one path");
    assert_eq!(send(get(&proxy, "/login")).await.0, StatusCode::OK);
    assert_eq!(send(post("/other")).await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_identities_are_charged_or_none() {
    let upstream = Upstream::start().await;
    let rules = "default_limit: none\nrules:\n  - {name: per-address, dimension: ip, algorithm: fixed_window, limit: 3, window: 1h}\n  - {name: per-key, dimension: apikey, algorithm: fixed_window, limit: 1, window: 1h}\n  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 1, window: 1h}\n";
    let proxy = Proxy::start(&upstream.url, rules, &["--user-header", "X-User"]);
    let ask_as = async |name: &str, value: &str| {
        let mut request = get(&proxy, "/");
        request
            .headers_mut()
            .insert(name.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
        send(request).await
    };
    assert_eq!(ask_as("x-api-key", "a").await.0, StatusCode::OK);
    for _ in 0..5 {
        let (status, _, body) = ask_as("x-api-key", "a").await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(body.contains("per-key"), "{body}");
    }
    assert_eq!(ask_as("x-user", "alice").await.0, StatusCode::OK);
    let (status, _, body) = ask_as("x-user", "alice").await;
    assert!(status == StatusCode::TOO_MANY_REQUESTS && body.contains("per-user"), "{body}");
    let (status, headers, _) = send(get(&proxy, "/")).await;
    assert_eq!(
        (status, text(&headers, "x-ratelimit-remaining")),
        (StatusCode::OK, "0"),
        "denied requests are not charged"
    );
    let (status, _, body) = ask_as("x-api-key", "b").await;
    assert!(status == StatusCode::TOO_MANY_REQUESTS && body.contains("per-address"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_header_counts_only_if_configured() {
    let upstream = Upstream::start().await;
    let rules = "default_limit: none\nrules:\n  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 1, window: 1h}\n";
    let proxy = Proxy::start(&upstream.url, rules, &[]);
    for _ in 0..3 {
        let mut request = get(&proxy, "/");
        request.headers_mut().insert("x-user", "alice".parse().unwrap());
        assert_eq!(send(request).await.0, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_address_of_an_untrusted_client_is_ignored() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &[]);
    let mut allowed = 0;
    for number in 0..100 {
        let mut request = get(&proxy, "/");
        let claimed = format!("203.0.113.{number}");
        for name in ["x-forwarded-for", "x-real-ip", "x-forwarded-user"] {
            request.headers_mut().insert(name, claimed.parse().unwrap());
        }
        request.headers_mut().insert("forwarded", format!("for={claimed}").parse().unwrap());
        allowed += u32::from(send(request).await.0 == StatusCode::OK);
    }
    assert_eq!(allowed, 3, "one client is one counter");
    let seen = &upstream.seen()[0].headers;
    assert_eq!(text(seen, "x-forwarded-for"), "127.0.0.1", "the upstream sees the real address");
    for name in ["x-real-ip", "x-forwarded-user", "forwarded"] {
        assert!(!seen.contains_key(name), "{seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_address_of_a_trusted_proxy_is_used() {
    let upstream = Upstream::start().await;
    let config = format!("server: {{trusted_proxies: [127.0.0.0/8]}}\n{THREE}");
    let proxy = Proxy::start(&upstream.url, &config, &[]);
    for client in ["203.0.113.1", "203.0.113.2"] {
        for expected in [200, 200, 200, 429] {
            let mut request = get(&proxy, "/");
            // The client wrote the part to the left of its address.
            request
                .headers_mut()
                .append("x-forwarded-for", format!("198.51.100.9, {client}").parse().unwrap());
            request.headers_mut().append("x-forwarded-for", "127.0.0.9".parse().unwrap());
            request.headers_mut().insert("x-forwarded-proto", "https".parse().unwrap());
            request.headers_mut().insert("x-forwarded-host", "shop.example".parse().unwrap());
            assert_eq!(send(request).await.0.as_u16(), expected);
        }
    }
    let seen = &upstream.seen()[0].headers;
    assert_eq!(text(seen, "x-forwarded-for"), "198.51.100.9, 203.0.113.1, 127.0.0.9, 127.0.0.1");
    assert_eq!((text(seen, "x-forwarded-proto"), text(seen, "x-forwarded-host")), ("https", "shop.example"));
}

#[tokio::test(flavor = "multi_thread")]
async fn hop_by_hop_headers_are_removed() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let mut request = get(&proxy, "/");
    for (name, value) in [
        ("host", "shop.example"),
        ("connection", "keep-alive, X-Private, X-Forwarded-For"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eA=="),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("x-kept", "2"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let (_, response, _) = send(request).await;
    let seen = &upstream.seen()[0];
    for name in [
        "connection",
        "x-private",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "upgrade",
        "http2-settings",
    ] {
        assert!(!seen.headers.contains_key(name), "{name} reached the upstream: {:?}", seen.headers);
    }
    assert_eq!((text(&seen.headers, "host"), text(&seen.headers, "x-kept")), ("shop.example", "2"));
    assert_eq!(text(&seen.headers, "x-forwarded-host"), "shop.example");
    assert_eq!(text(&seen.headers, "x-forwarded-proto"), "http");
    assert_eq!(text(&seen.headers, "x-forwarded-for"), "127.0.0.1");
    assert_eq!(seen.version, Version::HTTP_11);
    for name in ["keep-alive", "proxy-authenticate", "x-hop"] {
        assert!(!response.contains_key(name), "{name} reached the client: {response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_streamed() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let (chunks, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let request =
        Request::post(format!("{}/echo", proxy.url)).body(StreamBody::new(ReceiverStream::new(body)));
    chunks.send(Ok(Frame::data("first".into()))).await.unwrap();
    let response = client(false).request(request.unwrap()).await.unwrap();
    assert_eq!(upstream.chunk().await, "first", "forwarded before the client sent the last piece");
    let mut body = response.into_body();
    let mut next = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next().await, "first", "forwarded before the upstream sent the last piece");
    chunks.send(Ok(Frame::data("last".into()))).await.unwrap();
    assert_eq!(upstream.chunk().await, "last");
    assert_eq!(next().await, "last");
    drop(chunks);
    assert!(body.frame().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_in_both_directions() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let bytes: Vec<u8> =
        (0..10_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for http2 in [false, true] {
        let request =
            Request::post(format!("{}/echo", proxy.url)).body(Full::<Bytes>::from(bytes.clone())).unwrap();
        let response = client(http2).request(request).await.unwrap();
        let back = response.into_body().collect().await.unwrap().to_bytes();
        assert!(back == bytes, "{} bytes came back", back.len());
        assert_eq!(text(&upstream.seen().last().unwrap().headers, "content-length"), "10000000");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_is_supported_on_both_sides() {
    let upstream = Upstream::start().await;
    for arguments in [&[][..], &["--upstream-http2"]] {
        let proxy = Proxy::start(&upstream.url, THREE, arguments);
        let client = client(true);
        for expected in [200, 200, 200, 429] {
            let response: Response<_> = client.request(get(&proxy, "/two")).await.unwrap();
            assert_eq!((response.version(), response.status().as_u16()), (Version::HTTP_2, expected));
            assert_eq!(text(response.headers(), "x-ratelimit-limit"), "3");
        }
        let seen = upstream.seen().pop().unwrap();
        let http2 = !arguments.is_empty();
        assert_eq!(seen.version, if http2 { Version::HTTP_2 } else { Version::HTTP_11 });
        let authority = proxy.url.trim_start_matches("http://");
        assert_eq!(text(&seen.headers, "x-forwarded-host"), authority);
        if !http2 {
            assert_eq!(text(&seen.headers, "host"), authority);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_pass_over_http2() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--upstream-http2"]);
    let mut request = get(&proxy, "/trailers");
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    let response = client(true).request(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(text(body.trailers().unwrap(), "grpc-status"), "0");
    assert_eq!(text(&upstream.seen()[0].headers, "te"), "trailers");
}

/// Requests an upgrade to `protocol`. Returns the connection and the head of the response.
async fn upgrade(proxy: &Proxy, path: &str, protocol: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\n{CONNECTION}: Upgrade\r\n{UPGRADE}: {protocol}\r\nsec-websocket-key: eA==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(response).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_pass_and_are_counted_as_requests() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &[]);
    let mut sockets = Vec::new();
    for remaining in ["2", "1", "0"] {
        let (mut stream, head) = upgrade(&proxy, "/socket", "websocket").await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("upgrade: websocket") && head.contains("sec-websocket-accept: eQ=="), "{head}");
        assert!(head.contains(&format!("x-ratelimit-remaining: {remaining}")), "{head}");
        for message in [&b"one"[..], b"two"] {
            stream.write_all(message).await.unwrap();
            let mut echo = [0; 3];
            stream.read_exact(&mut echo).await.unwrap();
            assert_eq!(echo, message);
        }
        sockets.push(stream);
    }
    let (_, head) = upgrade(&proxy, "/socket", "websocket").await;
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    // When one side closes, so does the other.
    let mut stream = sockets.remove(0);
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_websocket_is_closed() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--stream-timeout", "200ms"]);
    let (mut stream, head) = upgrade(&proxy, "/socket", "websocket").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let read = timeout(Duration::from_secs(10), stream.read(&mut [0; 8])).await.unwrap();
    assert_eq!(read.unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_upgrades_are_not_forwarded() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let (_, head) = upgrade(&proxy, "/", "h2c").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(!upstream.seen()[0].headers.contains_key(UPGRADE), "requests inside would not be counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_upstream_is_502() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let proxy = Proxy::start(&url, THREE, &[]);
    let mut request = get(&proxy, "/");
    request.headers_mut().insert("x-request-id", "r-1".parse().unwrap());
    let (status, headers, body) = send(request).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(text(&headers, "x-request-id"), "r-1");
    assert_eq!(text(&headers, "x-ratelimit-remaining"), "2");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["code"], "BAD_GATEWAY");
    assert_eq!(body["error"]["message"], "the upstream cannot be reached");
    assert_eq!(body["error"]["request_id"], "r-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_upstream_is_504() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--timeout", "100ms"]);
    let (status, _, body) = send(get(&proxy, "/held")).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["code"], "GATEWAY_TIMEOUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_upload_does_not_time_out() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--timeout", "1s"]);
    let (chunks, body) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let request = Request::post(format!("{}/count", proxy.url))
        .body(StreamBody::new(ReceiverStream::new(body)))
        .unwrap();
    let response = tokio::spawn(client(false).request(request));
    for _ in 0..25 {
        chunks.send(Ok(Frame::data("x".into()))).await.unwrap();
        sleep(Duration::from_millis(100)).await;
    }
    drop(chunks);
    let response = response.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "25");
}

#[tokio::test(flavor = "multi_thread")]
async fn response_without_a_body_keeps_its_headers() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let request = Request::head(format!("{}/", proxy.url)).body(Full::default()).unwrap();
    let (status, headers, body) = send(request).await;
    assert_eq!((status, body.as_str(), text(&headers, "content-length")), (StatusCode::OK, "", "5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_with_one_store_share_counters() {
    let upstream = Upstream::start().await;
    let directory = TempDir::new().unwrap();
    let service = Service::start(&["--config", &file(directory.path(), THREE)], &[]);
    let config = format!(
        "mode: service\nservice: {{url: \"http://{}\"}}\nfailure: {{mode: closed, timeout: 5s}}\n",
        service.grpc
    );
    let proxies = [(); 2].map(|()| Proxy::start(&upstream.url, &config, &[]));
    for (proxy, remaining) in [(0, "2"), (1, "1"), (0, "0")] {
        let (status, headers, body) = send(get(&proxies[proxy], "/")).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(text(&headers, "x-ratelimit-remaining"), remaining);
    }
    assert_eq!(send(get(&proxies[1], "/")).await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(upstream.seen().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_response_is_aborted() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--stream-timeout", "200ms"]);
    let response = client(false).request(get(&proxy, "/half")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let whole = timeout(Duration::from_secs(10), response.into_body().collect()).await.unwrap();
    assert!(whole.is_err(), "an aborted response must not look complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_client_is_disconnected() {
    let upstream = Upstream::start().await;
    let config = format!("server: {{idle_timeout: 200ms}}\n{MANY}");
    let proxy = Proxy::start(&upstream.url, &config, &[]);
    for beginning in ["", "GET / HT", "GET / HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let end = timeout(Duration::from_secs(20), stream.read_to_end(&mut response)).await;
        assert!(end.is_ok(), "{beginning:?} holds its place");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded() {
    let upstream = Upstream::start().await;
    let config = format!("server: {{max_connections: 1}}\n{MANY}");
    let proxy = Proxy::start(&upstream.url, &config, &[]);
    let (socket, _) = upgrade(&proxy, "/socket", "websocket").await;
    // A WebSocket occupies a connection: the next one waits until it is closed.
    let next = tokio::spawn(send(get(&proxy, "/")));
    assert!(
        timeout(Duration::from_millis(300), async {
            while !next.is_finished() {
                sleep(Duration::from_millis(10)).await
            }
        })
        .await
        .is_err()
    );
    drop(socket);
    assert_eq!(timeout(Duration::from_secs(10), next).await.unwrap().unwrap().0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_address_are_bounded() {
    let upstream = Upstream::start().await;
    let config = format!("server: {{max_connections: 10, max_connections_per_address: 2}}\n{MANY}");
    let proxy = Proxy::start(&upstream.url, &config, &[]);
    // Open WebSockets are never evicted.
    let sockets =
        [upgrade(&proxy, "/socket", "websocket").await, upgrade(&proxy, "/socket", "websocket").await];
    let target: SocketAddr = proxy.url.trim_start_matches("http://").parse().unwrap();
    let mut further = TcpStream::connect(target).await.unwrap();
    assert_eq!(timeout(Duration::from_secs(10), further.read(&mut [0; 1])).await.unwrap().unwrap_or(0), 0);
    let other = TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = other.connect(target).await.unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    timeout(Duration::from_secs(10), other.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    drop(sockets);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_host_headers_are_rejected() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert!(upstream.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_is_rejected() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
    assert!(upstream.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_shutdown_finishes_requests_in_flight() {
    let upstream = Upstream::start().await;
    let mut proxy = Proxy::start(&upstream.url, MANY, &[]);
    let held = tokio::spawn(send(get(&proxy, "/held")));
    let idle = client(true);
    idle.request(get(&proxy, "/")).await.unwrap();
    upstream.until_seen(2).await;
    signal(&proxy.process, "TERM");
    let rejects = async {
        while TcpStream::connect(proxy.url.trim_start_matches("http://")).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), rejects).await.unwrap();
    assert!(proxy.process.try_wait().unwrap().is_none(), "a request is still in flight");
    upstream.release();
    let (status, _, body) = held.await.unwrap();
    assert_eq!((status, body.as_str()), (StatusCode::OK, "held"));
    let status = tokio::task::spawn_blocking(move || proxy.process.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_file_is_reloaded() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &[]);
    assert_eq!(text(&send(get(&proxy, "/")).await.1, "x-ratelimit-limit"), "3");
    signal(&proxy.process, "HUP");
    file(proxy.directory.path(), &THREE.replace("limit: 3", "limit: 500"));
    let changed = async {
        while text(&send(get(&proxy, "/")).await.1, "x-ratelimit-limit") != "500" {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(10), changed).await.unwrap();
}

#[test]
fn invalid_arguments_are_explained() {
    let directory = TempDir::new().unwrap();
    let bad = file(directory.path(), "server: {trusted_proxies: [balancer]}\n");
    let good = ["--upstream", "http://127.0.0.1:3000"];
    for (arguments, expected) in [
        (
            vec!["--upstream", "https://127.0.0.1:1"],
            "`https://127.0.0.1:1` must be an address such as http://",
        ),
        (vec!["--upstream", "127.0.0.1:3000"], "--upstream: `127.0.0.1:3000`"),
        (vec!["--upstream", "http://a b"], "--upstream: `http://a b` is not a URL"),
        (vec!["--upstream", "http://u:p@127.0.0.1"], "must not contain a user or a password"),
        (vec!["--upstream", "http://127.0.0.1/api"], "must not have a path"),
        (
            [&good[..], &["--timeout", "soon"]].concat(),
            "--timeout: expected a duration such as 30s, got `soon`",
        ),
        ([&good[..], &["--timeout", "0s"]].concat(), "--timeout: must be between 1ms and 1h, got 0s"),
        ([&good[..], &["--stream-timeout", "2h"]].concat(), "--stream-timeout: must be between"),
        ([&good[..], &["--user-header", "a b"]].concat(), "--user-header: `a b` is not a valid header name"),
        ([&good[..], &["--config", &bad]].concat(), "server.trusted_proxies[0]: expected a network"),
    ] {
        let (code, _, error) = run(&[&["proxy"], &arguments[..]].concat());
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(error.lines().count() <= 2, "{error}");
    }
    let (code, _, error) = run(&["proxy"]);
    assert!(code == 2 && error.contains("--upstream <URL>"), "{error}");
    let (code, help, _) = run(&["proxy", "--help"]);
    assert!(code == 0 && help.contains("pacegate proxy --upstream http://127.0.0.1:3000"), "{help}");
}

/// Sends an upload in two writes and reads the response.
async fn upload(stream: &mut TcpStream, length: usize) -> String {
    let head = format!("POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; length]).await.unwrap();
    let (mut response, mut buffer) = (Vec::new(), [0; 4_096]);
    while !response.ends_with(b"}") && !response.ends_with(b"hello") {
        let count = timeout(Duration::from_secs(20), stream.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "{length}: closed after {:?}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(response).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_upload_leaves_the_connection_usable() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, THREE, &[]);
    let address = proxy.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        assert!(upload(&mut stream, 10).await.starts_with("HTTP/1.1 200"));
    }
    for length in [10, 2_000, 300_000, 3_000_000, 10] {
        let response = upload(&mut stream, length).await;
        assert!(response.starts_with("HTTP/1.1 429"), "{length}: {response}");
        assert!(!response.contains("connection: close"), "{length}: {response}");
    }
    // Above the bound, the response still arrives, with `Connection: close`.
    let response = upload(&mut stream, 20_000_000).await;
    assert!(response.starts_with("HTTP/1.1 429") && response.contains("connection: close"), "{response}");
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(upstream.seen().len(), 3);
}

/// The upstream responds to an upload without reading it. The response announces when the
/// connection is closed.
#[tokio::test(flavor = "multi_thread")]
async fn early_response_leaves_the_connection_usable() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &[]);
    let connect = || TcpStream::connect(proxy.url.trim_start_matches("http://"));
    let mut stream = connect().await.unwrap();
    for _ in 0..8 {
        stream.write_all(b"POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n").await.unwrap();
        let (mut response, mut buffer) = (Vec::new(), [0; 4_096]);
        while !response.ends_with(b"hello") {
            let count = timeout(Duration::from_secs(20), stream.read(&mut buffer)).await.unwrap().unwrap();
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&response));
            response.extend_from_slice(&buffer[..count]);
        }
        if String::from_utf8_lossy(&response).contains("connection: close") {
            stream = connect().await.unwrap();
            continue;
        }
        // The rest of the request arrives after its upstream connection has ended.
        sleep(Duration::from_millis(50)).await;
        stream.write_all(b"xxxxxxxxxx").await.unwrap();
    }
    assert!(upload(&mut stream, 10).await.starts_with("HTTP/1.1 200"));
}

/// Without this bound, a client could make the upstream work on requests without ever reading a
/// response.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_resets_its_requests_is_disconnected() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url, MANY, &["--upstream-http2"]);
    let address = proxy.url.trim_start_matches("http://").to_owned();
    let stream = TokioIo::new(TcpStream::connect(&address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut begun = 0;
    while !connection.is_finished() {
        assert!(begun < 2_000, "the connection is closed");
        let mut sender = sender.clone();
        let requests: Vec<_> = (0..50)
            .map(|_| {
                let request = Request::get(format!("http://{address}/held")).body(Full::<Bytes>::default());
                tokio::spawn(sender.send_request(request.unwrap()))
            })
            .collect();
        begun += requests.len();
        // Each request is in flight before it is reset, unless the connection is closed.
        while upstream.seen().len() < begun && !connection.is_finished() {
            sleep(Duration::from_millis(2)).await;
        }
        requests.iter().for_each(tokio::task::JoinHandle::abort);
        for request in requests {
            let _ = request.await;
        }
    }
    assert!(begun > 1_000, "some may be given up: {begun}");
    let (status, ..) = send(get(&proxy, "/")).await;
    assert_eq!(status, StatusCode::OK, "other clients are served");
}
