//! A flood of new identifiers must not fill the memory, the catalog or the log.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;
use serde_json::{Value, json};

use crate::callers::{Caller, alone, quantile, resident_bytes, timed};
use crate::process::{Service, file};

const CALLERS: usize = 4;
/// The number of checks that fit into a body.
const BATCH: usize = 200;
const MEBIBYTE: u64 = 1 << 20;

fn start(directory: &Path) -> Service {
    // Without counters, so that only usage and logs are measured.
    let config = file(directory, "default_limit: none\n");
    let catalog = format!("sqlite://{}", directory.join("catalog.db").display());
    let environment = [("PACEGATE_CATALOG__URL", &*catalog), ("PACEGATE_ADMIN_KEY", "secret")];
    Service::start(&["--config", &config], &environment)
}

fn catalog_bytes(directory: &Path) -> u64 {
    let length = |name| std::fs::metadata(directory.join(name)).map_or(0, |file| file.len());
    length("catalog.db") + length("catalog.db-wal")
}

/// Sends `checks` checks from several callers. One in a hundred is of the user `heavy`; `check`
/// creates the others from their numbers.
fn flood(service: &Service, checks: usize, check: impl Fn(usize) -> Value + Sync) {
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let check = &check;
            scope.spawn(move || {
                let mut connection = Caller::connect(service);
                for start in (caller * BATCH..checks).step_by(CALLERS * BATCH) {
                    let heavy = json!({"user_id": "heavy", "endpoint": "/"});
                    let of = |number: usize| {
                        if number.is_multiple_of(100) { heavy.clone() } else { check(number) }
                    };
                    let checks: Vec<Value> = (start..start + BATCH).map(of).collect();
                    let body = json!({"checks": checks}).to_string();
                    assert_eq!(connection.post("/v1/rate-limit/batch-check", &body), 200);
                }
            });
        }
    });
}

fn withstands(name: &str, check: impl Fn(usize) -> Value + Sync) {
    let directory = tempfile::tempdir().unwrap();
    let checks = effort(24_000, 600_000);
    let mut service = start(directory.path());
    flood(&service, BATCH * CALLERS, |_| json!({"user_id": "quiet", "endpoint": "/"}));
    let (memory, disk) = (resident_bytes(&service), catalog_bytes(directory.path()));
    flood(&service, checks, check);
    let memory = resident_bytes(&service).saturating_sub(memory);
    // Usage is written at shutdown.
    service.terminate();
    service.process.wait().unwrap();
    let disk = catalog_bytes(directory.path()).saturating_sub(disk);

    let is_bounded = memory < 50 * MEBIBYTE && disk < 10 * MEBIBYTE;
    assert!(is_bounded, "{memory} bytes of memory, {disk} in the catalog");

    let service = start(directory.path());
    let (_, usage) = service.ask("GET", "/api/v1/usage?identifier=heavy", "").unwrap();
    assert_eq!(usage["usage"].as_array().map(Vec::len), Some(1), "the heaviest user has a row: {usage}");
    println!("PASS attack_usage kind={name} checks={checks} memory_bytes={memory} catalog_bytes={disk}");
}

#[test]
fn flood_of_identifiers_fills_neither_memory_nor_catalog() {
    let _alone = alone();
    withstands("identifiers", |number| json!({"user_id": format!("{number:0>1000}"), "endpoint": "/"}));
}

#[test]
fn flood_of_dimensions_fills_neither_memory_nor_catalog() {
    let _alone = alone();
    let check = |number| {
        let dimension = format!("made-up-{number:0>56}");
        json!({"dimension": dimension, "identifier": format!("{number:0>900}"), "endpoint": "/"})
    };
    withstands("dimensions", check);
}

#[test]
fn watchers_do_not_affect_checks() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let service = start(directory.path());
    // The maximum number of identifiers that a node tracks.
    flood(&service, 16_000, |number| json!({"user_id": format!("user-{number}"), "endpoint": "/"}));
    let p99 = || {
        let mut caller = Caller::connect(&service);
        let check = |number: usize| {
            thread::sleep(Duration::from_millis(2));
            let body = json!({"user_id": format!("user-{number}"), "endpoint": "/"}).to_string();
            timed(|| assert_eq!(caller.post("/v1/rate-limit/check", &body), 200)).1
        };
        let mut took: Vec<Duration> = (0..effort(500, 5_000)).map(check).collect();
        quantile(&mut took, 0.99)
    };
    let alone = p99();
    // The maximum number of streams per key.
    let watching: Vec<TcpStream> = (0..8).map(|_| watch(&service)).collect();
    let watched = p99();
    watching.into_iter().for_each(wait_for_figures);
    let most = 2 * alone + Duration::from_millis(effort(200, 20));
    assert!(watched <= most, "p99 {watched:?} with watchers, {alone:?} without");
    println!(
        "PASS attack_usage kind=watchers watchers=8 p99_alone_us={} p99_watched_us={}",
        alone.as_micros(),
        watched.as_micros()
    );
}

/// Opens a stream of live figures.
fn watch(service: &Service) -> TcpStream {
    let mut stream = TcpStream::connect(service.url.trim_start_matches("http://")).unwrap();
    let head = "GET /api/v1/live HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nx-api-key: secret";
    write!(stream, "{head}\r\n\r\n").unwrap();
    stream
}

/// Reads until figures arrive.
fn wait_for_figures(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&text).contains("event: figures") {
        let length = stream.read(&mut buffer).unwrap();
        assert_ne!(length, 0, "the watcher was rejected: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&buffer[..length]);
    }
}
