//! Three worker processes on one real Redis server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::process::{Child, Command, Stdio};

use pacegate_testkit::server::RedisServer;
use support::command;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/worker_pool.yaml");

/// A worker with 60 jobs, on this Redis server instead of the one in the file.
fn worker(name: &str, redis: &RedisServer) -> Command {
    let mut worker = command(env!("CARGO_BIN_EXE_worker_pool"), &[CONFIG, name, "60"]);
    worker.env("PACEGATE_STORES__DEFAULT__URL", redis.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    worker
}

#[test]
fn workers_together_do_exactly_what_the_limit_allows() {
    let redis = RedisServer::start();
    let workers: Vec<Child> = ["a", "b", "c"].map(|name| worker(name, &redis).spawn().unwrap()).into();
    let (mut done, mut left) = (0, 0);
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let line = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [by_this_one, for_tomorrow] = numbers[..] else { panic!("{line}") };
        assert_eq!(by_this_one + for_tomorrow, 60, "{line}");
        (done, left) = (done + by_this_one, left + for_tomorrow);
    }
    assert_eq!((done, left), (100, 80));
}

#[test]
fn worker_without_redis_does_nothing() {
    let mut redis = RedisServer::start();
    redis.kill();
    let output = worker("a", &redis).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("store `default`") && errors.contains("Connection refused"), "{errors}");
}
