//! The dashboard under adverse conditions: invalid keys, restarts, hostile names, keyboard only, a
//! small screen.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod browser;
mod process;

use std::io::{Read, Write};
use std::net::TcpStream;

use browser::{Browser, CONFIG, KEY, ask, check, shadow_rule, start};
use pacegate_catalog::shorten_identifier;
use pacegate_testkit::server::free_port;
use process::{Service, file};
use serde_json::{Value, json};
use thirtyfour::Key;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_and_guessed_keys_are_rejected() {
    let (service, browser) = start().await;
    let short = ask(&service, "POST", "/api/v1/keys", &json!({"role": "reader", "expires_in_seconds": 2}));
    browser.sign_in(short["secret"].as_str().unwrap()).await;
    // The key expires before the sign-in or while the page is open.
    browser.see_in("#sign-in-message", "The API key has expired.").await;
    let admin = ask(&service, "POST", "/api/v1/keys", &json!({"role": "admin"}));
    for guess in 0..20 {
        service.post("/api/v1/rules", &format!("guess-{guess}"), "{}");
    }
    browser.sign_in("another-guess").await;
    browser.see_in("#sign-in-message", "Too many invalid API keys from this address. Retry in").await;
    browser.sign_in(admin["secret"].as_str().unwrap()).await;
    browser.see_in("h1", "Live").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_key_cannot_change_anything_and_its_revocation_ends_the_session() {
    let (service, browser) = start().await;
    ask(&service, "POST", "/api/v1/rules", &shadow_rule("watching"));
    check(&service, "erin", 1);
    let reader = ask(&service, "POST", "/api/v1/keys", &json!({"role": "reader"}));
    browser.sign_in(reader["secret"].as_str().unwrap()).await;
    browser.see_in("#who", "reader").await;
    browser.click("Rules").await;
    for button in ["New rule", "Enforce watching", "Edit watching", "Delete watching"] {
        assert!(browser.is_disabled(button).await, "{button}");
    }
    browser.click("Lookup").await;
    browser.fill("Identifier", "erin").await;
    browser.click("Look up").await;
    for button in
        ["Set tier…", "watching: 2× for 1 hour", "watching: custom override", "watching: reset counters"]
    {
        assert!(browser.is_disabled(button).await, "{button}");
    }
    browser.click("Try").await;
    assert!(browser.is_disabled("Check and charge").await);
    browser.fill("User id", "erin").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "Would be allowed").await;

    ask(&service, "DELETE", &format!("/api/v1/keys/{}", reader["key_id"].as_str().unwrap()), &Value::Null);
    browser.see_in("#sign-in-message", "The API key was revoked.").await;
    browser.gone("#app").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_tab_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), CONFIG);
    let address = format!("127.0.0.1:{}", free_port());
    let arguments = ["--config", config.as_str(), "--http", address.as_str()];
    let mut service = Service::start_at(&arguments, &[KEY]);
    let browser = Browser::open(&service.url).await;
    browser.sign_in("secret").await;
    browser.see_in("#connection", "Live").await;
    service.kill();
    browser.see_in("#connection", "Connection lost, retrying").await;
    // Other pages show that the service is down.
    browser.click("Rules").await;
    browser.see_in("#rule-table", "The service is not reachable.").await;
    browser.click("Live").await;
    let service = Service::start_at(&arguments, &[KEY]);
    browser.see_in("#connection", "Live").await;
    check(&service, "frank", 1);
    browser.see_in("#heaviest", "frank").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_starts_when_another_one_of_the_key_ends() {
    let (service, browser) = start().await;
    let address = service.url.trim_start_matches("http://");
    let watch = || {
        let mut stream = TcpStream::connect(address).unwrap();
        let head =
            "GET /api/v1/live HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nx-api-key: secret\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        stream
    };
    // The maximum number of streams per key.
    let others: Vec<TcpStream> = (0..8).map(|_| watch()).collect();
    browser.sign_in("secret").await;
    browser
        .see_in("#connection", "This key has 8 open streams; close one first. Retry in 1 second. Retrying.")
        .await;
    drop(others);
    browser.see_in("#connection", "Live").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_identifiers_are_shown_as_text() {
    let (service, browser) = start().await;
    let hostile = "<img src=x onerror=window.hacked=1>'/../%2f{{7*7}}";
    check(&service, hostile, 7);
    ask(&service, "POST", "/api/v1/rules", &shadow_rule("<script>hacked=1</script>"));
    let path = format!("/api/v1/users/{}/tier", "%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E");
    ask(&service, "PUT", &path, &json!({"tier": "<b onclick=hacked=1>gold</b>"}));
    browser.sign_in("secret").await;
    browser.see_in("#most-blocked", hostile).await;
    browser.click(hostile).await;
    browser.see_in("h2", hostile).await;
    browser.see_in("td.use", "5 of 5").await;
    browser.click("<script>hacked=1</script>: 2× for 1 hour").await;
    browser.see_in("dialog", hostile).await;
    browser.click("Override").await;
    browser.see_in("#notices", hostile).await;
    browser.click("Rules").await;
    browser.see_in("#rule-table", "<script>hacked=1</script>").await;
    browser.click("Try").await;
    browser.fill("User id", "<img src=x onerror=window.hacked=1>").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "<b onclick=hacked=1>gold</b>").await;
    browser.click("Audit").await;
    browser.see_in("#audit-list", "<img src=x onerror=window.hacked=1>").await;
    assert_eq!(browser.run("return [window.hacked ?? null, document.querySelectorAll('#content img, #content script').length]").await, json!([null, 0]));
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyboard_reaches_everything() {
    let (service, browser) = start().await;
    ask(&service, "POST", "/api/v1/rules", &shadow_rule("watching"));
    // The field has the focus at the start.
    browser.press("secret").await;
    browser.press(Key::Enter).await;
    browser.see_in("h1", "Live").await;
    let tab = || browser.press(Key::Tab);
    let focused = async || {
        let script = "const at = document.activeElement; return at.getAttribute('aria-label') ?? at.textContent.trim()";
        browser.run(script).await
    };
    assert_eq!(focused().await, "Live", "the heading has the focus");
    // Back through the navigation, up to the link that skips it.
    for name in [
        "Sign out",
        "Theme: auto",
        "Keys",
        "Audit",
        "Log",
        "Try",
        "Lookup",
        "Rules",
        "Live",
        "Skip to content",
    ] {
        browser.tab_back().await;
        assert_eq!(focused().await, name);
    }
    browser.press(Key::Enter).await;
    assert_eq!(browser.run("return document.activeElement.id").await, "content");
    for name in ["Sign out", "Theme: auto", "Keys", "Audit", "Log", "Try", "Lookup", "Rules"] {
        browser.tab_back().await;
        assert_eq!(focused().await, name);
    }
    browser.press(Key::Enter).await;
    browser.see_in("h1", "Rules").await;
    assert_eq!(focused().await, "Rules");
    browser.see_in("#rule-table", "watching").await;
    for name in ["New rule", "", "Enforce watching"] {
        tab().await;
        assert_eq!(focused().await, name);
    }
    browser.press(Key::Enter).await;
    browser.see_in("dialog", "Enforce watching?").await;
    for _ in 0..6 {
        tab().await;
        let inside = "return document.activeElement === document.body || document.activeElement.closest('dialog') !== null";
        assert_eq!(browser.run(inside).await, json!(true), "the dialog keeps the focus");
    }
    browser.press(Key::Escape).await;
    browser.gone("dialog").await;
    assert_eq!(focused().await, "Enforce watching", "the focus returns");
    browser.close().await;
}

/// Maximum height of a page on a phone, in pixels: about two and a half screens.
const PHONE_HEIGHT_MAX: u64 = 2_100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_fit_a_phone_and_follow_the_theme() {
    let (service, browser) = start().await;
    let long = "a-very-long-identifier-".repeat(12);
    ask(&service, "POST", "/api/v1/rules", &shadow_rule(&"long-rule-name-".repeat(8)));
    // More of everything than fits on a page.
    for number in 0..20 {
        ask(&service, "POST", "/api/v1/rules", &shadow_rule(&format!("rule-{number:02}")));
        ask(&service, "POST", "/api/v1/keys", &json!({"role": "reader", "name": format!("key-{number:02}")}));
        check(&service, &format!("user-{number:02}"), 1);
    }
    check(&service, &long, 21);
    browser.resize(390, 844).await;
    let narrow = "return document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.run(narrow).await, json!(true), "sign-in");
    browser.sign_in("secret").await;
    browser.see_in("#heaviest", &shorten_identifier(&long)).await;
    for (page, shown) in [
        ("Live", "By rule"),
        ("Rules", "long-rule-name"),
        ("Try", "Explain"),
        ("Log", "denied"),
        ("Audit", "Rule created"),
        ("Keys", "Show all 20"),
        ("Lookup", "Identifier"),
    ] {
        browser.click(page).await;
        browser.see_in("#content", shown).await;
        assert_eq!(browser.run(narrow).await, json!(true), "{page} has no horizontal scrolling");
        let height = browser.page_height().await;
        assert!(height <= PHONE_HEIGHT_MAX, "{page} is {height} px high");
    }
    browser.fill("Identifier", &long).await;
    browser.click("Look up").await;
    browser.see_in("td.use", "5 of 5").await;
    assert_eq!(browser.run(narrow).await, json!(true), "a user");
    let height = browser.page_height().await;
    assert!(height <= PHONE_HEIGHT_MAX, "the limits of a user are {height} px high");
    // Sections open one at a time.
    browser.click("Live").await;
    browser.see_in("#heaviest", &shorten_identifier(&long)).await;
    browser.gone("#by-rule").await;
    browser.run("[...document.querySelectorAll('summary')].find((one) => one.innerText.includes('By rule')).click()").await;
    browser.see_in("#by-rule", "rule-00").await;
    browser.gone("#heaviest").await;

    let ground = "return getComputedStyle(document.body).backgroundColor";
    browser.prefers("light").await;
    let light = browser.run(ground).await;
    browser.prefers("dark").await;
    let dark = browser.run(ground).await;
    assert_ne!(light, dark, "follows the system");
    browser.click("Theme: auto").await;
    assert_eq!(browser.run(ground).await, light, "chosen in the page");
    browser.click("Theme: light").await;
    browser.prefers("light").await;
    assert_eq!(browser.run(ground).await, dark);
    browser.close().await;
}
