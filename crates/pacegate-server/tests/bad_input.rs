//! Rejected input: the errors, and that nothing changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use axum::body::Body;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use client::{Client, RULES};

#[tokio::test]
async fn bad_input_is_rejected_with_its_field_and_changes_nothing() {
    let client = Client::new(RULES);
    let rows: Vec<(Value, (&str, &str))> = vec![
        (json!({}), ("INVALID_INPUT", "endpoint")),
        (json!({"endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": "u"}), ("INVALID_INPUT", "endpoint")),
        (json!({"user_id": "u", "endpoint": ""}), ("INVALID_INPUT", "endpoint")),
        (json!({"user_id": "u", "endpoint": "/x\u{0}"}), ("INVALID_INPUT", "endpoint")),
        (json!({"user_id": "u", "endpoint": "x".repeat(5_000)}), ("INVALID_INPUT", "endpoint")),
        (json!({"user_id": "", "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": "a\u{0}b", "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": "a\r\nX-Evil: 1", "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": "x".repeat(5_000), "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": 5, "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": ["u"], "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"user_id": "u", "identifier": "v", "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"dimension": "ip", "endpoint": "/x"}), ("INVALID_INPUT", "identifier")),
        (json!({"identifier": "1", "endpoint": "/x"}), ("INVALID_INPUT", "dimension")),
        (json!({"dimension": "i p", "identifier": "1", "endpoint": "/x"}), ("INVALID_INPUT", "dimension")),
        (json!({"dimension": "Tenant", "identifier": "1", "endpoint": "/x"}), ("INVALID_INPUT", "dimension")),
        (
            json!({"dimension": "ip", "identifier": "office", "endpoint": "/x"}),
            ("INVALID_INPUT", "identifier"),
        ),
        (
            json!({"dimension": "IP", "identifier": "0x7f.1", "endpoint": "/x"}),
            ("INVALID_INPUT", "identifier"),
        ),
        (json!({"keys": {"IP": "office"}, "endpoint": "/x"}), ("INVALID_INPUT", "keys.ip")),
        (json!({"keys": {"Tenant": "t"}, "endpoint": "/x"}), ("INVALID_INPUT", "keys")),
        (json!({"keys": {"user": "a", "USER": "b"}, "endpoint": "/x"}), ("INVALID_INPUT", "keys")),
        (json!({"user_id": "a\u{85}b", "endpoint": "/x"}), ("INVALID_INPUT", "user_id")),
        (json!({"keys": {}, "endpoint": "/x"}), ("INVALID_INPUT", "keys")),
        (json!({"dimension": "user", "identifier": "", "endpoint": "/x"}), ("INVALID_INPUT", "identifier")),
        (json!({"keys": {"user": "u", "ip": ""}, "endpoint": "/x"}), ("INVALID_INPUT", "keys.ip")),
        (json!({"keys": {"user": 5}, "endpoint": "/x"}), ("INVALID_INPUT", "keys.user")),
        (json!({"keys": ["user"], "endpoint": "/x"}), ("INVALID_INPUT", "keys")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": 0}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": -1}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": 1.5}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": "1"}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": 1_000_000_001u64}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "cost": u64::MAX}), ("INVALID_INPUT", "cost")),
        (json!({"user_id": "u", "endpoint": "/x", "limit": 0}), ("INVALID_LIMIT", "limit")),
        (json!({"user_id": "u", "endpoint": "/x", "window_seconds": 0}), ("INVALID_LIMIT", "window_seconds")),
        (json!({"user_id": "u", "endpoint": "/x", "tier": ""}), ("INVALID_INPUT", "tier")),
        (json!({"user_id": "u", "endpoint": "/x", "burst_capacity": 0}), ("INVALID_LIMIT", "burst_capacity")),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 0, "window_seconds": 1}),
            ("INVALID_LIMIT", "limit"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": -5, "window_seconds": 1}),
            ("INVALID_LIMIT", "limit"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1.5, "window_seconds": 1}),
            ("INVALID_LIMIT", "limit"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1_000_000_001u64, "window_seconds": 1}),
            ("INVALID_LIMIT", "limit"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1, "window_seconds": 0}),
            ("INVALID_LIMIT", "window_seconds"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1, "window_seconds": 366 * 86_400 + 1}),
            ("INVALID_LIMIT", "window_seconds"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1, "window_seconds": u64::MAX}),
            ("INVALID_LIMIT", "window_seconds"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1, "window_seconds": 1, "burst_capacity": 0}),
            ("INVALID_LIMIT", "burst_capacity"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1, "window_seconds": 1, "burst_capacity": 9, "strategy": "fixed_window"}),
            ("INVALID_LIMIT", "burst_capacity"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "limit": 1_000_001, "window_seconds": 1, "strategy": "sliding_log"}),
            ("INVALID_LIMIT", "limit"),
        ),
        (json!({"user_id": "u", "endpoint": "/x", "strategy": "magic"}), ("INVALID_STRATEGY", "strategy")),
        (json!({"user_id": "u", "endpoint": "/x", "strategy": 5}), ("INVALID_STRATEGY", "strategy")),
        (json!({"user_id": "u", "endpoint": "/x", "plans": "gold"}), ("INVALID_INPUT", "plans")),
        (json!({"user_id": "u", "endpoint": "/x", "plans": ["lead"]}), ("INVALID_INPUT", "plans")),
        (json!({"user_id": "u", "endpoint": "/x", "plans": ["gold", "gold"]}), ("INVALID_INPUT", "plans")),
        (json!({"user_id": "u", "endpoint": "/x", "method": "GE T"}), ("INVALID_INPUT", "method")),
        (json!({"user_id": "u", "endpoint": "/x", "timestamp": "now"}), ("INVALID_INPUT", "timestamp")),
        (
            json!({"user_id": "u", "endpoint": "/x", "idempotency_key": ""}),
            ("INVALID_INPUT", "idempotency_key"),
        ),
        (
            json!({"user_id": "u", "endpoint": "/x", "idempotency_key": "k".repeat(256)}),
            ("INVALID_INPUT", "idempotency_key"),
        ),
        (json!({"user_id": "u", "endpoint": "/x", "colour": "red"}), ("INVALID_INPUT", "colour")),
        (json!([]), ("INVALID_INPUT", "body")),
        (json!("text"), ("INVALID_INPUT", "body")),
        (Value::Null, ("INVALID_INPUT", "body")),
    ];
    for (body, expected) in rows {
        let answer = client.check(&body).await;
        assert_eq!((answer.status, answer.error()), (StatusCode::BAD_REQUEST, expected), "{body}");
    }
    let headers = [("content-type", "application/json")];
    for (body, field) in [
        ("", "body"),
        ("{", "body"),
        ("{\"user_id\": \"u\"", "body"),
        ("{\"user_id\": \"\\ud800\", \"endpoint\": \"/\"}", "body"),
        ("{\"user_id\": \"u\", \"endpoint\": \"/x\", \"cost\": 18446744073709551616}", "cost"),
        ("{\"user_id\": \"u\", \"endpoint\": \"/x\", \"cost\": 1e3}", "cost"),
        ("{\"user_id\": \"u\", \"user_id\": \"v\", \"endpoint\": \"/x\"}", "body"),
    ] {
        let answer = client.send(Method::POST, "/v1/rate-limit/check", &headers, body).await;
        assert_eq!(
            (answer.status, answer.error()),
            (StatusCode::BAD_REQUEST, ("INVALID_INPUT", field)),
            "{body}"
        );
    }
    let invalid_utf8 =
        client.send(Method::POST, "/v1/rate-limit/check", &headers, vec![b'{', b'"', 0xff, b'"', b'}']).await;
    assert_eq!(invalid_utf8.error(), ("INVALID_INPUT", "body"));
    let untouched = client.check(&json!({"user_id": "u", "endpoint": "/x"})).await;
    assert_eq!(untouched.body["remaining"], 99, "rejected requests are not charged");
}

/// Sends a request as the admin and returns the code and the message of its error.
async fn rejection(client: &Client, method: Method, path: &str, body: String) -> (String, String) {
    let headers = [("content-type", "application/json"), ("x-api-key", "secret")];
    let answer = client.send(method, path, &headers, body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.body);
    let error = &answer.body["error"];
    (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn errors_name_the_field_the_problem_and_the_expected_value() {
    let client = Client::managed(RULES).await;
    let (plan, tier) = ("/api/v1/plans/p", "/api/v1/users/u/tier");
    let rows = [
        (plan, "", "INVALID_INPUT", "body: invalid JSON at line 1 column 0"),
        (plan, "{} {}", "INVALID_INPUT", "body: invalid JSON at line 1 column 4"),
        (plan, "[]", "INVALID_INPUT", "body: invalid type: sequence, expected an object"),
        (plan, "null", "INVALID_INPUT", "body: invalid type: null, expected an object"),
        (
            plan,
            r#"{"version": "1"}"#,
            "INVALID_INPUT",
            r#"version: invalid type: string "1", expected a whole number"#,
        ),
        (
            plan,
            r#"{"version": 1.5}"#,
            "INVALID_INPUT",
            "version: invalid type: floating point `1.5`, expected a whole number",
        ),
        (plan, r#"{"version": 1, "version": 2}"#, "INVALID_INPUT", "body: duplicate field `version`"),
        (
            plan,
            r#"{"x": 1}"#,
            "INVALID_INPUT",
            "x: unknown field `x`, expected one of `name`, `limits`, `source`, `version`, `updated_at`",
        ),
        (
            plan,
            r#"{"limits": [{}, {"limit": -1}]}"#,
            "INVALID_LIMIT",
            "limits[1].limit: invalid value: integer `-1`, expected a positive whole number",
        ),
        (
            plan,
            r#"{"limits": [{"window_seconds": 0.0001}]}"#,
            "INVALID_LIMIT",
            "limits[0].window_seconds: invalid value: floating point `0.0001`, expected a positive number of \
             seconds with at most three decimals",
        ),
        (
            plan,
            r#"{"limits": [{"algorithm": 5}]}"#,
            "INVALID_STRATEGY",
            "limits[0].algorithm: invalid type: integer `5`, expected a string",
        ),
        (
            plan,
            r#"{"limits": [["gcra", 5, 60]]}"#,
            "INVALID_INPUT",
            "limits[0]: invalid type: sequence, expected an object",
        ),
        (
            tier,
            r#"{"custom_limits": {"per-user-minute": {"limit": true}}}"#,
            "INVALID_LIMIT",
            "custom_limits.per-user-minute.limit: invalid type: boolean `true`, expected a positive whole number",
        ),
        (
            tier,
            r#"{"custom_limits": {"per-user-minute": [5, 60]}}"#,
            "INVALID_INPUT",
            "custom_limits.per-user-minute: invalid type: sequence, expected an object",
        ),
    ];
    for (path, body, code, message) in rows {
        let found = rejection(&client, Method::PUT, path, body.to_owned()).await;
        assert_eq!(found, (code.to_owned(), message.to_owned()), "{body}");
    }
    let long = "ä".repeat(100_000);
    let (_, value) = rejection(&client, Method::PUT, plan, format!(r#"{{"version": "{long}"}}"#)).await;
    assert!(value.len() < 2_000 && value.ends_with("ä\", expected a whole number"), "{value}");
    let (_, name) = rejection(&client, Method::PUT, plan, format!(r#"{{"{long}": 1}}"#)).await;
    assert!(name.len() < 2_000 && name.contains(": unknown field `ä"), "{name}");
}

#[tokio::test]
async fn query_parameters_are_typed_and_the_last_duplicate_wins() {
    let client = Client::managed(RULES).await;
    let rows = [
        (
            "/api/v1/logs?limit=0",
            "limit: invalid value: integer `0`, expected a whole number between 1 and 1000",
        ),
        ("/api/v1/logs?limit=-1", "limit: invalid value: integer `-1`, expected a positive whole number"),
        ("/api/v1/logs?limit=", "limit: invalid type: string \"\", expected a positive whole number"),
        ("/api/v1/logs?allowed=1", "allowed: invalid type: string \"1\", expected a boolean"),
        ("/api/v1/users?x=1", "x: unknown field `x`, expected `limit` or `cursor`"),
        ("/api/v1/keys?x=1", "x: unknown field `x`, there are no fields"),
        ("/api/v1/audit?cursor=x", "cursor: not a cursor of this list; use next_cursor of the previous page"),
        (
            "/api/v1/audit?since=soon",
            "since: invalid value: string \"soon\", expected a time such as \"2030-01-31T12:00:00Z\" or seconds \
             since the epoch",
        ),
        ("/api/v1/users/%00", "user_id: must be 1 to 1024 bytes long without control characters"),
    ];
    for (path, message) in rows {
        let found = rejection(&client, Method::GET, path, String::new()).await;
        assert_eq!(found, ("INVALID_INPUT".to_owned(), message.to_owned()), "{path}");
    }
    let last = client.admin(Method::GET, "/api/v1/rules?limit=x&limit=1&cursor=", Value::Null).await;
    assert_eq!(last.body["rules"].as_array().map(Vec::len), Some(1), "{}", last.body);
}

#[tokio::test]
async fn unusual_valid_identifiers_have_separate_counters() {
    let client = Client::new("default_limit: {algorithm: fixed_window, limit: 1, window: 60s}");
    let identifiers = [
        "a:b",
        "a|b",
        "{a}",
        "a%3Ab",
        "é",
        "e\u{301}",
        "\u{202e}",
        "𝕏",
        " ",
        "rl:{user:a}",
        "a\u{a0}",
        "%00",
    ];
    for identifier in identifiers {
        let body = json!({"user_id": identifier, "endpoint": "/"});
        assert_eq!(client.check(&body).await.status, StatusCode::OK, "{identifier}");
        assert_eq!(client.check(&body).await.status, StatusCode::TOO_MANY_REQUESTS, "{identifier}");
    }
}

#[tokio::test]
async fn every_error_has_the_error_body() {
    let client = Client::new(RULES);
    let check = "/v1/rate-limit/check";
    let json_type = ("content-type", "application/json");
    let large = vec![b' '; 256 * 1024 + 1];
    type Row<'a> = (Method, &'a str, Vec<(&'a str, &'a str)>, Body, StatusCode, &'a str);
    let rows: Vec<Row<'_>> = vec![
        (Method::GET, "/nowhere", vec![], Body::empty(), StatusCode::NOT_FOUND, "NOT_FOUND"),
        (Method::GET, "/v1/rate-limit/status/u", vec![], Body::empty(), StatusCode::NOT_FOUND, "NOT_FOUND"),
        (
            Method::GET,
            "/v1/rate-limit/status/u/%ff",
            vec![],
            Body::empty(),
            StatusCode::BAD_REQUEST,
            "INVALID_INPUT",
        ),
        (Method::GET, check, vec![], Body::empty(), StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
        (
            Method::DELETE,
            "/healthz",
            vec![],
            Body::empty(),
            StatusCode::METHOD_NOT_ALLOWED,
            "METHOD_NOT_ALLOWED",
        ),
        (
            Method::POST,
            check,
            vec![],
            Body::from("{}"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (
            Method::POST,
            check,
            vec![("content-type", "text/plain")],
            Body::from("{}"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (
            Method::POST,
            check,
            vec![json_type],
            Body::from(large.clone()),
            StatusCode::PAYLOAD_TOO_LARGE,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            Method::POST,
            check,
            vec![json_type, ("content-length", "999999999")],
            Body::empty(),
            StatusCode::PAYLOAD_TOO_LARGE,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            Method::POST,
            "/v1/rate-limit/batch-check",
            vec![json_type],
            Body::from(large),
            StatusCode::PAYLOAD_TOO_LARGE,
            "PAYLOAD_TOO_LARGE",
        ),
    ];
    for (method, path, headers, body, status, code) in rows {
        let answer = client.send(method.clone(), path, &headers, body).await;
        assert_eq!((answer.status, answer.error().0), (status, code), "{method} {path}");
    }
    let answer = client.send(Method::GET, check, &[], Body::empty()).await;
    assert_eq!(answer.header("allow"), "POST");
    let charset = [("content-type", "Application/JSON; charset=utf-8")];
    let answer = client
        .send(Method::POST, check, &charset, json!({"user_id": "u", "endpoint": "/"}).to_string())
        .await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn endless_body_times_out() {
    let client = Client::new(RULES);
    let endless = Body::new(http_body_util::StreamBody::new(futures_util::stream::pending::<
        Result<hyper::body::Frame<hyper::body::Bytes>, std::io::Error>,
    >()));
    let headers = [("content-type", "application/json")];
    let answer = client.send(Method::POST, "/v1/rate-limit/check", &headers, endless).await;
    assert_eq!((answer.status, answer.error().0), (StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"));
}
