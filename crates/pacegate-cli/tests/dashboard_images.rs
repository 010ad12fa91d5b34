//! The screenshots of `docs/dashboard.md`, taken under traffic. With
//! `PACEGATE_SCREENSHOTS=$PWD/docs/images` the test first sends traffic for `SECONDS` and then
//! saves the pictures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod browser;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use browser::Browser;
use process::{Service, ask, file};
use serde_json::{Value, json};
use tokio::time::interval;

/// Duration of the traffic before the pictures are taken: as long as the chart.
const SECONDS: u32 = 900;

const CONFIG: &str = r#"
rules:
  - {name: per-user-minute, dimension: user, endpoint: "/api/v1/{*rest}", algorithm: sliding_counter, limit: 2100, window: 60s}
  - {name: per-user-minute, dimension: user, tier: premium, endpoint: "/api/v1/{*rest}", algorithm: sliding_counter, limit: 6000, window: 60s}
"#;

const USERS: [&str; 7] =
    ["importer-nightly", "acme-corp", "u-10482", "mobile-ios-7f3a", "u-20931", "globex", "u-77120"];

fn send(url: &str, method: &str, path: &str, body: &Value) {
    let (status, answer) = ask(url, method, path, &body.to_string()).unwrap();
    assert!(status < 300, "{method} {path}: {status} {answer}");
}

fn prepare(url: &str) {
    for rule in [
        json!({"name": "orders-create", "dimension": "user", "endpoint_pattern": "/api/v1/orders", "method": "POST", "algorithm": "token_bucket", "limit": 12, "window_seconds": 1, "burst_capacity": 20}),
        json!({"name": "search", "dimension": "user", "endpoint_pattern": "/api/v1/search", "algorithm": "gcra", "limit": 900, "window_seconds": 60, "burst_capacity": 50, "mode": "shadow"}),
        json!({"name": "login", "dimension": "ip", "endpoint_pattern": "/login", "method": "POST", "algorithm": "fixed_window", "limit": 10, "window_seconds": 300}),
        json!({"name": "exports", "dimension": "user", "tier": "free", "endpoint_pattern": "/api/v1/exports/{id}", "algorithm": "sliding_log", "limit": 20, "window_seconds": 3600, "mode": "shadow"}),
    ] {
        send(url, "POST", "/api/v1/rules", &rule);
    }
    send(url, "PUT", "/api/v1/users/acme-corp/tier", &json!({"tier": "premium"}));
    let launch = json!({"rule": "orders-create", "limit": 400, "burst_capacity": 800, "expires_in_seconds": 5400, "reason": "product launch"});
    send(url, "POST", "/api/v1/users/acme-corp/override", &launch);
}

/// Traffic that rises and falls, until the task is aborted.
async fn traffic(url: String) {
    let mut ticks = interval(Duration::from_millis(100));
    for turn in 0_u32.. {
        ticks.tick().await;
        let wave = 1.0 + (f64::from(turn) / 160.0).sin() * 0.35 + fastrand::f64() * 0.25;
        let checks: Vec<Value> = (0..(9.0 * wave) as usize)
            .map(|number| {
                // A few users send most of the requests.
                let user = USERS[(fastrand::f64().powi(3) * USERS.len() as f64) as usize];
                let (method, endpoint) =
                    [("GET", "/api/v1/search"), ("POST", "/api/v1/orders"), ("GET", "/api/v1/orders/17")]
                        [number % 3];
                json!({"user_id": user, "endpoint": endpoint, "method": method})
            })
            .collect();
        // Bursts of logins from one address.
        let storm = if turn < 10 || turn % 200 > 140 { 3 } else { 0 };
        let storming = (0..storm)
            .map(|_| json!({"keys": {"ip": "203.0.113.9"}, "endpoint": "/login", "method": "POST"}));
        let body = json!({"checks": checks.into_iter().chain(storming).collect::<Vec<_>>()});
        ask(&url, "POST", "/v1/rate-limit/batch-check", &body.to_string()).unwrap();
    }
}

/// Takes a screenshot, and saves it if `directory` is given.
async fn picture(browser: &Browser, directory: Option<&Path>, name: &str) {
    browser.run("document.activeElement.blur()").await;
    let picture = browser.driver.screenshot_as_png().await.unwrap();
    assert!(picture.len() > 10_000, "{name} is empty");
    if let Some(directory) = directory {
        std::fs::write(directory.join(name), picture).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn screenshots_of_the_guide() {
    let directory = std::env::var_os("PACEGATE_SCREENSHOTS").map(PathBuf::from);
    let directory = directory.as_deref();
    let configuration = tempfile::tempdir().unwrap();
    let service = Service::start(
        &["--config", &file(configuration.path(), CONFIG)],
        &[("PACEGATE_ADMIN_KEY", "secret")],
    );
    prepare(&service.url);
    let traffic = tokio::spawn(traffic(service.url.clone()));
    let browser = Browser::open(&service.url).await;
    browser.prefers("light").await;
    browser.resize(1280, 900).await;
    browser.sign_in("secret").await;
    browser.see_in("#connection", "Live").await;
    let mut seconds = interval(Duration::from_secs(1));
    for _ in 0..directory.map_or(0, |_| SECONDS) {
        seconds.tick().await;
    }
    browser.see_in("#heaviest", "importer-nightly").await;
    picture(&browser, directory, "dashboard-live.png").await;
    browser.resize(390, 844).await;
    browser.see_in("#heaviest", "importer-nightly").await;
    picture(&browser, directory, "dashboard-phone.png").await;
    browser.resize(1280, 760).await;
    browser.click("Rules").await;
    browser.see_in("#rule-table", "exports").await;
    picture(&browser, directory, "dashboard-rules.png").await;
    browser.click("Enforce search").await;
    browser.see_in("dialog", "would have been denied").await;
    picture(&browser, directory, "dashboard-enforce.png").await;
    browser.click("Cancel").await;
    browser.click("Lookup").await;
    browser.fill("Identifier", "acme-corp").await;
    browser.click("Look up").await;
    browser.see_in("#lookup", "product launch").await;
    picture(&browser, directory, "dashboard-user.png").await;
    browser.click("Log").await;
    browser.choose("Decision", "denied").await;
    browser.click("Filter").await;
    browser.see_in("#log-table", "rate limit exceeded").await;
    picture(&browser, directory, "dashboard-log.png").await;
    browser.click("Audit").await;
    browser.see_in("#audit-list", "Rule created").await;
    picture(&browser, directory, "dashboard-audit.png").await;
    browser.prefers("dark").await;
    browser.click("Try").await;
    browser.fill("User id", "u-10482").await;
    browser.fill("Endpoint", "/login").await;
    browser.choose("Method", "POST").await;
    browser.fill("Other dimensions", "ip = 203.0.113.9").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "Would be denied").await;
    picture(&browser, directory, "dashboard-try.png").await;
    traffic.abort();
    browser.close().await;
}
