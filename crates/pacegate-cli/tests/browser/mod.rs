//! A real browser that uses the dashboard as a person does: by the text on the screen.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::prelude::*;
use thirtyfour::{ChromiumLikeCapabilities, LoggingPrefsLogLevel};
use tokio::time::{Instant, sleep};

use crate::process::{Service, file};

/// Maximum time that a test waits for a change of the page.
pub const SOON: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The admin key of the services here.
pub const KEY: (&str, &str) = ("PACEGATE_ADMIN_KEY", "secret");
pub const CONFIG: &str = r#"
default_limit: none
decision_log: {rows_per_second: 1000}
rules:
  - {name: per-user-minute, dimension: user, endpoint: "/api/v1/{*rest}", algorithm: fixed_window, limit: 5, window: 1d}
"#;

/// Switches off what a test does not need.
const ARGUMENTS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
];

/// A browser with one tab, and the process that drives it.
pub struct Browser {
    pub driver: WebDriver,
    _chromedriver: Process,
    _profile: TempDir,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Browser {
    /// Opens the page at `url`.
    pub async fn open(url: &str) -> Self {
        // The driver's client requires a provider, also without TLS.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut process =
            Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let chromedriver = Process(process);
        let started = output.lines().map_while(Result::ok).find(|line| line.contains("successfully on port"));
        let port: u16 = started.unwrap().trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap();

        let profile = tempfile::tempdir().unwrap();
        let mut capabilities = DesiredCapabilities::chrome();
        for argument in ARGUMENTS {
            capabilities.add_arg(argument).unwrap();
        }
        capabilities.add_arg(&format!("--user-data-dir={}", profile.path().display())).unwrap();
        capabilities.set_browser_log_level(LoggingPrefsLogLevel::All).unwrap();
        let driver = WebDriver::new(format!("http://127.0.0.1:{port}"), capabilities).await.unwrap();
        driver.goto(url).await.unwrap();
        Self { driver, _chromedriver: chromedriver, _profile: profile }
    }

    /// Closes the browser and asserts that its console has no errors.
    pub async fn close(self) {
        let log = self.driver.browser_log().await.unwrap();
        // Error responses are part of the tests; the browser logs them with the source `network`.
        let wrong: Vec<_> = log.iter().filter(|entry| entry.source.as_deref() != Some("network")).collect();
        assert!(wrong.is_empty(), "the console has errors: {wrong:#?}");
        self.driver.quit().await.unwrap();
    }

    /// Runs a function in the page.
    pub async fn run(&self, script: &str) -> Value {
        self.driver.execute(script, Vec::new()).await.unwrap().json().clone()
    }

    /// Waits until a script returns something true.
    pub async fn until(&self, what: &str, script: &str) {
        let started = Instant::now();
        while self.run(script).await != json!(true) {
            if started.elapsed() > SOON {
                let page = self.run("return document.body.innerText").await;
                panic!("timed out waiting for {what}\n{}", page.as_str().unwrap_or_default());
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until `text` can be read on the page.
    pub async fn see(&self, text: &str) {
        self.see_in("body", text).await;
    }

    /// Waits until `text` can be read within what the selector finds.
    pub async fn see_in(&self, selector: &str, text: &str) {
        let script = format!(
            "return [...document.querySelectorAll({})].some((found) => found.checkVisibility() && found.innerText.includes({}))",
            json!(selector),
            json!(text)
        );
        self.until(&format!("`{text}` in {selector}"), &script).await;
    }

    /// Waits until nothing that the selector finds is shown.
    pub async fn gone(&self, selector: &str) {
        let script = format!(
            "return ![...document.querySelectorAll({})].some((found) => found.checkVisibility())",
            json!(selector)
        );
        self.until(&format!("{selector} is gone"), &script).await;
    }

    /// The element that is shown, if there is one.
    async fn shown(&self, path: &str) -> WebDriverResult<Option<WebElement>> {
        for found in self.driver.find_all(By::XPath(path)).await? {
            if found.is_displayed().await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Runs `act` on an element as soon as it is shown. Elements that are replaced are found again.
    async fn with<T>(&self, path: &str, act: impl AsyncFn(&WebElement) -> WebDriverResult<T>) -> T {
        let started = Instant::now();
        loop {
            let result = match self.shown(path).await {
                Ok(Some(found)) => act(&found).await.map_err(|error| error.to_string()),
                Ok(None) => Err("not found".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            match result {
                Ok(done) => return done,
                Err(error) if started.elapsed() > SOON => {
                    let page = self.run("return document.body.innerText").await;
                    panic!("{path}: {error}\n{}", page.as_str().unwrap_or_default());
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Clicks the button or link of that name, in the dialog if one is open.
    pub async fn click(&self, name: &str) {
        let name = quoted(name);
        let named = format!(
            "[(self::button or self::a or self::summary) and (normalize-space(.)={name} or @aria-label={name})]"
        );
        let path = format!("//dialog//*{named} | //body[not(dialog)]//*{named}");
        self.with(&path, async |found| {
            // The bar at the bottom may cover it.
            found.scroll_into_view().await?;
            found.click().await
        })
        .await;
    }

    /// Whether the button of that name is disabled.
    pub async fn is_disabled(&self, name: &str) -> bool {
        let path = format!("//button[normalize-space(.)={0} or @aria-label={0}]", quoted(name));
        !self.with(&path, async |found| found.is_enabled().await).await
    }

    /// Replaces the text of the field with that label.
    pub async fn fill(&self, label: &str, text: &str) {
        let path = format!("//*[@id=//label[normalize-space(.)={0}]/@for]", quoted(label));
        self.with(&path, async |field| {
            field.clear().await?;
            field.send_keys(text).await
        })
        .await;
    }

    /// Chooses an option of the field with that label.
    pub async fn choose(&self, label: &str, option: &str) {
        let path = format!(
            "//*[@id=//label[normalize-space(.)={}]/@for]/option[normalize-space(.)={}]",
            quoted(label),
            quoted(option)
        );
        self.with(&path, async |option| option.click().await).await;
    }

    /// Sends keys to the focused element.
    pub async fn press(&self, keys: impl Into<TypingData>) {
        self.driver.action_chain().send_keys(keys).perform().await.unwrap();
    }

    /// Moves the focus to the previous element.
    pub async fn tab_back(&self) {
        let keys = self.driver.action_chain().key_down(Key::Shift).send_keys(Key::Tab).key_up(Key::Shift);
        keys.perform().await.unwrap();
    }

    /// Signs in with `key`.
    pub async fn sign_in(&self, key: &str) {
        self.fill("API key", key).await;
        self.click("Sign in").await;
    }

    /// The height of the whole page in pixels.
    pub async fn page_height(&self) -> u64 {
        self.run("return document.documentElement.scrollHeight").await.as_u64().unwrap()
    }

    /// Sets the size of the screen.
    pub async fn resize(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.driver.cdp().send_raw("Emulation.setDeviceMetricsOverride", size).await.unwrap();
    }

    /// Sets the colour scheme that the system prefers.
    pub async fn prefers(&self, scheme: &str) {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.driver.cdp().send_raw("Emulation.setEmulatedMedia", media).await.unwrap();
    }
}

/// A text as XPath writes it.
fn quoted(text: &str) -> String {
    assert!(!text.contains('"'), "{text}");
    format!("\"{text}\"")
}

/// Polls until `condition` holds.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "timed out waiting for {what}");
        sleep(LOOK_EVERY).await;
    }
}

/// A service with one rule in its configuration, and a browser on its sign-in page.
pub async fn start() -> (Service, Browser) {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(&["--config", &file(directory.path(), CONFIG)], &[KEY]);
    let browser = Browser::open(&service.url).await;
    (service, browser)
}

pub fn ask(service: &Service, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, answer) = service.ask(method, path, &body).unwrap();
    assert!(status < 300, "{method} {path}: {status} {answer}");
    answer
}

/// Sends `count` checks, allowed or denied.
pub fn check(service: &Service, user: &str, count: usize) {
    let body = json!({"user_id": user, "endpoint": "/api/v1/orders"}).to_string();
    for _ in 0..count {
        service.ask("POST", "/v1/rate-limit/check", &body).unwrap();
    }
}

pub fn shadow_rule(name: &str) -> Value {
    json!({"name": name, "dimension": "user", "algorithm": "fixed_window", "limit": 2, "window_seconds": 86400, "mode": "shadow"})
}
