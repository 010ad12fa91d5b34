//! Live figures as server-sent events, the history, and explanations of decisions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod sockets;

use client::Client;
use hyper::Method;
use pacegate_catalog::Actor;
use serde_json::{Value, json};
use sockets::{Service, soon};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const RULES: &str = "
default_limit: none
rules:
  - {name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}
  - {name: few, dimension: user, tier: gold, algorithm: fixed_window, limit: 20, window: 1d}
  - {name: few, dimension: user, identifier: vip, algorithm: fixed_window, limit: 200, window: 1d}
  - {name: posts, dimension: user, method: POST, endpoint: '/orders/{id}', algorithm: gcra, limit: 1, window: 1d, mode: shadow}
  - {name: per-tenant, dimension: tenant, algorithm: gcra, limit: 1, window: 1d}
";

/// A stream of events.
struct Events(BufReader<TcpStream>);

impl Events {
    async fn open(service: &Service, key: &str) -> Self {
        let mut stream = TcpStream::connect(service.http).await.unwrap();
        let head = "GET /api/v1/live HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n";
        stream.write_all(format!("{head}x-api-key: {key}\r\n\r\n").as_bytes()).await.unwrap();
        Self(BufReader::new(stream))
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = soon(self.0.read_line(&mut line)).await.unwrap_or_default();
        // The last chunk is empty.
        (read > 0 && line.trim_end() != "0").then(|| line.trim_end().to_owned())
    }

    /// Returns the name and data of the next event; `None` at the end.
    async fn next(&mut self) -> Option<(String, String)> {
        let mut name = String::new();
        loop {
            let line = self.line().await?;
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, data.to_owned()));
            }
        }
    }

    async fn figures(&mut self) -> Value {
        let (name, data) = self.next().await.unwrap();
        assert_eq!(name, "figures", "{data}");
        serde_json::from_str(&data).unwrap()
    }
}

async fn check(service: &Service, user: &str) {
    let mut stream = TcpStream::connect(service.http).await.unwrap();
    let body = json!({"user_id": user, "endpoint": "/"}).to_string();
    let head = "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    soon(stream.read_to_string(&mut String::new())).await.unwrap();
}

#[tokio::test]
async fn figures_are_sent_every_second_until_the_service_stops() {
    // Events reset the idle timeout of the connection.
    let mut service =
        Service::start(&format!("{RULES}\nserver: {{idle_timeout: 300ms, drain_delay: 0s}}")).await;
    let mut events = Events::open(&service, "secret").await;
    let first = events.figures().await;
    assert_eq!((&first["allowed_per_second"], &first["latency"]["p99_ms"]), (&json!(0.0), &Value::Null));
    assert_eq!(
        first["stores"],
        json!([{"name": "default", "health": "up", "breaker": "closed", "keys": 0, "errors": 0, "degraded": 0}])
    );
    for _ in 0..5 {
        check(&service, "u1").await;
    }
    check(&service, "u2").await;
    let second = events.figures().await;
    let rate = |name: &str| second[name].as_f64().unwrap();
    assert!(rate("allowed_per_second") > 0.0 && rate("blocked_per_second") > 0.0, "{second}");
    assert!(second["latency"]["p50_ms"].as_f64().unwrap() > 0.0);
    let key = |user: &str, allowed: u64, blocked: u64| json!({"dimension": "user", "identifier": user, "allowed": allowed, "blocked": blocked});
    assert_eq!(second["heaviest"], json!([key("u1", 2, 3), key("u2", 1, 0)]));
    assert_eq!(second["most_blocked"], json!([key("u1", 2, 3)]));
    assert_eq!(
        second["rules"],
        json!([{"rule": "few", "algorithm": "fixed_window", "allowed": 3, "blocked": 3, "shadow_blocked": 0, "shadow_checked": 0, "shadow_keys": 0, "shadow_keys_blocked": 0}])
    );
    assert_eq!((&second["ready"], &second["version"]), (&json!(true), &json!(env!("CARGO_PKG_VERSION"))));
    let third = events.figures().await;
    assert_eq!(third["allowed_per_second"], 0.0, "rates cover the last second");
    service.stop();
    while events.next().await.is_some() {}
    service.ended().await;
}

#[tokio::test]
async fn figures_are_computed_once_for_all_watchers() {
    let service = Service::start(RULES).await;
    let mut seen: Vec<Vec<Value>> = Vec::new();
    let mut watching = Vec::new();
    for _ in 0..3 {
        let mut events = Events::open(&service, "secret").await;
        seen.push(vec![events.figures().await["at"].clone()]);
        watching.push(events);
    }
    for (events, seen) in watching.iter_mut().zip(&mut seen) {
        for _ in 0..2 {
            seen.push(events.figures().await["at"].clone());
        }
        assert_eq!(seen.windows(2).filter(|pair| pair[0] == pair[1]).count(), 0, "{seen:?}");
    }
    let shared = seen[0].iter().filter(|at| seen.iter().all(|other| other.contains(at))).count();
    assert!(shared > 0, "{seen:?}");
    // The first watcher after a pause gets current figures.
    drop(watching);
    let old = seen.concat();
    let (_, secret) = service.catalog.create_key(&Actor::default(), "reader", "r", None).await.unwrap();
    // The streams of the other key may still be open.
    let mut events = Events::open(&service, &secret).await;
    soon(async { while events.figures().await["at"] == old[old.len() - 1] {} }).await;
}

#[tokio::test]
async fn revoked_key_ends_its_stream() {
    let service = Service::start(RULES).await;
    let (key, secret) = service.catalog.create_key(&Actor::default(), "reader", "r", None).await.unwrap();
    let mut events = Events::open(&service, &secret).await;
    events.figures().await;
    let mut admin = TcpStream::connect(service.http).await.unwrap();
    let path = format!("DELETE /api/v1/keys/{}", key.key_id);
    admin
        .write_all(
            format!("{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: secret\r\n\r\n")
                .as_bytes(),
        )
        .await
        .unwrap();
    soon(admin.read_to_string(&mut String::new())).await.unwrap();
    let last = loop {
        let (name, data) = events.next().await.unwrap();
        if name != "figures" {
            break (name, data);
        }
    };
    assert_eq!(last, ("error".to_owned(), "the API key was revoked".to_owned()));
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn history_has_the_decisions_of_the_last_minutes() {
    let service = Service::start(RULES).await;
    for _ in 0..5 {
        check(&service, "u1").await;
    }
    let sum = |seconds: &[Value], name: &str| -> u64 {
        seconds.iter().map(|second| second[name].as_u64().unwrap()).sum()
    };
    let mut polls = tokio::time::interval(std::time::Duration::from_millis(50));
    soon(async {
        loop {
            polls.tick().await;
            let mut stream = TcpStream::connect(service.http).await.unwrap();
            let head = "GET /api/v1/live/history HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
            stream.write_all(format!("{head}x-api-key: secret\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            let body: Value = serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            let seconds = body["seconds"].as_array().unwrap();
            if sum(seconds, "checks") == 5 {
                assert_eq!((sum(seconds, "allowed"), sum(seconds, "blocked")), (2, 3));
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn shadow_rule_counts_requests_and_keys() {
    let client = Client::managed(RULES).await;
    for user in ["u1", "u1", "u1", "u2", "u3"] {
        let body = json!({"user_id": user, "endpoint": "/orders/1", "method": "POST"});
        client.admin(Method::POST, "/v1/rate-limit/check", body).await;
    }
    let live = client.admin(Method::GET, "/api/v1/live", Value::Null).await;
    let rules = live.body["rules"].as_array().unwrap();
    let posts = rules.iter().find(|rule| rule["rule"] == "posts").unwrap();
    let figure = |name: &str| posts[name].as_u64().unwrap();
    assert_eq!((figure("shadow_blocked"), figure("shadow_checked")), (2, 5), "{posts}");
    assert_eq!((figure("shadow_keys_blocked"), figure("shadow_keys")), (1, 3), "{posts}");
}

#[tokio::test]
async fn number_of_streams_is_bounded() {
    let service = Service::start(RULES).await;
    let mut watching = Vec::new();
    let mut readers = vec!["secret".to_owned()];
    for name in 1..8 {
        let name = name.to_string();
        readers.push(service.catalog.create_key(&Actor::default(), "reader", &name, None).await.unwrap().1);
    }
    for reader in &readers {
        for _ in 0..8 {
            let mut events = Events::open(&service, reader).await;
            events.figures().await;
            watching.push(events);
        }
        // One key cannot use up all streams.
        if watching.len() < 64 {
            let mut rejected = Events::open(&service, reader).await;
            assert_eq!(rejected.line().await.unwrap(), "HTTP/1.1 429 Too Many Requests");
        }
    }
    let mut rejected = Events::open(&service, &readers[0]).await;
    assert_eq!(rejected.line().await.unwrap(), "HTTP/1.1 503 Service Unavailable");
    drop(watching);
    // Closed connections free their streams.
    soon(async {
        loop {
            let mut next = Events::open(&service, "secret").await;
            if next.line().await.unwrap() == "HTTP/1.1 200 OK" {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn explaining_a_check_charges_nothing() {
    let client = Client::managed(RULES).await;
    let explain = async |body: Value| {
        let answer = client.admin(Method::POST, "/api/v1/explain", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let rules = answer.body["rules"].as_array().unwrap();
        let said = |rule: &Value| {
            let text = |name: &str| rule[name].as_str().unwrap().to_owned();
            (text("rule"), rule["limit"].as_u64().unwrap(), text("verdict"), text("explanation"))
        };
        (answer.body["decision"]["remaining"].clone(), rules.iter().map(said).collect::<Vec<_>>())
    };
    for _ in 0..3 {
        let (remaining, rules) =
            explain(json!({"user_id": "u1", "endpoint": "/orders/1", "method": "GET"})).await;
        assert_eq!(remaining, 2, "nothing is charged");
        let expected = [
            ("few", 2, "applies", "applies: anyone"),
            ("posts", 1, "other_method", "applies to method POST only"),
            ("few", 20, "other_tier", "applies to tier gold only"),
            ("few", 200, "other_identifier", "applies to vip only"),
            ("per-tenant", 1, "other_dimension", "counts by tenant; the check has no tenant"),
        ];
        let expected = expected.map(|(a, b, c, d)| (a.to_owned(), b, c.to_owned(), d.to_owned()));
        assert_eq!(rules, expected);
    }
    let put = client.admin(Method::PUT, "/api/v1/users/u1/tier", json!({"tier": "gold"})).await;
    assert_eq!(put.status, 200, "{}", put.body);
    let (_, rules) = explain(json!({"user_id": "u1", "endpoint": "/orders", "method": "POST"})).await;
    let verdicts: Vec<(u64, &str)> =
        rules.iter().map(|(_, limit, verdict, _)| (*limit, verdict.as_str())).collect();
    let expected = [
        (20, "applies"),
        (2, "shadowed"),
        (200, "other_identifier"),
        (1, "other_endpoint"),
        (1, "other_dimension"),
    ];
    assert_eq!(verdicts, expected);
    // An override replaces the numbers of the variant in force only.
    let own = json!({"rule": "few", "limit": 7, "expires_in_seconds": 600});
    assert_eq!(client.admin(Method::POST, "/api/v1/users/u1/override", own).await.status, 201);
    let (_, rules) = explain(json!({"user_id": "u1", "endpoint": "/"})).await;
    let limits: Vec<(u64, &str)> =
        rules.iter().map(|(_, limit, verdict, _)| (*limit, verdict.as_str())).collect();
    assert_eq!(
        limits[..3],
        [(7, "applies"), (2, "shadowed"), (200, "other_identifier")],
        "each variant has its own numbers"
    );
    let answer =
        client.admin(Method::POST, "/api/v1/explain", json!({"user_id": "u1", "endpoint": "/"})).await;
    let rules = &answer.body["rules"];
    assert_eq!(
        rules[0]["own"],
        json!({"algorithm": "fixed_window", "limit": 20, "window_seconds": 86400}),
        "the rule's own numbers beside those of the override"
    );
    assert_eq!(rules[1].get("own"), None);
    let bad = client.admin(Method::POST, "/api/v1/explain", json!({"endpoint": "/"})).await;
    assert_eq!((bad.status.as_u16(), bad.error().0), (400, "INVALID_INPUT"));
}
