//! A flood of new keys on a full Redis must not reset users that are over their limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pacegate_testkit::effort;
use pacegate_testkit::server::RedisServer;

use crate::callers::{alone, timed};
use crate::process::{Service, file};

const RULES: &str = "
failure: {mode: open, timeout: 2s}
rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 5, window: 1d}
";

/// A caller without a key, on one connection.
struct Caller(BufReader<TcpStream>);

impl Caller {
    fn new(service: &Service) -> Self {
        Self(BufReader::new(TcpStream::connect(service.url.trim_start_matches("http://")).unwrap()))
    }

    fn ask(&mut self, path: &str, body: &str) -> serde_json::Value {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the service closed the connection");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    fn check(&mut self, user: &str) -> serde_json::Value {
        self.ask("/v1/rate-limit/check", &format!(r#"{{"user_id":"{user}","endpoint":"/login"}}"#))
    }

    /// Checks 1,000 new users. Returns how many were decided by the failure mode.
    fn fill(&mut self, made_up: &AtomicUsize) -> usize {
        let first = made_up.fetch_add(1_000, Ordering::Relaxed);
        let checks: Vec<String> = (first..first + 1_000)
            .map(|user| format!(r#"{{"user_id":"made-up-{user}","endpoint":"/login"}}"#))
            .collect();
        let body = format!(r#"{{"checks":[{}]}}"#, checks.join(","));
        let response = self.ask("/v1/rate-limit/batch-check", &body);
        let results = response["results"].as_array().unwrap();
        results.iter().filter(|result| result["reason"] == "FAIL_OPEN").count()
    }
}

#[test]
fn flood_creates_at_most_its_budget_of_keys() {
    let _alone = alone();
    let server = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let per_second = 100;
    let store =
        format!("stores: {{default: {{url: \"{}\", new_keys_per_second: {per_second}}}}}", server.url());
    let config = file(directory.path(), &format!("{store}{RULES}"));
    let service = Service::start(&["--config", &config], &[]);
    let mut caller = Caller::new(&service);
    let made_up = AtomicUsize::new(0);
    let ((), took) = timed(|| {
        for _ in 0..effort(3, 100) {
            assert_eq!(caller.fill(&made_up), 0, "no limit fails open");
        }
    });
    let flooded = made_up.load(Ordering::Relaxed);
    let keys: u64 = server.command(&["DBSIZE"]).parse().unwrap();
    // Keys of a batch in flight are still created when the budget is spent.
    let most = (took.as_secs() + 2) * (per_second + 128);
    assert!(keys <= most && keys < flooded as u64, "{keys} keys of {flooded} in {took:?}");
    println!("PASS attack_full_redis_budget made_up={flooded} keys={keys} most={most}");
}

#[test]
fn full_redis_resets_no_limited_user() {
    let _alone = alone();
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), RULES);
    let service = Service::start(&["--config", &config, "--store", &server.url()], &[]);
    let mut caller = Caller::new(&service);
    let users: Vec<String> = (0..20).map(|user| format!("limited-{user}")).collect();
    for user in &users {
        for _ in 0..5 {
            assert_eq!(caller.check(user)["allowed"], true);
        }
    }
    let memory = server.command(&["INFO", "memory"]);
    let used = memory.lines().find_map(|line| line.trim().strip_prefix("used_memory:")).unwrap();
    let maxmemory = used.parse::<u64>().unwrap() + 300_000;
    server.command(&["CONFIG", "SET", "maxmemory", &maxmemory.to_string()]);

    let made_up = AtomicUsize::new(0);
    while caller.fill(&made_up) == 0 {
        assert!(made_up.load(Ordering::Relaxed) < 100_000, "the flood never filled Redis");
    }
    let done = AtomicBool::new(false);
    let checks = effort(400, 4_000);
    let passed = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut caller = Caller::new(&service);
                while !done.load(Ordering::Relaxed) {
                    caller.check(&format!("made-up-{}", made_up.fetch_add(1, Ordering::Relaxed)));
                }
            });
        }
        let limited = users.iter().cycle().take(checks);
        let passed = limited.filter(|user| caller.check(user)["allowed"] == true).count();
        done.store(true, Ordering::Relaxed);
        passed
    });
    let flooded = made_up.load(Ordering::Relaxed);
    assert_eq!(passed, 0, "of {checks} checks of users over their limit, {passed} passed");
    println!("PASS attack_full_redis checks={checks} passed={passed} made_up={flooded}");
}
