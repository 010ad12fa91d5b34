//! The tasks of the dashboard in a real browser.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod browser;
mod process;

use browser::{ask, check, eventually, shadow_rule, start};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_page_follows_the_service_after_sign_in() {
    let (service, browser) = start().await;
    browser.sign_in("wrong").await;
    browser.see("The API key is not valid.").await;
    browser.sign_in("not a héader").await;
    browser.see("The API key is not valid.").await;
    let checker = ask(&service, "POST", "/api/v1/keys", &json!({"role": "checker"}));
    browser.sign_in(checker["secret"].as_str().unwrap()).await;
    browser.see("requires an API key with role reader or admin").await;
    browser.sign_in("secret").await;
    browser.see_in("h1", "Live").await;
    browser.see_in("#connection", "Live").await;
    browser.see_in("#heaviest", "No checks in this period.").await;
    assert_eq!(
        browser.run("return [localStorage.length, sessionStorage.length, document.cookie]").await,
        json!([0, 0, ""])
    );

    // The page updates by itself.
    check(&service, "alice", 8);
    browser.see_in("#heaviest", "alice").await;
    browser.see_in("#most-blocked", "alice").await;
    browser.see_in("#by-rule", "per-user-minute").await;
    browser.see_in("#stores", "closed").await;
    browser
        .until(
            "the chart has a line",
            "return document.querySelector('#chart path.blocked').getAttribute('d').includes('L')",
        )
        .await;
    browser.click("Show as a table").await;
    browser.see_in("#samples-table caption + thead", "Allowed").await;

    browser.click("Sign out").await;
    browser.see_in("h1", "Sign in").await;
    assert_eq!(browser.run("return document.getElementById('content').innerText").await, json!(""));
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_is_created_enforced_edited_and_deleted() {
    let (service, browser) = start().await;
    browser.sign_in("secret").await;
    browser.click("Rules").await;
    browser.see_in("#rule-table", "set in the configuration file").await;

    // An error is shown at its field, and the form stays open.
    browser.click("New rule").await;
    browser.fill("Name", "orders").await;
    browser.fill("Endpoint", "/api/v1/orders").await;
    browser.fill("Requests", "0").await;
    browser.click("Create rule").await;
    browser.see_in("dialog .field-error", "must be between 1 and 1000000000").await;
    assert_eq!(browser.run("return document.activeElement.name").await, json!("limit"));
    browser.fill("Requests", "2").await;
    browser.choose("Algorithm", "Fixed window").await;
    browser.choose("Unit", "days").await;
    browser.fill("per", "1").await;
    browser.click("Create rule").await;
    browser.see("Rule orders is created in shadow mode.").await;
    browser.see_in("#rule-table", "2 per day").await;

    // The dialog states what the rule would have denied: 3 of bob's 5 requests and none of carol's.
    check(&service, "bob", 5);
    check(&service, "carol", 2);
    browser.click("Enforce orders").await;
    browser.see_in("dialog", "3 of 7 requests, about 1 of 2 keys would have been denied").await;
    browser.click("Enforce").await;
    browser.see("Rule orders is enforced.").await;
    let (status, _) = service
        .ask("POST", "/v1/rate-limit/check", r#"{"user_id":"bob","endpoint":"/api/v1/orders"}"#)
        .unwrap();
    assert_eq!(status, 429);

    browser.click("Edit orders").await;
    browser.fill("Requests", "3").await;
    browser.click("Save").await;
    browser.see_in("#rule-table", "3 per day").await;

    // Another client changes the rule first.
    let listed = ask(&service, "GET", "/api/v1/rules", &Value::Null);
    let rule =
        listed["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == "orders").unwrap().clone();
    browser.click("Edit orders").await;
    let mut theirs = rule.clone();
    theirs["limit"] = json!(7);
    theirs["burst_capacity"] = Value::Null;
    ask(&service, "PUT", &format!("/api/v1/rules/{}", rule["rule_id"].as_str().unwrap()), &theirs);
    browser.fill("Requests", "4").await;
    browser.click("Save").await;
    browser.see_in("dialog", "This rule was changed in the meantime.").await;
    browser.click("Cancel").await;
    browser.see_in("#rule-table", "7 per day").await;

    browser.fill("Filter", "nothing like it").await;
    browser.see("0 of 2 rules match").await;
    browser.fill("Filter", "ORDERS shadow").await;
    browser.see("No rule matches.").await;
    browser.fill("Filter", "orders").await;
    browser.click("To shadow orders").await;
    browser.click("To shadow").await;
    browser.see("Rule orders is in shadow mode.").await;
    browser.click("Delete orders").await;
    browser.click("Delete").await;
    browser.see("Rule orders is deleted.").await;
    browser.see("0 of 1 rules match").await;

    // The audit trail has every change.
    browser.click("Audit").await;
    for action in ["Rule created", "Rule changed", "Rule deleted"] {
        browser.see_in("#audit-list", action).await;
    }
    browser.see_in("#audit-list .changes", "shadow → enforce").await;
    browser.fill("API key id", "another-key").await;
    browser.click("Filter").await;
    browser.see("No change matches.").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_finds_one_of_many_rules() {
    let (service, browser) = start().await;
    for number in 0..120 {
        ask(&service, "POST", "/api/v1/rules", &shadow_rule(&format!("rule-{number:03}")));
    }
    browser.sign_in("secret").await;
    browser.click("Rules").await;
    browser.see_in("#rule-count", "100+ rules").await;
    browser.click("Show more").await;
    browser.see_in("#rule-table", "rule-119").await;
    browser.see_in("#rule-count", "121 rules").await;
    browser.click("Live").await;
    browser.click("Rules").await;
    browser.see_in("#rule-count", "100+ rules").await;
    browser.fill("Filter", "rule-118").await;
    browser.see_in("#rule-table", "rule-118").await;
    browser.see("1 of 121 rules match").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_is_looked_up_overridden_and_reset() {
    let (service, browser) = start().await;
    check(&service, "carol", 4);
    browser.sign_in("secret").await;
    // The keys on the live page are links.
    browser.click("carol").await;
    browser.see_in("h2", "carol").await;
    browser.see("rule for all").await;
    browser.see_in("td.use", "4 of 5").await;

    // An override takes two clicks.
    browser.click("per-user-minute: 2× for 1 hour").await;
    browser.see_in("dialog", "gets 10 per day instead of 5 per day").await;
    browser.click("Override").await;
    browser.see_in("td.use", "4 of 10").await;
    browser.see("temporary override").await;
    browser.click("End the override of per-user-minute").await;
    browser.click("End override").await;
    browser.see_in("td.use", "4 of 5").await;
    browser.see("None.").await;

    browser.click("per-user-minute: custom override").await;
    browser.fill("Requests per 1 day", "many").await;
    browser.click("Override").await;
    browser.see_in("dialog .field-error", "whole number").await;
    browser.fill("Requests per 1 day", "50").await;
    browser.fill("Duration in minutes", "5").await;
    browser.fill("Reason", "a launch").await;
    browser.click("Override").await;
    browser.see_in("td.use", "4 of 50").await;
    browser.see("a launch").await;

    browser.click("per-user-minute: reset counters").await;
    browser.click("Reset").await;
    browser.see_in("td.use", "0 of 50").await;

    // An override applies to both rules of one name, and the dialog says so.
    let other = json!({"name": "per-user-minute", "dimension": "user", "endpoint_pattern": "/other", "algorithm": "fixed_window", "limit": 9, "window_seconds": 1.5});
    ask(&service, "POST", "/api/v1/rules", &other);
    browser.click("Refresh").await;
    browser.see("/other").await;
    browser.click("per-user-minute: custom override").await;
    browser.see_in("dialog", "an override applies to every rule with this name, including /other").await;
    browser.click("Cancel").await;

    ask(&service, "POST", "/api/v1/rules", &shadow_rule("watching"));
    browser.click("Try").await;
    browser.click("Explain").await;
    browser.see_in("#try-form .field-error", "must").await;
    browser.fill("User id", "dave").await;
    browser.fill("Endpoint", "/api/v1/orders").await;
    browser.fill("Cost", "6").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "Would be denied").await;
    browser.see_in("#verdict", "cost exceeds the limit").await;
    browser.see_in("#explanation", "2 of 3 rules apply").await;
    browser.fill("Cost", "2").await;
    browser.fill("Other dimensions", "ip = 10.0.0.1").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "Would be allowed").await;
    browser.click("Check and charge").await;
    browser.see_in("#verdict", "Allowed and charged").await;
    let limits = ask(&service, "GET", "/api/v1/users/dave/limits", &Value::Null);
    assert_eq!(limits["limits"][0]["current_count"], 2, "explaining charged nothing: {limits}");
    browser.fill("Cost", "4").await;
    browser.click("Check and charge").await;
    browser.see_in("#verdict", "Denied, nothing charged").await;

    browser.click("Audit").await;
    browser.fill("User", "carol").await;
    browser.click("Filter").await;
    for action in ["Override created", "Counters reset"] {
        browser.see_in("#audit-list", action).await;
    }
    browser.gone("#audit-list li:nth-child(5)").await;
    browser.see_in("#audit-list", "50 per day").await;
    let texts = browser.run("return document.getElementById('audit-list').textContent").await;
    let text = texts.as_str().unwrap();
    assert!(!text.contains("micros") && !text.contains("_at"), "times are readable: {text}");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_keys_are_created_and_revoked() {
    let (service, browser) = start().await;
    browser.sign_in("secret").await;
    browser.click("Keys").await;
    browser.see_in("#key-table", "The catalog has no keys.").await;
    browser.choose("Role", "admin").await;
    browser.fill("Name", "gateway").await;
    browser.click("Create key").await;
    browser.see_in("dialog", "It is shown only once").await;
    let secret = browser.run("return document.getElementById('secret').value").await;
    let tried = || service.post("/api/v1/rules", secret.as_str().unwrap(), &shadow_rule("made").to_string());
    assert!(tried().starts_with("HTTP/1.1 201"), "it works");
    browser.click("Done").await;
    browser.see_in("#key-table", "gateway").await;
    browser.see_in("#key-table", "active").await;
    browser.click("Revoke gateway").await;
    browser.click("Revoke").await;
    browser.see_in("#key-table", "revoked").await;
    assert!(tried().contains("the API key was revoked"));
    let page = browser.run("return document.documentElement.textContent").await;
    assert!(!page.as_str().unwrap().contains(secret.as_str().unwrap()), "the secret is gone");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chart_has_the_history_right_after_sign_in() {
    let (service, browser) = start().await;
    check(&service, "alice", 7);
    // The node has recorded the checks before the page asks for them.
    let recorded = || {
        let history = ask(&service, "GET", "/api/v1/live/history", &Value::Null);
        let seconds = history["seconds"].as_array().unwrap().clone();
        seconds.iter().map(|second| second["checks"].as_u64().unwrap()).sum::<u64>()
    };
    eventually("the history", || recorded() == 7).await;
    browser.sign_in("secret").await;
    // The rate of blocked requests was above zero only before the page was opened.
    browser
        .until(
            "the chart shows requests from before the sign-in",
            "const label = document.querySelector('#chart svg')?.getAttribute('aria-label') ?? ''; \
             return /at most [1-9].* allowed and [1-9].* blocked/.test(label)",
        )
        .await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_is_looked_up_overridden_and_reset() {
    let (service, browser) = start().await;
    let logins = json!({"name": "logins", "dimension": "ip", "endpoint_pattern": "/login", "algorithm": "fixed_window", "limit": 3, "window_seconds": 86400});
    ask(&service, "POST", "/api/v1/rules", &logins);
    let body = json!({"dimension": "ip", "identifier": "203.0.113.9", "endpoint": "/login"}).to_string();
    for _ in 0..4 {
        service.ask("POST", "/v1/rate-limit/check", &body).unwrap();
    }
    browser.sign_in("secret").await;
    browser.click("203.0.113.9").await;
    browser.see_in("h2", "203.0.113.9").await;
    browser.see_in("td.use", "3 of 3").await;
    browser.click("logins: 10× for 1 hour").await;
    browser.see_in("dialog", "203.0.113.9 gets 30 per day instead of 3 per day").await;
    browser.click("Override").await;
    browser.see_in("td.use", "3 of 30").await;
    browser.see("temporary override").await;
    browser.click("logins: reset counters").await;
    browser.click("Reset").await;
    browser.see_in("td.use", "0 of 30").await;
    browser.click("End the override of logins").await;
    browser.click("End override").await;
    browser.see_in("td.use", "0 of 3").await;

    // An API key, by the form.
    let rule = json!({"name": "per-key", "dimension": "apikey", "algorithm": "fixed_window", "limit": 40, "window_seconds": 3600});
    ask(&service, "POST", "/api/v1/rules", &rule);
    browser.choose("Dimension", "API key").await;
    browser.fill("Identifier", "partner-1").await;
    browser.click("Look up").await;
    browser.see_in("td.use", "0 of 40").await;
    browser.choose("Dimension", "IP address").await;
    browser.fill("Identifier", "example.org").await;
    browser.click("Look up").await;
    browser.see_in("#lookup .alert", "address").await;

    browser.click("Audit").await;
    browser.see_in("#audit-list", "logins · ip 203.0.113.9").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tier_of_a_user_is_set_and_removed() {
    let (service, browser) = start().await;
    let premium = json!({"name": "per-user-minute", "dimension": "user", "tier": "premium", "endpoint_pattern": "/api/v1/{*rest}", "algorithm": "fixed_window", "limit": 500, "window_seconds": 86400});
    ask(&service, "POST", "/api/v1/rules", &premium);
    browser.sign_in("secret").await;
    browser.click("Lookup").await;
    browser.fill("Identifier", "erin").await;
    browser.click("Look up").await;
    browser.see_in(".badge", "no tier").await;
    browser.see_in("td.use", "0 of 5").await;
    browser.click("Set tier…").await;
    browser.see_in("dialog", "Tiers with rules: premium.").await;
    browser.fill("Tier", "premium").await;
    browser.click("Set tier").await;
    browser.see_in(".badge", "tier premium").await;
    browser.see_in("td.use", "0 of 500").await;
    assert_eq!(ask(&service, "GET", "/api/v1/users/erin", &Value::Null)["tier"], "premium");
    browser.click("Set tier…").await;
    browser.fill("Tier", "").await;
    browser.click("Set tier").await;
    browser.see_in(".badge", "no tier").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decision_log_is_filtered_and_paged() {
    let (service, browser) = start().await;
    // 5 of 60 requests are allowed; the log has every denial.
    check(&service, "heidi", 60);
    check(&service, "ivan", 7);
    let logged = |user: &str| {
        let page = ask(
            &service,
            "GET",
            &format!("/api/v1/logs?user_id={user}&allowed=false&limit=1000"),
            &Value::Null,
        );
        page["decisions"].as_array().unwrap().len()
    };
    eventually("the log", || (logged("heidi"), logged("ivan")) == (55, 2)).await;
    browser.sign_in("secret").await;
    browser.click("Log").await;
    browser.see_in("#log-table", "rate limit exceeded").await;
    browser.choose("Decision", "denied").await;
    browser.fill("User", "heidi").await;
    browser.click("Filter").await;
    browser.see_in("#log-count", "50 decisions shown").await;
    browser.click("Show older").await;
    browser.see_in("#log-count", "55 decisions shown").await;
    browser.gone("#more-log").await;
    browser.fill("User", "ivan").await;
    browser.choose("Period", "last 15 minutes").await;
    browser.click("Filter").await;
    browser.see_in("#log-count", "2 decisions shown").await;
    browser.fill("Rule", "other").await;
    browser.click("Filter").await;
    browser.see_in("#log-table", "No logged decision matches.").await;
    browser.fill("Rule", "per-user-minute").await;
    browser.fill("User", "").await;
    browser.fill("Address or API key", "ivan").await;
    browser.click("Filter").await;
    browser.see_in("#log-count", "2 decisions shown").await;
    browser.fill("Endpoint", "/other").await;
    browser.click("Filter").await;
    browser.see_in("#log-table", "No logged decision matches.").await;
    browser.fill("Endpoint", "/api/v1/orders").await;
    browser.click("Filter").await;
    browser.see_in("#log-count", "2 decisions shown").await;
    browser.click("ivan").await;
    browser.see_in("h2", "ivan").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_numbers_of_each_variant() {
    let (service, browser) = start().await;
    let premium = json!({"name": "per-user-minute", "dimension": "user", "tier": "premium", "endpoint_pattern": "/api/v1/{*rest}", "algorithm": "fixed_window", "limit": 500, "window_seconds": 86400});
    ask(&service, "POST", "/api/v1/rules", &premium);
    let raised = json!({"rule": "per-user-minute", "limit": 77, "expires_in_seconds": 3600});
    ask(&service, "POST", "/api/v1/users/judy/override", &raised);
    browser.sign_in("secret").await;
    browser.click("Try").await;
    browser.fill("User id", "judy").await;
    browser.fill("Endpoint", "/api/v1/orders").await;
    browser.click("Explain").await;
    browser.see_in("#explanation", "1 of 2 rules apply").await;
    for (row, text) in [(1, "77 per day"), (1, "instead of 5 per day"), (2, "500 per day")] {
        browser.see_in(&format!("#explanation tbody tr:nth-child({row})"), text).await;
    }
    browser.close().await;
}
