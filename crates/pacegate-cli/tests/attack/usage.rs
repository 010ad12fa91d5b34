//! Made-up identifiers must not fill the memory, the catalog or the log.

use std::path::Path;

use pacegate_testkit::effort;
use serde_json::{Value, json};

use crate::callers::{Caller, resident_bytes};
use crate::process::{Service, file};

const CALLERS: usize = 4;
/// As many as a body holds.
const BATCH: usize = 200;
const MEBIBYTE: u64 = 1 << 20;

fn start(directory: &Path) -> Service {
    // No counters: what is measured is what usage and the logs take.
    let config = file(directory, "default_limit: none\n");
    let catalog = format!("sqlite://{}", directory.join("catalog.db").display());
    let environment = [("PACEGATE_CATALOG__URL", &*catalog), ("PACEGATE_ADMIN_KEY", "secret")];
    Service::start(&["--config", &config], &environment)
}

fn catalog_bytes(directory: &Path) -> u64 {
    let length = |name| std::fs::metadata(directory.join(name)).map_or(0, |file| file.len());
    length("catalog.db") + length("catalog.db-wal")
}

/// Sends `checks` checks, made by `check` from their number, from several callers at once; one in a hundred is of the user `heavy`.
fn flood(service: &Service, checks: usize, check: impl Fn(usize) -> Value + Sync) {
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let check = &check;
            scope.spawn(move || {
                let mut connection = Caller::connect(service);
                for start in (caller * BATCH..checks).step_by(CALLERS * BATCH) {
                    let heavy = json!({"user_id": "heavy", "endpoint": "/"});
                    let of = |number: usize| if number % 100 == 0 { heavy.clone() } else { check(number) };
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
    // What has gathered is written at the end.
    service.terminate();
    service.process.wait().unwrap();
    let disk = catalog_bytes(directory.path()).saturating_sub(disk);

    let is_bounded = memory < 50 * MEBIBYTE && disk < 10 * MEBIBYTE;
    assert!(is_bounded, "{memory} bytes of memory, {disk} in the catalog");

    let service = start(directory.path());
    let (_, usage) = service.ask("GET", "/api/v1/usage?limit=1000", "").unwrap();
    let rows = usage["usage"].as_array().unwrap();
    let total: u64 = rows.iter().map(|row| row["allowed"].as_u64().unwrap()).sum();
    assert!(
        rows.iter().any(|row| row["identifier"] == "heavy"),
        "the heaviest has a row: {} rows",
        rows.len()
    );
    assert!(rows.len() < 1_000 && total >= checks as u64, "nothing is lost: {total} in {} rows", rows.len());
    println!(
        "PASS attack_usage kind={name} checks={checks} memory_bytes={memory} catalog_bytes={disk} usage_rows={}",
        rows.len()
    );
}

#[test]
fn made_up_identifiers_fill_neither_memory_nor_catalog() {
    withstands("identifiers", |number| json!({"user_id": format!("{number:0>1000}"), "endpoint": "/"}));
}

#[test]
fn made_up_dimensions_fill_neither_memory_nor_catalog() {
    let check = |number| {
        let dimension = format!("made-up-{number:0>56}");
        json!({"dimension": dimension, "identifier": format!("{number:0>900}"), "endpoint": "/"})
    };
    withstands("dimensions", check);
}
