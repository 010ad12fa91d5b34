//! Changes through the service: in force at once on one node and soon on the others, durable
//! through kills, and atomic.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and this one measures"
)]

mod process;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pacegate_catalog::{AuditFilter, Catalog};
use pacegate_testkit::effort;
use pacegate_testkit::server::{MariaDb, Postgres};
use process::{Service, file};
use serde_json::{Value, json};

const KEY: (&str, &str) = ("PACEGATE_ADMIN_KEY", "secret");

fn rule(limit: usize) -> String {
    let rule = json!({"name": "per-user", "dimension": "user", "algorithm": "fixed_window", "limit": limit, "window_seconds": 3_600});
    rule.to_string()
}

/// The limit that a check sees.
fn limit_at(service: &Service) -> Value {
    let body = json!({"user_id": "u1", "endpoint": "/"}).to_string();
    service.ask("POST", "/v1/rate-limit/check", &body).unwrap().1["limit"].clone()
}

/// Waits until `reached` holds. Returns the time that took.
fn wait_until(reached: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(10), "not within ten seconds");
        // Leave the processor to the service.
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// Held by the tests that measure time, so that they run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two nodes on one catalog, and a third that starts late.
fn changes_propagate(name: &str, catalog: &str) {
    let _alone = alone();
    let start = || Service::start(&["--catalog", catalog], &[KEY]);
    let (here, there) = (start(), start());
    let (status, created) = here.ask("POST", "/api/v1/rules", &rule(1_000_000)).unwrap();
    assert_eq!(status, 201, "{created}");
    let path = format!("/api/v1/rules/{}", created["rule_id"].as_str().unwrap());
    let mut delays = Vec::new();
    for limit in 1..=effort(15, 200) {
        let limit = 1_000_000 + limit;
        let (status, _) = here.ask("PUT", &path, &rule(limit)).unwrap();
        assert_eq!(status, 200);
        assert_eq!(limit_at(&here), limit, "in force at once on the node that made the change");
        delays.push(wait_until(|| limit_at(&there) == limit));
    }
    let tier = json!({"tier": "premium", "custom_limits": {"per-user": {"limit": 77_777}}}).to_string();
    // The other node has cached the user before the change.
    assert_ne!(limit_at(&there), 77_777);
    assert_eq!(here.ask("PUT", "/api/v1/users/u1/tier", &tier).unwrap().0, 200);
    assert_eq!(limit_at(&here), 77_777, "users too");
    let user = wait_until(|| limit_at(&there) == 77_777);
    let late = start();
    assert_eq!(limit_at(&late), 77_777, "a node that was down catches up");
    let slow: Vec<usize> =
        (0..delays.len()).filter(|change| delays[*change] > Duration::from_secs(1)).collect();
    delays.sort_unstable();
    let p99 = delays[delays.len() * 99 / 100];
    println!(
        "PASS propagation-{name} changes={} p50_ms={} p99_ms={} max_ms={} user_ms={} slow={slow:?}",
        delays.len(),
        delays[delays.len() / 2].as_millis(),
        p99.as_millis(),
        delays[delays.len() - 1].as_millis(),
        user.as_millis()
    );
    assert!(p99 <= Duration::from_secs(2), "{p99:?}");
    assert!(user <= Duration::from_secs(2), "{user:?}");
}

#[test]
fn changes_propagate_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    changes_propagate("sqlite", &format!("sqlite://{}", directory.path().join("catalog.db").display()));
}

#[test]
fn changes_propagate_on_mariadb() {
    let database = MariaDb::start();
    changes_propagate("mariadb", &database.url());
}

#[test]
fn changes_propagate_on_postgres() {
    let database = Postgres::start();
    changes_propagate("postgresql", &database.url());
}

/// Kills the service while four clients change rules, and checks what is stored.
fn kills_lose_nothing(name: &str, catalog: &str) {
    let _alone = alone();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let acknowledged: Mutex<HashSet<String>> = Mutex::default();
    let numbers = AtomicUsize::new(0);
    let kills = effort(8, 200);
    for _ in 0..kills {
        let mut service = Service::start(&["--catalog", catalog], &[KEY]);
        let stop = AtomicBool::new(false);
        let pause = Duration::from_millis(random.u64(20..250));
        std::thread::scope(|scope| {
            let url = service.url.clone();
            for _ in 0..4 {
                let (url, stop, acknowledged, numbers) = (url.clone(), &stop, &acknowledged, &numbers);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let number = numbers.fetch_add(1, Ordering::Relaxed);
                        let body = json!({"name": format!("rule-{number}"), "dimension": "user", "algorithm": "gcra", "limit": 5, "window_seconds": 60});
                        match process::ask(&url, "POST", "/api/v1/rules", &body.to_string()) {
                            Ok((201, created)) => {
                                let id = created["rule_id"].as_str().unwrap().to_owned();
                                acknowledged.lock().unwrap().insert(id);
                            }
                            Ok((status, body)) => panic!("{status} {body}"),
                            Err(_) => {}
                        }
                    }
                });
            }
            // Kill during changes, not during the start.
            let before = acknowledged.lock().unwrap().len();
            wait_until(|| acknowledged.lock().unwrap().len() > before);
            std::thread::sleep(pause);
            stop.store(true, Ordering::Relaxed);
            service.kill();
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let catalog = Catalog::open(catalog).await.unwrap();
        let stored: HashSet<String> =
            catalog.rules().await.unwrap().rules.into_iter().map(|stored| stored.rule_id).collect();
        let mut audited = HashSet::new();
        let mut after = None;
        loop {
            let page = catalog.audit_page(AuditFilter::default(), after, 1_000).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.sequence);
            audited.extend(page.into_iter().filter(|record| record.action == "rule.create").map(|record| record.subject));
        }
        let acknowledged = acknowledged.into_inner().unwrap();
        let lost = acknowledged.difference(&stored).count();
        let unaudited = stored.difference(&audited).count();
        let phantom = audited.difference(&stored).count();
        println!(
            "PASS kills-{name} kills={kills} acknowledged={} stored={} lost={lost} unaudited={unaudited} audited_but_absent={phantom} seed={seed}",
            acknowledged.len(),
            stored.len()
        );
        assert!(acknowledged.len() >= kills, "the clients made too few changes");
        assert_eq!((lost, unaudited, phantom), (0, 0, 0));
        assert_eq!(catalog.audit_verify(None).await.unwrap().problems, []);
    });
}

#[test]
fn kills_lose_nothing_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    kills_lose_nothing("sqlite", &format!("sqlite://{}", directory.path().join("catalog.db").display()));
}

#[test]
fn kills_lose_nothing_on_mariadb() {
    let database = MariaDb::start();
    kills_lose_nothing("mariadb", &database.url());
}

#[test]
fn kills_lose_nothing_on_postgres() {
    let database = Postgres::start();
    kills_lose_nothing("postgresql", &database.url());
}

#[test]
fn changes_are_rejected_and_checks_continue_without_the_catalog() {
    let mut database = Postgres::start();
    let service = Service::start(&["--catalog", &database.url()], &[KEY]);
    let (status, created) = service.ask("POST", "/api/v1/rules", &rule(1_000)).unwrap();
    assert_eq!(status, 201, "{created}");
    database.kill();
    for _ in 0..20 {
        assert_eq!(limit_at(&service), 1_000, "checks continue with the last known rules");
    }
    let path = format!("/api/v1/rules/{}", created["rule_id"].as_str().unwrap());
    let (status, response) = service.ask("PUT", &path, &rule(5)).unwrap();
    assert_eq!((status, &response["error"]["code"]), (503, &json!("SERVICE_UNAVAILABLE")), "{response}");
    assert_eq!(service.ask("GET", "/readyz", "").unwrap().0, 503);
    assert_eq!(service.ask("GET", "/healthz", "").unwrap().0, 200);
    database.restart();
    wait_until(|| service.ask("GET", "/readyz", "").unwrap().0 == 200);
    assert_eq!(limit_at(&service), 1_000, "the change was not applied");
    assert_eq!(service.ask("PUT", &path, &rule(5)).unwrap().0, 200);
    assert_eq!(limit_at(&service), 5);
}

#[test]
fn file_is_reloaded_and_an_invalid_one_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let yaml = |limit: u32| {
        format!(
            "rules:\n  - {{name: a, dimension: user, algorithm: fixed_window, limit: {limit}, window: 1h}}\n"
        )
    };
    let path = file(directory.path(), &yaml(10));
    let service = Service::start(&["--config", &path], &[KEY]);
    assert_eq!(limit_at(&service), 10);
    file(directory.path(), &yaml(20));
    wait_until(|| limit_at(&service) == 20);
    file(
        directory.path(),
        "rules:\n  - {name: a, dimension: user, algorithm: nonsense, limit: 5, window: 1h}\n",
    );
    // A valid file after the invalid one shows that the invalid one was rejected.
    let (status, list) = service.ask("GET", "/api/v1/rules", "").unwrap();
    assert_eq!((status, &list["rules"][0]["limit"]), (200, &json!(20)));
    std::fs::write(directory.path().join("next.yaml"), yaml(30)).unwrap();
    std::fs::rename(directory.path().join("next.yaml"), &path).unwrap();
    wait_until(|| limit_at(&service) == 30);
    let (_, list) = service.ask("GET", "/api/v1/rules", "").unwrap();
    let id = list["rules"][0]["rule_id"].as_str().unwrap().to_owned();
    assert_eq!(list["rules"][0]["source"], "file");
    assert!(id.starts_with("file-"));
    let (status, _) = service.ask("DELETE", &format!("/api/v1/rules/{id}"), "").unwrap();
    assert_eq!(status, 409, "rules of the file can only be changed in the file");
}

#[test]
fn admin_key_is_created_once() {
    use std::io::BufRead;

    let directory = tempfile::tempdir().unwrap();
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let mut first = Service::start(&["--catalog", &catalog], &[]);
    let mut line = String::new();
    first.output.read_line(&mut line).unwrap();
    let key = line.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(key.starts_with("pgk_"), "{line}");
    let body = json!({"user_id": "u1", "endpoint": "/"}).to_string();
    assert!(first.post("/v1/rate-limit/reset", &key, &body).starts_with("HTTP/1.1 200"));
    first.kill();
    let mut second = Service::start(&["--catalog", &catalog], &[]);
    assert!(
        second.post("/v1/rate-limit/reset", &key, &body).starts_with("HTTP/1.1 200"),
        "the key is stored"
    );
    assert!(second.post("/v1/rate-limit/reset", "pgk_wrong", &body).starts_with("HTTP/1.1 401"));
    second.terminate();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut second.output, &mut rest).unwrap();
    assert!(!rest.contains("pgk_"), "the key is shown only once: {rest}");
}
