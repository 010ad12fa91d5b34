//! Ad-hoc limits of one caller must not exhaust the keys that other callers need.

use std::fmt::Write as _;

use pacegate_testkit::effort;
use serde_json::Value;

use crate::callers::alone;
use crate::process::{Service, file};

/// Number of identities of each check in a batch.
const IDENTITIES: usize = 14;
/// The longest window of an ad-hoc limit, and one that earlier versions accepted.
const WINDOWS: [usize; 2] = [86_400, 366 * 86_400];

fn rules(max_keys: usize, max_idempotency_keys: usize) -> String {
    format!(
        "stores: {{default: {{url: \"memory:\", max_keys: {max_keys}, max_idempotency_keys: {max_idempotency_keys}}}}}\n\
         failure: {{mode: closed}}\n\
         rules:\n\
         \x20 - {{name: logins, dimension: user, endpoint: /login, algorithm: fixed_window, limit: 5, window: 1h}}\n\
         \x20 - {{name: orders, dimension: user, endpoint: /orders, algorithm: token_bucket, limit: 5, window: 1h}}\n"
    )
}

fn post(service: &Service, path: &str, body: &str) -> (u16, Value) {
    let response = service.post(path, "", body);
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

/// Sends a batch of checks with ad-hoc limits, each for new identities.
fn flood(service: &Service, number: usize, size: usize, window: impl Fn(usize) -> usize) {
    let mut checks = String::new();
    for item in 0..size {
        // Short names, because a body has at most 256 KiB.
        let mut keys = String::new();
        for dimension in ('a'..='z').take(IDENTITIES) {
            let comma = if dimension == 'a' { "" } else { "," };
            write!(keys, r#"{comma}"{dimension}":"{number}x{item}""#).unwrap();
        }
        let (comma, window) = (if item == 0 { "" } else { "," }, window(item));
        write!(checks, r#"{comma}{{"keys":{{{keys}}},"endpoint":"/e","limit":1,"window_seconds":{window}}}"#)
            .unwrap();
    }
    let (status, _) = post(service, "/v1/rate-limit/batch-check", &format!(r#"{{"checks":[{checks}]}}"#));
    assert_eq!(status, 200, "the batch is valid");
}

/// Number of 30 other users whose first request is allowed, and whose sixth is denied.
fn other_users(service: &Service, name: &str, endpoint: &str) -> (usize, usize) {
    let (mut passed, mut limited) = (0, 0);
    for user in 0..30 {
        let body = format!(r#"{{"user_id":"{name}-{user}","endpoint":"{endpoint}"}}"#);
        passed += usize::from(post(service, "/v1/rate-limit/check", &body).0 == 200);
        for _ in 0..4 {
            post(service, "/v1/rate-limit/check", &body);
        }
        limited += usize::from(post(service, "/v1/rate-limit/check", &body).0 == 429);
    }
    (passed, limited)
}

#[test]
fn ad_hoc_limits_and_idempotency_keys_of_one_caller() {
    let _alone = alone();
    // At full size, the batches fill a store of the default size.
    let (size, max_keys, max_idempotency_keys) = effort((100, 2_000, 1_024), (1_000, 1_000_000, 262_144));
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), &rules(max_keys, max_idempotency_keys));
    let service = Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")]);
    let batches = (max_keys / (size * IDENTITIES) + 1).max(2);
    for number in 0..batches {
        for window in WINDOWS {
            flood(&service, number, size, |_| window);
        }
    }
    let logins = other_users(&service, "first", "/login");
    // Each check has another window, and so an overflow counter for each of its dimensions.
    for number in 0..5 {
        flood(&service, 100 + number, size, |item| 10_000 + number * size + item);
    }
    let orders = other_users(&service, "second", "/orders");
    // Idempotency keys, in batches.
    for number in 0..(max_idempotency_keys / size + 2) {
        let mut checks = String::new();
        for item in 0..size {
            let comma = if item == 0 { "" } else { "," };
            let key = number * size + item;
            write!(checks, r#"{comma}{{"user_id":"m{key}","endpoint":"/i","idempotency_key":"key-{key}"}}"#)
                .unwrap();
        }
        post(&service, "/v1/rate-limit/batch-check", &format!(r#"{{"checks":[{checks}]}}"#));
    }
    let mut repeatable = 0;
    for user in 0..30 {
        let body =
            format!(r#"{{"user_id":"third-{user}","endpoint":"/login","idempotency_key":"other-{user}"}}"#);
        repeatable += usize::from(post(&service, "/v1/rate-limit/check", &body).0 == 200);
    }
    let logins_later = other_users(&service, "fourth", "/login");
    let found = [logins, orders, logins_later];
    assert_eq!(found, [(30, 30); 3], "of 30 users: first request passed, sixth denied");
    assert_eq!(repeatable, 30, "first logins with an idempotency key");
    println!(
        "PASS attack_ad_hoc_limits batches={} first_requests_passed=30/30 limited_at_the_sixth=30/30 \
         orders_passed={}/30 with_idempotency_key={repeatable}/30",
        2 * batches,
        orders.0
    );
}
