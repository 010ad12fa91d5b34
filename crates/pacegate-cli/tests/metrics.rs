//! The metrics of the service: every one changes when it should, and none reveals identities.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;
mod scrape;

use std::collections::BTreeSet;

use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest};
use pacegate_testkit::server::{MariaDb, Postgres, RedisSentinels, RedisServer};
use process::{Service, file};
use scrape::{Scrape, get, scrape, until};
use tonic::transport::Endpoint;

const RULES: &str = "
default_limit: none
decision_log: {rows_per_second: 1}
rules:
  - {name: few, dimension: user, algorithm: fixed_window, limit: 10, window: 1d}
  - {name: watched, dimension: user, algorithm: gcra, limit: 1, window: 1d, mode: shadow}
";

fn start(rules: &str, arguments: &[&str]) -> (Service, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), rules);
    let arguments = [&["--config", &config], arguments].concat();
    (Service::start(&arguments, &[("PACEGATE_ADMIN_KEY", "secret")]), directory)
}

fn check(service: &Service, body: &str) -> u16 {
    service.ask("POST", "/v1/rate-limit/check", body).unwrap().0
}

/// Sends `count` checks for one user.
fn checks(service: &Service, user: &str, count: usize) {
    for _ in 0..count {
        check(service, &format!(r#"{{"user_id": "{user}", "endpoint": "/"}}"#));
    }
}

#[test]
fn decisions_are_counted_by_the_binding_rule() {
    let (service, _directory) = start(RULES, &[]);
    let before = scrape(&service.url);
    assert_eq!(before.get("pacegate_allowed", &[]), None);
    checks(&service, "u1", 12);
    assert_eq!(check(&service, r#"{"user_id": "u2", "endpoint": "/", "cost": 11}"#), 429);
    check(&service, r#"{"dimension": "tenant", "identifier": "t", "endpoint": "/"}"#);
    let after = scrape(&service.url);
    let few = [("rule", "few"), ("algorithm", "fixed_window")];
    let of = |name: &str, reason: &str| after.get(name, &[few[0], few[1], ("reason", reason)]);
    assert_eq!(of("pacegate_allowed", "none"), Some(10.0), "{}", after.text);
    assert_eq!(of("pacegate_blocked", "LIMIT_EXCEEDED"), Some(2.0));
    assert_eq!(of("pacegate_blocked", "COST_EXCEEDS_LIMIT"), Some(1.0));
    assert_eq!(after.get("pacegate_allowed", &[("rule", "(none)"), ("algorithm", "none")]), Some(1.0));
    assert_eq!(after.get("pacegate_shadow_blocked", &[("rule", "watched")]), Some(12.0));
    assert_eq!(after.get("pacegate_tokens_remaining", &[("policy", "few")]), Some(0.0));
    assert_eq!(after.get("pacegate_latency_seconds", &[("outcome", "allowed")]), Some(11.0));
    assert_eq!(after.get("pacegate_latency_seconds", &[("outcome", "blocked")]), Some(3.0));
    assert_eq!(after.get("pacegate_latency_seconds", &[("outcome", "error")]), Some(0.0));
    assert_eq!(after.get("pacegate_keys", &[("store", "default")]), Some(2.0));
    assert_eq!(after.get("pacegate_store_clock_ahead_seconds", &[("store", "default")]), Some(0.0));
    assert!(after.get("pacegate_state_transitions", &[("to", "throttled")]).unwrap() >= 2.0);
    let count = |scrape: &Scrape, status| {
        scrape.get("pacegate_responses", &[("protocol", "http"), ("status", status)])
    };
    assert_eq!(count(&after, "4xx"), Some(3.0));
    assert_eq!(
        count(&after, "2xx").unwrap() - count(&before, "2xx").unwrap(),
        12.0,
        "eleven checks and a scrape"
    );
    assert!(after.get("pacegate_log_dropped", &[]).unwrap() > 0.0, "one row per second is stored");
    assert_eq!(after.get("pacegate_rules", &[]), Some(2.0));
    assert_eq!(after.get("pacegate_catalog_up", &[]), Some(1.0));
    assert_eq!(after.get("pacegate_connections", &[("protocol", "http")]), Some(1.0), "this one");
    let cpu = |scrape: &Scrape| scrape.get("process_cpu_seconds", &[]).unwrap();
    assert!(cpu(&after) >= cpu(&before) && cpu(&after) > 0.0);
    assert!(after.get("process_resident_memory_bytes", &[]).unwrap() > 1e6);
    assert!(after.get("process_open_fds", &[]).unwrap() > 3.0);
    // A replay is not charged.
    let repeated = r#"{"user_id": "u3", "endpoint": "/", "idempotency_key": "k"}"#;
    check(&service, repeated);
    check(&service, repeated);
    assert_eq!(scrape(&service.url).get("pacegate_allowed", &few), Some(11.0));
}

#[test]
fn clock_skew_suppressed_lines_and_grpc_are_counted() {
    let (service, _directory) = start(RULES, &[]);
    check(&service, r#"{"user_id": "u1", "endpoint": "/", "timestamp": 1000}"#);
    checks(&service, "u1", 60);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let grpc = format!("http://{}", service.grpc);
    runtime.block_on(async {
        let mut client = RateLimiterClient::new(Endpoint::from_shared(grpc).unwrap().connect_lazy());
        let check = CheckRequest { identifier: "u9".into(), endpoint: "/".into(), ..CheckRequest::default() };
        client.check_rate_limit(check).await.unwrap();
        client.check_rate_limit(CheckRequest::default()).await.unwrap_err();
        let open = scrape(&service.url);
        assert_eq!(open.get("pacegate_connections", &[("protocol", "grpc")]), Some(1.0));
    });
    drop(runtime);
    let after = scrape(&service.url);
    assert_eq!(after.get("pacegate_clock_skew_seconds", &[]), Some(1.0));
    assert!(after.get("pacegate_log_lines_dropped", &[]).unwrap() >= 30.0, "{}", after.text);
    let of = |code| after.get("pacegate_responses", &[("protocol", "grpc"), ("status", code)]);
    assert_eq!((of("Ok"), of("InvalidArgument")), (Some(1.0), Some(1.0)));
    until(&service.url, "the connection is gone", |scrape| {
        scrape.get("pacegate_connections", &[("protocol", "grpc")]) == Some(0.0)
    });
}

#[test]
fn redis_metrics_show_an_outage() {
    let mut redis = RedisServer::start();
    let (service, _directory) = start(
        "failure: {mode: closed, timeout: 1s}\nrules: [{name: few, dimension: user, algorithm: fixed_window, limit: 10, window: 1d}]",
        &["--store", &format!("redis://{}", redis.address())],
    );
    let store = [("store", "default")];
    checks(&service, "u1", 12);
    let up = scrape(&service.url);
    assert_eq!(up.get("pacegate_store_up", &store), Some(1.0));
    assert_eq!(up.get("pacegate_breaker_state", &store), Some(0.0));
    assert!(up.get("pacegate_store_connections", &store).unwrap() >= 1.0, "{}", up.text);
    assert!(up.get("pacegate_store_connects", &store).unwrap() >= 1.0);
    assert!(up.get("pacegate_script_loads", &store).unwrap() >= 1.0);
    assert!(up.get("pacegate_store_batches", &store).unwrap() >= 12.0);
    assert!(up.get("pacegate_store_batched", &store).unwrap() >= 12.0);
    assert_eq!(up.get("pacegate_queue_depth", &[("queue", "store:default")]), Some(0.0));
    assert_eq!(
        (up.get("pacegate_degraded", &store), up.get("pacegate_store_errors", &store)),
        (Some(0.0), Some(0.0))
    );
    redis.kill();
    checks(&service, "u1", 40);
    let down = scrape(&service.url);
    assert_eq!(down.get("pacegate_degraded", &store), Some(40.0), "{}", down.text);
    assert!(down.get("pacegate_store_errors", &store).unwrap() > 0.0);
    assert!(down.get("pacegate_breaker_openings", &store).unwrap() >= 1.0);
    assert!(down.get("pacegate_breaker_state", &[store[0], ("caller", "any")]).unwrap() > 0.0);
    assert_eq!(down.get("pacegate_store_up", &store), Some(0.0));
    assert_eq!(down.get("pacegate_blocked", &[("reason", "FAIL_CLOSED")]), Some(40.0));
    redis.restart();
    until(&service.url, "Redis is found again", |scrape| {
        checks(&service, "u1", 1);
        scrape.get("pacegate_store_up", &store) == Some(1.0)
    });
}

#[test]
fn failover_and_lost_script_are_counted() {
    let mut redis = RedisSentinels::start(2, 3);
    let rules = "failure: {timeout: 5s}\nrules: [{name: many, dimension: user, algorithm: fixed_window, limit: 1000000, window: 1d}]";
    let (service, _directory) = start(rules, &["--store", &redis.url()]);
    let store = [("store", "default")];
    checks(&service, "u1", 3);
    let before = scrape(&service.url);
    assert_eq!(before.get("pacegate_store_primary_changes", &store), Some(0.0), "{}", before.text);
    let first = redis.primary_port();
    redis.servers().iter_mut().find(|server| server.port() == first).unwrap().kill();
    until(&service.url, "there is another primary, and all sentinels know it", |scrape| {
        checks(&service, "u1", 1);
        scrape.get("pacegate_store_primary_changes", &store).unwrap() >= 1.0
            && scrape.get("pacegate_store_up", &store) == Some(1.0)
            && redis.primary_port() != first
    });
    let loads = |scrape: &Scrape| scrape.get("pacegate_script_loads", &store).unwrap();
    let resends = |scrape: &Scrape| scrape.get("pacegate_store_resends", &store).unwrap();
    checks(&service, "u1", 3);
    let moved = scrape(&service.url);
    let primary = redis.primary_port();
    redis
        .servers()
        .iter()
        .find(|server| server.port() == primary)
        .unwrap()
        .command(&["SCRIPT", "FLUSH", "SYNC"]);
    checks(&service, "u1", 1);
    let after = scrape(&service.url);
    assert_eq!(loads(&after), loads(&moved) + 1.0, "{}", after.text);
    assert_eq!(resends(&after), resends(&moved) + 1.0, "{}", after.text);
}

#[test]
fn waiting_checks_are_measured() {
    let redis = RedisServer::start();
    let rules = "
failure: {mode: closed, timeout: 5s}
decision_log: {denied: 1.0}
rules: [{name: one, dimension: user, algorithm: fixed_window, limit: 1, window: 1d}]
";
    let (service, _directory) = start(rules, &["--store", &format!("redis://{}", redis.address())]);
    until(&service.url, "decisions wait for a second before they are written", |scrape| {
        checks(&service, "u1", 2);
        scrape.get("pacegate_queue_depth", &[("queue", "decision_log")]).unwrap() > 0.0
    });
    redis.freeze();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            // A user with an open connection.
            scope.spawn(|| checks(&service, "u1", 1));
        }
        until(&service.url, "checks wait for the store", |scrape| {
            scrape.get("pacegate_queue_depth", &[("queue", "store:default")]).unwrap() > 0.0
        });
        redis.thaw();
    });
    until(&service.url, "no check is waiting", |scrape| {
        scrape.get("pacegate_queue_depth", &[("queue", "store:default")]) == Some(0.0)
            && scrape.get("pacegate_queue_depth", &[("queue", "decision_log")]) == Some(0.0)
    });
}

/// A catalog that hangs is reported, and does not block other metrics.
#[test]
fn unresponsive_catalog_is_reported() {
    let postgres = Postgres::start();
    let (service, _directory) = start(RULES, &["--catalog", &postgres.url()]);
    assert_eq!(scrape(&service.url).get("pacegate_catalog_up", &[]), Some(1.0));
    postgres.freeze();
    // The last result is cached for a second.
    until(&service.url, "the catalog hangs", |scrape| scrape.get("pacegate_catalog_up", &[]) == Some(0.0));
    let frozen = scrape(&service.url);
    assert_eq!(frozen.get("pacegate_store_up", &[]), Some(1.0));
    postgres.thaw();
    until(&service.url, "the catalog is back", |scrape| scrape.get("pacegate_catalog_up", &[]) == Some(1.0));
}

#[test]
fn databases_are_measured() {
    let (mariadb, postgres) = (MariaDb::start(), Postgres::start());
    for url in [mariadb.url(), postgres.url()] {
        let (service, _directory) = start(
            // Even on a slow machine, a round trip is shorter than this.
            "failure: {timeout: 5s}\nrules: [{name: few, dimension: user, algorithm: fixed_window, limit: 10, window: 1d}]",
            &["--store", &url],
        );
        checks(&service, "u1", 12);
        let scrape = scrape(&service.url);
        let of = |name| scrape.get(name, &[("store", "default")]).unwrap();
        assert!((1.0..=3.0).contains(&of("pacegate_store_connections")), "{}", scrape.text);
        assert!((1.0..=3.0).contains(&of("pacegate_store_connects")), "{}", scrape.text);
        assert!(of("pacegate_store_batches") >= 12.0);
        assert!(of("pacegate_store_batched") >= of("pacegate_store_batches"));
        assert_eq!(scrape.get("pacegate_queue_depth", &[("queue", "store:default")]), Some(0.0));
    }
}

/// Values from callers never become labels.
#[test]
fn labels_are_bounded_whatever_clients_send() {
    let (service, _directory) = start(RULES, &[]);
    let before = scrape(&service.url).series.len();
    for number in 0..300 {
        let body = format!(
            r#"{{"keys": {{"user": "who-{number}", "dim{}": "x"}}, "endpoint": "/path-{number}", "method": "M{}", "limit": {}, "window_seconds": 60}}"#,
            number % 16,
            ["A", "B", "C"][number % 3],
            number + 1
        );
        check(&service, &body);
        get(&service.url, &format!("/nowhere-{number}"));
    }
    let after = scrape(&service.url);
    assert!(after.series.len() - before < 30, "{}", after.text);
    for secret in ["who-", "path-", "nowhere", "secret"] {
        assert!(!after.text.contains(secret), "{secret}");
    }
    let known: BTreeSet<&str> = BTreeSet::from([
        "rule",
        "algorithm",
        "reason",
        "store",
        "outcome",
        "policy",
        "caller",
        "queue",
        "to",
        "protocol",
        "status",
        "version",
    ]);
    for (name, labels, _) in &after.series {
        assert!(labels.iter().all(|(label, _)| known.contains(label.as_str())), "{name} {labels:?}");
    }
}

/// While limits fall back to local counters, both decisions have the same reason.
#[test]
fn local_fallback_is_counted() {
    let mut redis = RedisServer::start();
    let rules = "failure: {mode: local}\nrules: [{name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}]";
    let (service, _directory) = start(rules, &["--store", &format!("redis://{}", redis.address())]);
    redis.kill();
    checks(&service, "u1", 6);
    let scrape = scrape(&service.url);
    let of = |name| scrape.get(name, &[("rule", "few"), ("reason", "LOCAL_FALLBACK")]);
    assert_eq!((of("pacegate_allowed"), of("pacegate_blocked")), (Some(2.0), Some(4.0)), "{}", scrape.text);
}

/// A batch with one decision counts as one.
#[test]
fn atomic_batch_counts_as_one_decision() {
    let (service, _directory) = start(RULES, &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let grpc = format!("http://{}", service.grpc);
    runtime.block_on(async {
        let mut client = RateLimiterClient::new(Endpoint::from_shared(grpc).unwrap().connect_lazy());
        let of =
            |user: String| CheckRequest { identifier: user, endpoint: "/".into(), ..CheckRequest::default() };
        let checks = (0..9)
            .map(|number| of(format!("u{number}")))
            .chain([CheckRequest { cost: 10, ..of("u9".into()) }]);
        let batch =
            BatchCheckRequest { checks: checks.collect(), all_or_nothing: true, ..Default::default() };
        client.batch_check(batch).await.unwrap();
    });
    let scrape = scrape(&service.url);
    assert_eq!(scrape.get("pacegate_allowed", &[]), Some(1.0), "{}", scrape.text);
    let throttled = scrape.get("pacegate_state_transitions", &[("to", "throttled")]).unwrap();
    assert!(throttled <= 11.0, "{throttled}: each limit that changed, once");
    assert_eq!(scrape.get("pacegate_latency_seconds", &[("outcome", "allowed")]), Some(1.0));
}

#[test]
fn metrics_can_be_switched_off() {
    let (service, _directory) = start("metrics: false", &[]);
    checks(&service, "u1", 1);
    assert!(get(&service.url, "/metrics").starts_with("HTTP/1.1 404"));
}

/// The guide and the service have the same metrics.
#[test]
fn operating_guide_lists_every_metric() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md")).unwrap();
    let listed: BTreeSet<String> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split(['`', '{']).next())
        .filter(|name| name.starts_with("pacegate_") || name.starts_with("process_"))
        .map(|name| name.trim_end_matches("_total").to_owned())
        .collect();
    let redis = RedisServer::start();
    let rules = format!(
        "{RULES}  - {{name: far, dimension: tenant, algorithm: gcra, limit: 1, window: 1d, store: far}}\n  - {{name: owed, dimension: user, mode: shadow, algorithm: gcra, limit: 1, window: 1d, cost: 9, overdraw: true}}\nstores: {{default: {{url: 'memory:'}}, far: {{url: 'redis://{}'}}}}",
        redis.address()
    );
    let (service, _directory) = start(&rules, &[]);
    checks(&service, "u1", 12);
    let found: BTreeSet<String> = scrape(&service.url).families.into_iter().collect();
    assert_eq!(found, listed);
}
