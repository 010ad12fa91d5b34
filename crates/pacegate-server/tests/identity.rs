//! One identity has one counter, over all protocols and in all spellings.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod service;

use hyper::Method;
use pacegate_proto::v1::{CheckRequest, QuotaRequest};
use serde_json::{Value, json};

use client::Client;
use service::Service;

const RULES: &str = "default_limit: none
rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 100, window: 1h}
  - {name: per-address, dimension: ip, algorithm: fixed_window, limit: 100, window: 1h}
  - {name: logins, dimension: user, endpoint: /login, method: POST, algorithm: fixed_window, limit: 5, window: 1h}
";

/// Returns the remaining quota after a check.
async fn left(client: &Client, identity: Value) -> u64 {
    let mut body = json!({"endpoint": "/"});
    body.as_object_mut().unwrap().extend(identity.as_object().unwrap().clone());
    let answer = client.check(&body).await;
    answer.body["remaining"].as_u64().unwrap_or_else(|| panic!("{}", answer.body))
}

#[tokio::test]
async fn rest_counts_every_spelling_of_an_identity_together() {
    let client = Client::managed(RULES).await;
    let user = [
        json!({"user_id": "u"}),
        json!({"dimension": "USER", "identifier": "u"}),
        json!({"dimension": "User", "identifier": "u"}),
        json!({"keys": {"USER": "u"}}),
    ];
    for (place, identity) in user.into_iter().enumerate() {
        assert_eq!(left(&client, identity.clone()).await, 99 - place as u64, "{identity}");
    }
    let mut used = 0;
    for address in ["2001:db8::1", "2001:DB8::1", "2001:db8:0:0::2", "[2001:db8::1]:443", "2001:db8::/64"] {
        used += 1;
        assert_eq!(left(&client, json!({"dimension": "ip", "identifier": address})).await, 100 - used);
    }
    let batch: Vec<Value> = ["2001:db8::3", "2001:DB8::4"]
        .map(|address| json!({"keys": {"IP": address}, "endpoint": "/"}))
        .to_vec();
    let answer = client.post("/v1/rate-limit/batch-check", &json!({"checks": batch})).await;
    let each: Vec<&Value> =
        answer.body["results"].as_array().unwrap().iter().map(|one| &one["remaining"]).collect();
    assert_eq!(each, [94, 93]);
    let explained = json!({"dimension": "IP", "identifier": "2001:db8::9", "endpoint": "/"});
    let explained = client.admin(Method::POST, "/api/v1/explain", explained).await;
    assert_eq!(explained.body["decision"]["remaining"], 93, "nothing was charged");
    let reset = json!({"dimension": "IP", "identifier": "[2001:db8::5]:1", "endpoint": "/"});
    assert_eq!(client.reset(&reset).await.status, 200);
    assert_eq!(left(&client, json!({"dimension": "ip", "identifier": "2001:db8::1"})).await, 99);
    for (place, address) in ["1.2.3.4", "::ffff:1.2.3.4", "1.2.3.4:443"].into_iter().enumerate() {
        let identity = json!({"dimension": "ip", "identifier": address});
        assert_eq!(left(&client, identity).await, 99 - place as u64, "{address}");
    }
    let rejected = client.check(&json!({"dimension": "Tenant", "identifier": "t", "endpoint": "/"})).await;
    assert_eq!(rejected.status, 400);
    assert_eq!(rejected.body["error"]["details"]["reason"], "must be in lower case: `tenant`");
}

#[tokio::test]
async fn grpc_and_rest_count_an_address_together() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let ask = |dimension: i32, custom: &str, identifier: &str| CheckRequest {
        dimension,
        custom_dimension: custom.into(),
        identifier: identifier.into(),
        endpoint: "/".into(),
        ..CheckRequest::default()
    };
    let asked = [ask(2, "", "2001:db8::1"), ask(0, "IP", "[2001:DB8::2]:443"), ask(0, "ip", "2001:db8::/64")];
    for (place, request) in asked.into_iter().enumerate() {
        let answer = client.check_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.remaining, Some(99 - place as u32));
    }
    assert_eq!(left(&service.rest, json!({"dimension": "ip", "identifier": "2001:db8::3"})).await, 96);
    let quota = QuotaRequest {
        dimension: 2,
        identifier: "2001:DB8::FFFF".into(),
        endpoint: "/".into(),
        ..QuotaRequest::default()
    };
    assert_eq!(client.get_remaining_quota(quota).await.unwrap().into_inner().remaining, Some(96));
    let rejected = client.check_rate_limit(ask(2, "", "localhost")).await.unwrap_err();
    assert_eq!(rejected.code(), tonic::Code::InvalidArgument);
    assert!(rejected.message().contains("identifier"), "{}", rejected.message());
}

#[tokio::test]
async fn stored_rule_has_the_canonical_spelling() {
    let client = Client::managed("default_limit: none").await;
    let rule = |dimension: &str, identifier: &str| {
        json!({"name": "r", "dimension": dimension, "identifier": identifier, "method": "post", "algorithm": "fixed_window",
            "limit": 7, "window_seconds": 60})
    };
    let made = client.admin(Method::POST, "/api/v1/rules", rule("IP", "[2001:DB8::1]:443")).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(
        (&made.body["dimension"], &made.body["identifier"], &made.body["method"]),
        (&json!("ip"), &json!("2001:db8::/64"), &json!("POST"))
    );
    let again = client.admin(Method::POST, "/api/v1/rules", rule("ip", "2001:db8::2")).await;
    assert_eq!(again.status, 409, "{}", again.body);
    assert_eq!(left(&client, json!({"dimension": "ip", "identifier": "2001:db8::3"})).await, 6);
    for (dimension, identifier, field) in
        [("Tenant", "t", "dimension"), ("ip", "office", "identifier"), ("ip", "10.0.0.0/8", "identifier")]
    {
        let rejected = client.admin(Method::POST, "/api/v1/rules", rule(dimension, identifier)).await;
        assert_eq!((rejected.status.as_u16(), rejected.error().1), (400, field), "{}", rejected.body);
    }
}

#[tokio::test]
async fn check_without_a_method_is_limited_by_rules_with_one() {
    let client = Client::managed(RULES).await;
    let check = |method: Option<&str>| {
        let mut body = json!({"user_id": "u", "endpoint": "/login"});
        if let Some(method) = method {
            body["method"] = json!(method);
        }
        body
    };
    for (method, rule, remaining) in
        [(None, "logins", 4), (Some("post"), "logins", 3), (Some("GET"), "per-user", 97), (None, "logins", 2)]
    {
        let answer = client.check(&check(method)).await;
        assert_eq!((&answer.body["rule"], &answer.body["remaining"]), (&json!(rule), &json!(remaining)));
    }
    let explained = client.admin(Method::POST, "/api/v1/explain", check(None)).await;
    let rules = explained.body["rules"].as_array().unwrap();
    let logins = rules.iter().find(|rule| rule["rule"] == "logins").unwrap();
    assert_eq!(logins["verdict"], "applies");
    let words = "applies: anyone; the check has no method, so POST is assumed";
    assert_eq!(logins["explanation"], words);
}
