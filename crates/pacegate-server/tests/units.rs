//! Costs in units, over REST and gRPC: checks, batches, explanations, headers, rules and plans.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod service;

use client::Client;
use hyper::Method;
use pacegate_proto::v1::{CheckRequest, QuotaRequest};
use serde_json::{Value, json};
use service::Service;

const RULES: &str = r#"
default_limit: none
rules:
  - {name: requests, dimension: user, algorithm: fixed_window, limit: 3, window: 1d}
  - {name: tokens, dimension: user, algorithm: fixed_window, limit: 1000, window: 1d, unit: tokens}
"#;

fn chat(costs: Value) -> Value {
    json!({"user_id": "u", "endpoint": "/chat", "costs": costs})
}

/// Returns the name, unit and remaining quota of each limit.
fn limits(body: &Value) -> Vec<(&str, &str, u64)> {
    let mut all = Vec::new();
    for limit in body["limits"].as_array().unwrap() {
        let text = |field: &str| limit[field].as_str();
        let unit = text("unit").unwrap_or("requests");
        all.push((text("rule").unwrap(), unit, limit["remaining"].as_u64().unwrap()));
    }
    all
}

#[tokio::test]
async fn check_and_batch_charge_costs_by_unit() {
    let client = Client::new(RULES);
    let answer = client.check(&chat(json!({"tokens": 900}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(limits(&answer.body), [("requests", "requests", 2), ("tokens", "tokens", 100)]);
    let policy = answer.header("ratelimit-policy");
    assert_eq!(policy, r#""requests";q=3;w=86400, "tokens";q=1000;qu="tokens";w=86400"#);

    let denied = client.check(&chat(json!({"requests": 1, "tokens": 101}))).await;
    assert_eq!((denied.status.as_u16(), denied.body["rule"].as_str()), (429, Some("tokens")));
    assert_eq!(limits(&denied.body), [("requests", "requests", 2), ("tokens", "tokens", 100)]);

    let checks = [chat(json!({"tokens": 60})), chat(json!({"tokens": 60})), chat(json!({}))];
    let batch = client.post("/v1/rate-limit/batch-check", &json!({"checks": checks})).await;
    let results = batch.body["results"].as_array().unwrap();
    let allowed: Vec<bool> = results.iter().map(|result| result["allowed"].as_bool().unwrap()).collect();
    assert_eq!(allowed, [true, false, true], "{}", batch.body);
    assert_eq!(limits(&results[2]), [("requests", "requests", 0)]);
}

#[tokio::test]
async fn invalid_costs_are_named() {
    let client = Client::new(RULES);
    for (costs, field) in [
        (json!({"tokens": 0}), "costs.tokens"),
        (json!({"tokens": 1_000_000_001}), "costs.tokens"),
        (json!({"Tokens": 1}), "costs"),
        (json!({"tokens": -1}), "costs.tokens"),
        (json!({"tokens": "1"}), "costs.tokens"),
        (json!(["tokens"]), "costs"),
    ] {
        let answer = client.check(&chat(costs.clone())).await;
        assert_eq!((answer.status.as_u16(), answer.error()), (400, ("INVALID_INPUT", field)), "{costs}");
    }
    let mut both = chat(json!({"requests": 1}));
    both["cost"] = json!(2);
    assert_eq!(client.check(&both).await.error(), ("INVALID_INPUT", "costs"));
    let twice = r#"{"user_id": "u", "endpoint": "/chat", "costs": {"tokens": 1, "tokens": 2}}"#;
    let headers = [("content-type", "application/json")];
    let answer = client.send(Method::POST, "/v1/rate-limit/check", &headers, twice).await;
    assert_eq!(answer.error(), ("INVALID_INPUT", "costs"));
}

#[tokio::test]
async fn explanation_names_the_missing_unit() {
    let client = Client::new(RULES);
    let answer = client.admin(Method::POST, "/api/v1/explain", chat(json!({}))).await;
    let rules = answer.body["rules"].as_array().unwrap();
    let verdicts: Vec<_> = rules.iter().map(|rule| (&rule["rule"], &rule["verdict"])).collect();
    assert_eq!(verdicts, [(&json!("requests"), &json!("applies")), (&json!("tokens"), &json!("other_unit"))]);
    assert_eq!(rules[1]["explanation"], "counts tokens; the check has no cost in tokens");
    assert_eq!(rules[1]["unit"], "tokens");
}

#[tokio::test]
async fn limits_of_a_user_show_units_and_exceptions() {
    let rules = format!(
        "{RULES}  - {{name: tokens, dimension: user, identifier: vip, unit: tokens, unlimited: true}}\n"
    );
    let client = Client::managed(&rules).await;
    for (user_id, numbers) in [("u", json!([1000, null])), ("vip", json!([null, true]))] {
        let path = format!("/api/v1/users/{user_id}/limits");
        let answer = client.admin(Method::GET, &path, Value::Null).await;
        let limits = answer.body["limits"].as_array().unwrap();
        let requests = limits.iter().find(|limit| limit["rule"] == "requests").unwrap();
        assert!(requests.get("unit").is_none(), "{}", answer.body);
        let tokens = limits.iter().find(|limit| limit["rule"] == "tokens").unwrap();
        assert_eq!(tokens["unit"], "tokens", "{}", answer.body);
        assert_eq!(json!([tokens["limit"], tokens["unlimited"]]), numbers, "{}", answer.body);
    }
}

#[tokio::test]
async fn rules_and_plans_keep_units_costs_methods_and_exceptions() {
    let client = Client::managed("default_limit: none").await;
    let numbers = json!({"algorithm": "fixed_window", "limit": 10, "window_seconds": 86400});
    let with = |own: Value| {
        let mut body = numbers.clone();
        body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        body
    };
    let rule = with(json!({
        "name": "writes", "dimension": "user", "endpoint_pattern": "/files", "methods": ["put", "POST"],
        "unit": "bytes", "cost": 4, "overdraw": true,
    }));
    let made = client.admin(Method::POST, "/api/v1/rules", rule).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let shown = ["methods", "method", "unit", "cost", "overdraw"].map(|field| made.body[field].clone());
    assert_eq!(shown, [json!(["POST", "PUT"]), json!(null), json!("bytes"), json!(4), json!(true)]);
    assert!(made.body.get("unlimited").is_none(), "{}", made.body);
    let path = format!("/api/v1/rules/{}", made.body["rule_id"].as_str().unwrap());
    let same = client.admin(Method::PUT, &path, made.body.clone()).await;
    assert_eq!((same.status.as_u16(), &same.body["methods"]), (200, &made.body["methods"]), "{}", same.body);

    let check = json!({"user_id": "u", "endpoint": "/files", "method": "PUT", "costs": {"bytes": 900}});
    for (remaining, allowed) in [(6, true), (2, true), (0, true), (0, false)] {
        let answer = client.check(&check).await;
        assert_eq!(answer.body["allowed"], allowed, "{}", answer.body);
        assert_eq!(answer.body["remaining"], remaining, "{}", answer.body);
    }

    let free = json!({"name": "writes", "dimension": "user", "endpoint_pattern": "/files", "tier": "gold",
        "unit": "bytes", "unlimited": true});
    let made = client.admin(Method::POST, "/api/v1/rules", free).await;
    assert_eq!((made.status.as_u16(), &made.body["unlimited"]), (201, &json!(true)), "{}", made.body);
    assert!(made.body.get("limit").is_none() && made.body.get("algorithm").is_none(), "{}", made.body);
    let mut golden = check.clone();
    golden["tier"] = json!("gold");
    let answer = client.check(&golden).await;
    assert_eq!((answer.status.as_u16(), &answer.body["limits"]), (200, &json!([])), "{}", answer.body);

    let limits = [numbers.clone(), with(json!({"unit": "tokens", "cost": 3}))];
    let plan = client.admin(Method::PUT, "/api/v1/plans/chat", json!({"limits": limits})).await;
    assert_eq!(plan.status, 201, "{}", plan.body);
    let second = &plan.body["limits"][1];
    assert_eq!((&second["unit"], &second["cost"]), (&json!("tokens"), &json!(3)), "{}", plan.body);
    let same = client.admin(Method::PUT, "/api/v1/plans/chat", plan.body.clone()).await;
    assert_eq!(same.status, 200, "{}", same.body);

    for (own, field) in [
        (json!({"unit": "Bytes"}), "unit"),
        (json!({"cost": 0}), "cost"),
        (json!({"overdraw": "yes"}), "overdraw"),
        (json!({"methods": ["GET", "G T"]}), "methods"),
        (json!({"method": "GET", "methods": ["PUT"]}), "methods"),
    ] {
        let mut wrong = with(json!({"name": "wrong", "dimension": "user"}));
        wrong.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let answer = client.admin(Method::POST, "/api/v1/rules", wrong).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, field), "{own}: {}", answer.body);
    }
}

#[tokio::test]
async fn grpc_charges_costs_by_unit() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let request = |tokens: u32| CheckRequest {
        identifier: "u".into(),
        endpoint: "/chat".into(),
        costs: [("tokens".to_owned(), tokens)].into(),
        with_limits: true,
        ..CheckRequest::default()
    };
    let answer = client.check_rate_limit(request(900)).await.unwrap().into_inner();
    let left: Vec<_> = answer.limits.iter().map(|limit| (limit.unit.as_str(), limit.remaining)).collect();
    assert_eq!(left, [("", Some(2)), ("tokens", Some(100))]);
    assert!(!client.check_rate_limit(request(101)).await.unwrap().into_inner().allowed);
    let quota = QuotaRequest {
        identifier: "u".into(),
        endpoint: "/chat".into(),
        costs: [("tokens".to_owned(), 1)].into(),
        ..QuotaRequest::default()
    };
    let quota = client.get_remaining_quota(quota).await.unwrap().into_inner();
    assert_eq!(quota.remaining, Some(100), "the lowest in proportion to its limit");
    let wrong = CheckRequest { costs: [("Tokens".to_owned(), 1)].into(), ..request(1) };
    let status = client.check_rate_limit(wrong).await.unwrap_err();
    assert!(status.code() == tonic::Code::InvalidArgument && status.message().contains("costs"), "{status}");
}
