//! The dashboard in a real browser: every task done as a person would do it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod browser;
mod process;

use browser::{ask, check, shadow_rule, start};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing_in_and_watching() {
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
    browser.see_in("#heaviest", "No checks yet.").await;
    assert_eq!(
        browser.run("return [localStorage.length, sessionStorage.length, document.cookie]").await,
        json!([0, 0, ""])
    );

    // Figures come by themselves.
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
    browser.click("The last seconds as a table").await;
    browser.see_in("#samples-table caption + thead", "Allowed").await;

    browser.click("Sign out").await;
    browser.see_in("h1", "Sign in").await;
    assert_eq!(browser.run("return document.getElementById('content').innerText").await, json!(""));
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_from_its_first_idea_to_its_end() {
    let (service, browser) = start().await;
    browser.sign_in("secret").await;
    browser.click("Rules").await;
    browser.see_in("#rule-table", "from the configuration file; change it there").await;

    // A mistake is shown where it was made, and the form stays.
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
    browser.see("Rule orders is in force, in shadow mode.").await;
    browser.see_in("#rule-table", "2 per day").await;

    // It watches, and whoever switches it on is told what that means.
    check(&service, "bob", 5);
    browser.click("Enforce orders").await;
    browser.see_in("dialog", "3 requests would have been blocked").await;
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

    // Somebody else is faster.
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
    browser.see_in("dialog", "Somebody changed this rule meanwhile").await;
    browser.click("Cancel").await;
    browser.see_in("#rule-table", "7 per day").await;

    browser.fill("Filter", "nothing like it").await;
    browser.see("0 of 2 rules match").await;
    browser.fill("Filter", "ORDERS shadow").await;
    browser.see("No rule matches.").await;
    browser.fill("Filter", "orders").await;
    browser.click("To shadow orders").await;
    browser.click("To shadow").await;
    browser.see("Rule orders only watches now.").await;
    browser.click("Delete orders").await;
    browser.click("Delete").await;
    browser.see("Rule orders is deleted.").await;
    browser.see("0 of 1 rules match").await;

    // All of it was written down.
    browser.click("Audit").await;
    for action in ["rule.create", "rule.update", "rule.delete"] {
        browser.see_in("#audit-list", action).await;
    }
    browser.see_in("#audit-list .changes", "shadow → enforce").await;
    browser.fill("Made with key", "somebody else").await;
    browser.click("Filter").await;
    browser.see("Nothing was changed").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rules_are_found() {
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
async fn a_user_and_a_check() {
    let (service, browser) = start().await;
    check(&service, "carol", 4);
    browser.sign_in("secret").await;
    // From the live page, as one who sees something odd there.
    browser.click("carol").await;
    browser.see_in("h2", "carol").await;
    browser.see("a rule for everybody").await;
    browser.see_in("td.use", "4 of 5").await;

    // Two clicks.
    browser.click("per-user-minute: 2× for 1 hour").await;
    browser.see_in("dialog", "gets 10 per day instead of 5 per day").await;
    browser.click("Override").await;
    browser.see_in("td.use", "4 of 10").await;
    browser.see("a temporary override").await;
    browser.click("End the override of per-user-minute").await;
    browser.click("End it").await;
    browser.see_in("td.use", "4 of 5").await;
    browser.see("None.").await;

    browser.click("per-user-minute: custom override").await;
    browser.fill("Requests per 1 day", "many").await;
    browser.click("Override").await;
    browser.see_in("dialog .field-error", "whole number").await;
    browser.fill("Requests per 1 day", "50").await;
    browser.fill("For how many minutes", "5").await;
    browser.fill("Why", "a launch").await;
    browser.click("Override").await;
    browser.see_in("td.use", "4 of 50").await;
    browser.see("a launch").await;

    browser.click("per-user-minute: reset counters").await;
    browser.click("Reset").await;
    browser.see_in("td.use", "0 of 50").await;

    // A second rule of the same name elsewhere: an override holds for both, and that is said.
    let other = json!({"name": "per-user-minute", "dimension": "user", "endpoint_pattern": "/other", "algorithm": "fixed_window", "limit": 9, "window_seconds": 1.5});
    ask(&service, "POST", "/api/v1/rules", &other);
    browser.click("Refresh").await;
    browser.see("/other").await;
    browser.click("per-user-minute: custom override").await;
    browser.see_in("dialog", "an override holds for every rule of this name, so for").await;
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
    browser.see_in("#verdict", "COST_EXCEEDS_LIMIT").await;
    browser.see_in("#explanation", "2 of 3 rules apply").await;
    browser.fill("Cost", "2").await;
    browser.fill("Other dimensions", "ip = 10.0.0.1").await;
    browser.click("Explain").await;
    browser.see_in("#verdict", "Would be allowed").await;
    browser.click("Really check (charges)").await;
    browser.see_in("#verdict", "Allowed, and charged").await;
    let limits = ask(&service, "GET", "/api/v1/users/dave/limits", &Value::Null);
    assert_eq!(limits["limits"][0]["current_count"], 2, "explaining charged nothing: {limits}");
    browser.fill("Cost", "4").await;
    browser.click("Really check (charges)").await;
    browser.see_in("#verdict", "Denied, and nothing charged").await;

    browser.click("Audit").await;
    browser.fill("About user", "carol").await;
    browser.click("Filter").await;
    for action in ["override.create", "counters.reset"] {
        browser.see_in("#audit-list", action).await;
    }
    browser.gone("#audit-list li:nth-child(5)").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_made_and_revoked() {
    let (service, browser) = start().await;
    browser.sign_in("secret").await;
    browser.click("Keys").await;
    browser.see_in("#key-table", "There are none in the catalog").await;
    browser.choose("Role", "admin").await;
    browser.fill("Name", "gateway").await;
    browser.click("Make a key").await;
    browser.see_in("dialog", "it is shown this once").await;
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
