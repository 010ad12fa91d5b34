//! The management API: rules, configs, users, overrides, plans and policies, with a real catalog.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use client::{Client, RULES};
use hyper::Method;
use serde_json::{Value, json};

const NOTHING: Value = Value::Null;

fn rule(name: &str, limit: u32) -> Value {
    json!({"name": name, "dimension": "user", "algorithm": "fixed_window", "limit": limit, "window_seconds": 60})
}

async fn limit_of(client: &Client, user_id: &str, endpoint: &str) -> (Value, Value) {
    let answer = client.check(&json!({"user_id": user_id, "endpoint": endpoint})).await;
    (answer.body["rule"].clone(), answer.body["limit"].clone())
}

#[tokio::test]
async fn rule_is_created_read_replaced_and_deleted() {
    let client = Client::managed("default_limit: none").await;
    let made = client.admin(Method::POST, "/api/v1/rules", rule("per-user", 5)).await;
    assert_eq!(made.status, 201);
    let id = made.body["rule_id"].as_str().unwrap().to_owned();
    assert_eq!(made.header("location"), format!("/api/v1/rules/{id}"));
    assert_eq!(made.header("etag"), "\"1\"");
    assert_eq!(
        (&made.body["source"], &made.body["version"], &made.body["mode"], &made.body["endpoint_pattern"]),
        (&json!("catalog"), &json!(1), &json!("enforce"), &json!("*"))
    );
    assert_eq!(limit_of(&client, "u1", "/").await, (json!("per-user"), json!(5)), "in force immediately");

    let path = format!("/api/v1/rules/{id}");
    let read = client.admin(Method::GET, &path, NOTHING).await;
    assert_eq!((read.status.as_u16(), &read.body), (200, &made.body));
    let known = client.admin_with(Method::GET, &path, &[("if-none-match", "\"1\"")], NOTHING).await;
    assert_eq!(known.status, 304);

    let mut edited = read.body.clone();
    edited["limit"] = json!(50);
    let replaced = client.admin_with(Method::PUT, &path, &[("if-match", "\"1\"")], edited.clone()).await;
    assert_eq!((replaced.status.as_u16(), replaced.header("etag")), (200, "\"2\""), "{}", replaced.body);
    let check = client.check(&json!({"user_id": "u1", "endpoint": "/"})).await;
    assert_eq!(check.body["remaining"], 48, "usage is preserved");

    let lost = client.admin_with(Method::PUT, &path, &[("if-match", "\"1\"")], rule("per-user", 7)).await;
    assert_eq!((lost.status.as_u16(), lost.error().0), (412, "PRECONDITION_FAILED"));
    edited["limit"] = json!(8);
    let lost = client.admin(Method::PUT, &path, edited).await;
    assert_eq!(lost.status, 412, "the version in the body counts as well");
    assert_eq!(limit_of(&client, "u1", "/").await.1, 50);

    assert_eq!(client.admin(Method::DELETE, &path, NOTHING).await.status, 204);
    assert_eq!(limit_of(&client, "u1", "/").await, (Value::Null, Value::Null));
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(client.admin(method, &path, NOTHING).await.error().0, "NOT_FOUND");
    }
    assert_eq!(client.admin(Method::PUT, &path, rule("per-user", 7)).await.status, 404);
}

#[tokio::test]
async fn duplicate_rule_is_a_conflict() {
    let client = Client::managed(RULES).await;
    assert_eq!(client.admin(Method::POST, "/api/v1/rules", rule("a", 5)).await.status, 201);
    let again = client.admin(Method::POST, "/api/v1/rules", rule("a", 6)).await;
    assert_eq!((again.status.as_u16(), again.error().0), (409, "CONFLICT"));
    let mut of_file = rule("per-user-minute", 5);
    of_file["endpoint_pattern"] = json!("/api/v1/{*anything}");
    let conflict = client.admin(Method::POST, "/api/v1/rules", of_file).await;
    assert_eq!(conflict.status, 409, "duplicates a rule of the file");
    let other = client.admin(Method::POST, "/api/v1/rules", rule("b", 5)).await;
    let path = format!("/api/v1/rules/{}", other.body["rule_id"].as_str().unwrap());
    assert_eq!(client.admin(Method::PUT, &path, rule("a", 5)).await.status, 409);
}

#[tokio::test]
async fn lists_page_through_the_file_and_the_catalog() {
    let client = Client::managed(RULES).await;
    for number in 0..7 {
        let made = client.admin(Method::POST, "/api/v1/rules", rule(&format!("r{number}"), 5)).await;
        assert_eq!(made.status, 201);
    }
    for limit in (1..=11).chain([999, 1_000]) {
        let (mut names, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/api/v1/rules?limit={limit}&cursor={cursor}");
            let page = client.admin(Method::GET, &path, NOTHING).await;
            assert_eq!(page.status, 200, "{}", page.body);
            let rules = page.body["rules"].as_array().unwrap();
            assert!(rules.len() <= limit);
            names.extend(rules.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()));
            match page.body["next_cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        let expected = ["per-user-minute", "per-ip", "queue", "r0", "r1", "r2", "r3", "r4", "r5", "r6"]
            .map(str::to_owned);
        assert_eq!(names, expected, "in pages of {limit}");
    }
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=nonsense", "cursor=file-x", "nonsense=1"] {
        let answer = client.admin(Method::GET, &format!("/api/v1/rules?{bad}"), NOTHING).await;
        assert_eq!(answer.error().0, "INVALID_INPUT", "{bad}");
    }
}

#[tokio::test]
async fn every_invalid_field_of_a_rule_is_named() {
    let client = Client::managed("").await;
    let rows = [
        ("name", json!(null), "INVALID_INPUT"),
        ("name", json!(""), "INVALID_INPUT"),
        ("name", json!("a\"b"), "INVALID_INPUT"),
        ("name", json!(5), "INVALID_INPUT"),
        ("dimension", json!(null), "INVALID_INPUT"),
        ("dimension", json!("a b"), "INVALID_INPUT"),
        ("identifier", json!("a\nb"), "INVALID_INPUT"),
        ("identifier", json!("x".repeat(1_025)), "INVALID_INPUT"),
        ("tier", json!(""), "INVALID_INPUT"),
        ("endpoint_pattern", json!("/a/*"), "INVALID_INPUT"),
        ("endpoint_pattern", json!("/a?b"), "INVALID_INPUT"),
        ("method", json!("G T"), "INVALID_INPUT"),
        ("limit", json!(null), "INVALID_LIMIT"),
        ("limit", json!(0), "INVALID_LIMIT"),
        ("limit", json!(-1), "INVALID_LIMIT"),
        ("limit", json!(1.5), "INVALID_LIMIT"),
        ("limit", json!(1_000_000_001), "INVALID_LIMIT"),
        ("limit", json!("5"), "INVALID_LIMIT"),
        ("window_seconds", json!(null), "INVALID_LIMIT"),
        ("window_seconds", json!(0), "INVALID_LIMIT"),
        ("window_seconds", json!(-5), "INVALID_LIMIT"),
        ("window_seconds", json!(0.0001), "INVALID_LIMIT"),
        ("window_seconds", json!(1e300), "INVALID_LIMIT"),
        ("window_seconds", json!(40_000_000), "INVALID_LIMIT"),
        ("window_seconds", json!("60"), "INVALID_LIMIT"),
        ("burst_capacity", json!(9), "INVALID_LIMIT"),
        ("algorithm", json!(null), "INVALID_INPUT"),
        ("algorithm", json!("nonsense"), "INVALID_STRATEGY"),
        ("mode", json!("sometimes"), "INVALID_INPUT"),
        ("counter", json!("x"), "INVALID_INPUT"),
        ("store", json!("nowhere"), "INVALID_INPUT"),
        ("on_store_error", json!("maybe"), "INVALID_INPUT"),
        ("nonsense", json!(1), "INVALID_INPUT"),
    ];
    for (field, value, code) in rows {
        let mut body = rule("a", 5);
        body[field] = value.clone();
        let answer = client.admin(Method::POST, "/api/v1/rules", body).await;
        assert_eq!((answer.status.as_u16(), answer.error()), (400, (code, field)), "{field}: {value}");
    }
    let list = client.admin(Method::GET, "/api/v1/rules", NOTHING).await;
    assert_eq!(list.body["rules"], json!([]), "nothing was created");
    let answer = client.admin(Method::GET, "/admin/status", NOTHING).await;
    assert_eq!(answer.body["rulesRevision"], 0);
}

#[tokio::test]
async fn management_requires_the_admin_key() {
    let client = Client::managed("").await;
    let places = [
        (Method::GET, "/api/v1/rules"),
        (Method::POST, "/api/v1/rules"),
        (Method::PUT, "/api/v1/rules/x"),
        (Method::DELETE, "/api/v1/rules/x"),
        (Method::PUT, "/v1/rate-limit/config"),
        (Method::GET, "/v1/rate-limit/config/u/e"),
        (Method::DELETE, "/v1/rate-limit/config/u/e"),
        (Method::GET, "/api/v1/plans"),
        (Method::PUT, "/api/v1/plans/x"),
        (Method::GET, "/api/v1/users"),
        (Method::GET, "/api/v1/users/u/limits"),
        (Method::PUT, "/api/v1/users/u/tier"),
        (Method::POST, "/api/v1/users/u/override"),
        (Method::GET, "/api/v1/users/u/override"),
        (Method::DELETE, "/api/v1/users/u/override/x"),
    ];
    for (method, path) in places {
        let answer = client.send(method.clone(), path, &[], String::new()).await;
        assert_eq!(answer.error().0, "UNAUTHENTICATED", "{method} {path}");
        let answer = client.send(method.clone(), path, &[("x-api-key", "wrong")], String::new()).await;
        assert_eq!(answer.error().0, "UNAUTHENTICATED", "{method} {path}");
    }
    let admin_places = [
        (Method::GET, "/admin/status"),
        (Method::GET, "/admin/metrics"),
        (Method::GET, "/admin/metrics/k"),
        (Method::POST, "/admin/reset/k"),
        (Method::GET, "/admin/policies"),
        (Method::POST, "/admin/policies"),
        (Method::PUT, "/admin/policies/k"),
        (Method::DELETE, "/admin/policies/k"),
    ];
    for (method, path) in admin_places {
        let answer = client.send(method.clone(), path, &[], String::new()).await;
        assert_eq!((answer.status.as_u16(), &answer.body["status"]), (401, &json!(401)), "{method} {path}");
        assert_eq!(answer.body["error"], "Unauthorized");
    }
}

#[tokio::test]
async fn config_is_the_limit_of_one_user_at_one_endpoint() {
    let client = Client::managed("default_limit: none").await;
    let body = json!({"user_id": "user_123", "endpoint": "/api/v1/users", "limit": 2000, "window_seconds": 60, "strategy": "token_bucket", "burst_capacity": 100});
    for path in ["/v1/rate-limit/config", "/api/v1/rate-limit/config"] {
        let answer = client.admin(Method::PUT, path, body.clone()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        for (field, value) in body.as_object().unwrap() {
            assert_eq!(answer.body[field], *value);
        }
        assert!(answer.body["updated_at"].as_str().unwrap().ends_with('Z'));
    }
    assert_eq!(limit_of(&client, "user_123", "/api/v1/users").await, (json!("config"), json!(100)));
    assert_eq!(limit_of(&client, "user_124", "/api/v1/users").await.1, Value::Null);
    assert_eq!(limit_of(&client, "user_123", "/api/v1/other").await.1, Value::Null);
    for path in
        ["/v1/rate-limit/config/user_123/api/v1/users", "/v1/rate-limit/config/user_123/%2Fapi%2Fv1%2Fusers"]
    {
        let answer = client.admin(Method::GET, path, NOTHING).await;
        assert_eq!((answer.status.as_u16(), &answer.body["limit"]), (200, &json!(2000)), "{path}");
    }
    let path = "/v1/rate-limit/config/user_123/api/v1/users";
    assert_eq!(client.admin(Method::DELETE, path, NOTHING).await.status, 204);
    assert_eq!(client.admin(Method::GET, path, NOTHING).await.error().0, "NOT_FOUND");
    assert_eq!(client.admin(Method::DELETE, path, NOTHING).await.error().0, "NOT_FOUND");
    assert_eq!(limit_of(&client, "user_123", "/api/v1/users").await.1, Value::Null);

    let rows = [
        ("user_id", json!(null), "INVALID_INPUT"),
        ("user_id", json!(""), "INVALID_INPUT"),
        ("endpoint", json!(null), "INVALID_INPUT"),
        ("endpoint", json!(""), "INVALID_INPUT"),
        ("limit", json!(0), "INVALID_LIMIT"),
        ("window_seconds", json!(0), "INVALID_LIMIT"),
        ("strategy", json!(null), "INVALID_INPUT"),
        ("strategy", json!("x"), "INVALID_STRATEGY"),
        ("burst_capacity", json!(0), "INVALID_LIMIT"),
    ];
    for (field, value, code) in rows {
        let mut wrong = body.clone();
        wrong[field] = value.clone();
        let answer = client.admin(Method::PUT, "/v1/rate-limit/config", wrong).await;
        assert_eq!(answer.error(), (code, field), "{value}");
    }
}

const TIERS: &str = r#"
rules:
  - {name: per-user-minute, dimension: user, algorithm: sliding_counter, limit: 100, window: 60s}
  - {name: per-user-minute, dimension: user, tier: premium, algorithm: sliding_counter, limit: 1000, window: 60s}
  - {name: per-user-minute, dimension: user, identifier: vip, algorithm: sliding_counter, limit: 9000, window: 60s}
  - {name: daily, dimension: user, endpoint: "/api/{*rest}", algorithm: fixed_window, limit: 10000, window: 1d}
"#;

async fn why(client: &Client, user_id: &str) -> Vec<(String, String, u64)> {
    let answer = client.admin(Method::GET, &format!("/api/v1/users/{user_id}/limits"), NOTHING).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let limits = answer.body["limits"].as_array().unwrap().iter();
    limits
        .map(|limit| (text(&limit["rule"]), text(&limit["why"]), limit["limit"].as_u64().unwrap()))
        .collect()
}

#[tokio::test]
async fn user_has_a_tier_custom_limits_and_overrides() {
    let client = Client::managed(TIERS).await;
    let minute = |why: &str, limit| ("per-user-minute".to_owned(), why.to_owned(), limit);
    let daily = ("daily".to_owned(), "anyone".to_owned(), 10_000);
    assert_eq!(why(&client, "u1").await, [daily.clone(), minute("anyone", 100)]);
    assert_eq!(limit_of(&client, "u1", "/").await.1, 100);

    let path = "/api/v1/users/u1/tier";
    let answer = client.admin(Method::PUT, path, json!({"tier": "premium"})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["tier"]), (200, &json!("premium")), "{}", answer.body);
    assert_eq!(why(&client, "u1").await, [daily.clone(), minute("tier", 1_000)]);
    let check = client.check(&json!({"user_id": "u1", "endpoint": "/"})).await;
    assert_eq!(check.body["remaining"], 998, "usage is preserved across tiers");

    let custom = json!({"custom_limits": {"per-user-minute": {"limit": 5000, "window_seconds": 60}}});
    let answer = client.admin(Method::PUT, path, custom).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["tier"]),
        (200, &json!("premium")),
        "the tier is unchanged"
    );
    assert_eq!(why(&client, "u1").await, [daily.clone(), minute("custom", 5_000)]);

    let override_path = "/api/v1/users/u1/override";
    let body =
        json!({"rule": "per-user-minute", "limit": 7, "expires_in_seconds": 3600, "reason": "a launch"});
    let made = client.admin(Method::POST, override_path, body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!((&made.body["limit"], &made.body["reason"]), (&json!(7), &json!("a launch")));
    assert_eq!(why(&client, "u1").await, [daily.clone(), minute("override", 7)]);
    let check = client.check(&json!({"user_id": "u1", "endpoint": "/"})).await;
    assert_eq!((&check.body["limit"], &check.body["remaining"]), (&json!(7), &json!(4)));
    let list = client.admin(Method::GET, override_path, NOTHING).await;
    assert_eq!(list.body["overrides"], json!([made.body]));
    let too_long = format!("/api/v1/users/{}/override", "x".repeat(1_025));
    assert_eq!(client.admin(Method::GET, &too_long, NOTHING).await.error(), ("INVALID_INPUT", "user_id"));
    let id = made.body["id"].as_str().unwrap();
    assert_eq!(client.admin(Method::DELETE, &format!("{override_path}/{id}"), NOTHING).await.status, 204);
    assert_eq!(client.admin(Method::DELETE, &format!("{override_path}/{id}"), NOTHING).await.status, 404);
    assert_eq!(limit_of(&client, "u1", "/").await.1, 5_000);

    let answer = client.admin(Method::PUT, path, json!({"tier": null, "custom_limits": {}})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["tier"]), (200, &Value::Null));
    assert_eq!(limit_of(&client, "u1", "/").await.1, 100);

    let custom = json!({"tier": "premium", "custom_limits": {"per-user-minute": {"limit": 5}}});
    assert_eq!(client.admin(Method::PUT, "/api/v1/users/vip/tier", custom).await.status, 200);
    assert_eq!(
        why(&client, "vip").await,
        [daily, minute("identifier", 9_000)],
        "a rule for the identifier takes precedence"
    );
    let users = client.admin(Method::GET, "/api/v1/users?limit=1", NOTHING).await;
    assert_eq!(users.body["users"].as_array().unwrap().len(), 1);
    let cursor = users.body["next_cursor"].as_str().unwrap();
    let rest = client.admin(Method::GET, &format!("/api/v1/users?cursor={cursor}"), NOTHING).await;
    assert_eq!(rest.body["users"].as_array().unwrap().len(), 1);
    assert_eq!(client.admin(Method::GET, "/api/v1/users/unknown", NOTHING).await.status, 404);
}

#[tokio::test]
async fn invalid_tiers_and_overrides_are_rejected_by_field() {
    let client = Client::managed(TIERS).await;
    let rows = [
        (json!({}), "tier"),
        (json!({"tier": 5}), "tier"),
        (json!({"tier": ""}), "tier"),
        (json!({"tier": "x", "nonsense": 1}), "nonsense"),
        (json!({"custom_limits": {"per-user-minute": {"limit": 0}}}), "custom_limits.per-user-minute.limit"),
        (json!({"custom_limits": {"per-user-minute": {}}}), "custom_limits.per-user-minute.limit"),
        (
            json!({"custom_limits": {"per-user-minute": {"limit": "5"}}}),
            "custom_limits.per-user-minute.limit",
        ),
        (
            json!({"custom_limits": {"per-user-minute": {"limit": 5, "window_seconds": 0}}}),
            "custom_limits.per-user-minute.window_seconds",
        ),
        (
            json!({"custom_limits": {"per-user-minute": {"limit": 5, "burst_capacity": 9}}}),
            "custom_limits.per-user-minute.burst_capacity",
        ),
        (json!({"custom_limits": {"per-user-minute": {"x": 5}}}), "custom_limits.per-user-minute.x"),
        (json!({"custom_limits": {"nonsense": {"limit": 5}}}), "custom_limits.nonsense"),
        (json!({"custom_limits": 5}), "custom_limits"),
    ];
    for (body, field) in rows {
        let answer = client.admin(Method::PUT, "/api/v1/users/u1/tier", body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, field), "{body}");
    }
    assert_eq!(
        client.admin(Method::GET, "/api/v1/users/u1", NOTHING).await.status,
        404,
        "nothing was created"
    );
    let good = json!({"rule": "per-user-minute", "limit": 7, "expires_in_seconds": 60});
    let rows = [
        ("rule", json!(null), "rule"),
        ("rule", json!("nonsense"), "rule"),
        ("limit", json!(null), "limit"),
        ("limit", json!(0), "limit"),
        ("window_seconds", json!(0), "window_seconds"),
        ("burst_capacity", json!(9), "burst_capacity"),
        ("expires_in_seconds", json!(null), "expires_in_seconds"),
        ("expires_in_seconds", json!(0), "expires_in_seconds"),
        ("expires_in_seconds", json!(u64::MAX), "expires_in_seconds"),
        ("expires_at", json!("2030-01-01T00:00:00Z"), "expires_at"),
        ("reason", json!("x".repeat(1_025)), "reason"),
        ("nonsense", json!(1), "nonsense"),
    ];
    for (name, value, field) in rows {
        let mut body = good.clone();
        body[name] = value.clone();
        let answer = client.admin(Method::POST, "/api/v1/users/u1/override", body).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, field), "{name}: {value}");
    }
    for at in ["yesterday", "2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z"] {
        let body = json!({"rule": "per-user-minute", "limit": 7, "expires_at": at});
        let answer = client.admin(Method::POST, "/api/v1/users/u1/override", body).await;
        assert_eq!(answer.error().1, "expires_at", "{at}");
    }
}

#[tokio::test]
async fn overrides_and_custom_limits_apply_to_the_default_limit() {
    let client = Client::managed("").await;
    let default = |why: &str, limit| ("default".to_owned(), why.to_owned(), limit);
    assert_eq!(why(&client, "u1").await, [default("default", 10)]);
    let custom = json!({"custom_limits": {"default": {"limit": 20}}});
    let answer = client.admin(Method::PUT, "/api/v1/users/u1/tier", custom).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(limit_of(&client, "u1", "/").await, (json!("default"), json!(200)), "the burst is scaled");
    assert_eq!(why(&client, "u1").await, [default("custom", 20)]);
    let body = json!({"rule": "default", "limit": 5, "expires_in_seconds": 3600});
    let made = client.admin(Method::POST, "/api/v1/users/u1/override", body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(limit_of(&client, "u1", "/").await, (json!("default"), json!(50)));
    assert_eq!(why(&client, "u1").await, [default("override", 5)]);
    assert_eq!(limit_of(&client, "u2", "/").await, (json!("default"), json!(100)));

    let unlimited = Client::managed("default_limit: none").await;
    let body = json!({"rule": "default", "limit": 5, "expires_in_seconds": 3600});
    let rejected = unlimited.admin(Method::POST, "/api/v1/users/u1/override", body).await;
    assert_eq!(rejected.error(), ("INVALID_INPUT", "rule"), "the default limit is disabled");
}

#[tokio::test]
async fn plans_can_be_changed_while_the_service_runs() {
    let client = Client::managed(RULES).await;
    let plan =
        |limit: u32| json!({"limits": [{"algorithm": "fixed_window", "limit": limit, "window_seconds": 60}]});
    let check = json!({"user_id": "u1", "endpoint": "/x", "plans": ["silver"]});
    assert_eq!(client.check(&check).await.error().1, "plans");
    assert_eq!(client.admin(Method::PUT, "/api/v1/plans/silver", plan(5)).await.status, 201);
    assert_eq!(client.check(&check).await.body["limit"], 5);
    let replaced = client.admin(Method::PUT, "/api/v1/plans/silver", plan(50)).await;
    assert_eq!((replaced.status.as_u16(), replaced.header("etag")), (200, "\"2\""));
    assert_eq!(client.check(&check).await.body["remaining"], 48);
    let lost =
        client.admin_with(Method::PUT, "/api/v1/plans/silver", &[("if-match", "\"1\"")], plan(9)).await;
    assert_eq!(lost.status, 412);
    let names = |answer: &client::Answer| {
        let plans = answer.body["plans"].as_array().unwrap().iter();
        plans.map(|plan| (plan["name"].clone(), plan["source"].clone())).collect::<Vec<_>>()
    };
    let list = client.admin(Method::GET, "/api/v1/plans", NOTHING).await;
    let of = |name: &str, source: &str| (json!(name), json!(source));
    assert_eq!(names(&list), [of("gold", "file"), of("daily", "file"), of("silver", "catalog")]);
    assert_eq!(client.admin(Method::PUT, "/api/v1/plans/gold", plan(5)).await.status, 409);
    assert_eq!(client.admin(Method::GET, "/api/v1/plans/gold", NOTHING).await.body["source"], "file");
    let rows = [
        (json!({}), "limits"),
        (json!({"limits": []}), "limits"),
        (json!({"limits": [{"limit": 5}]}), "limits[0].algorithm"),
        (json!({"limits": [{"algorithm": "gcra", "limit": 0, "window_seconds": 1}]}), "limits[0].limit"),
        (json!({"limits": [{"algorithm": "gcra", "limit": 1, "window_seconds": 1, "x": 1}]}), "limits[0].x"),
        (
            json!({"limits": [{"algorithm": "gcra", "limit": 1, "window_seconds": 1}, {"algorithm": "gcra", "limit": 2, "window_seconds": 1}]}),
            "limits",
        ),
    ];
    for (body, field) in rows {
        let answer = client.admin(Method::PUT, "/api/v1/plans/silver", body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.error().1), (400, field), "{body}");
    }
    assert_eq!(client.admin(Method::DELETE, "/api/v1/plans/silver", NOTHING).await.status, 204);
    assert_eq!(client.admin(Method::DELETE, "/api/v1/plans/silver", NOTHING).await.status, 404);
    assert_eq!(client.check(&check).await.error().1, "plans");
}

#[tokio::test]
async fn policies_are_rules_for_one_key() {
    let client = Client::managed("").await;
    let policy = json!({"key": "user-123", "type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 60});
    let made = client.admin(Method::POST, "/admin/policies", policy.clone()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.body["policyKey"], "user-123");
    assert!(made.body["id"].is_i64());
    for field in ["type", "capacity", "refillRate", "windowSeconds"] {
        assert_eq!(made.body[field], policy[field]);
    }
    let again = client.admin(Method::POST, "/admin/policies", policy.clone()).await;
    assert_eq!((again.status.as_u16(), &again.body["error"]), (409, &json!("Conflict")));
    assert!(again.body["timestamp"].as_str().unwrap().ends_with('Z'));
    let check = json!({"dimension": "key", "identifier": "user-123", "endpoint": "/"});
    for _ in 0..13 {
        assert_eq!(client.check(&check).await.status, 200);
    }
    let metrics = client.admin(Method::GET, "/admin/metrics/user-123", NOTHING).await;
    let expected = json!({"key": "user-123", "dimension": "key", "algorithm": "TOKEN_BUCKET", "currentTokens": 87, "capacity": 100, "windowRequestCount": 13, "windowSeconds": 60, "status": "OK"});
    assert_eq!(metrics.body, expected);
    let all = client.admin(Method::GET, "/admin/metrics", NOTHING).await;
    assert_eq!(all.body, json!([expected]));
    let reset = client.admin(Method::POST, "/admin/reset/user-123", NOTHING).await;
    assert_eq!((reset.status.as_u16(), &reset.body["key"]), (200, &json!("user-123")));
    let metrics = client.admin(Method::GET, "/admin/metrics/user-123", NOTHING).await;
    assert_eq!(metrics.body["currentTokens"], 100);

    let window = json!({"type": "SLIDING_WINDOW", "capacity": 5, "windowSeconds": 30});
    let replaced = client.admin(Method::PUT, "/admin/policies/user-123", window).await;
    assert_eq!(replaced.status, 200, "{}", replaced.body);
    assert_eq!(
        (&replaced.body["type"], &replaced.body["windowSeconds"]),
        (&json!("SLIDING_WINDOW"), &json!(30))
    );
    assert_eq!(client.check(&check).await.body["limit"], 5);
    for (number, kind) in ["leaky_bucket", "FIXED_WINDOW", "GCRA", "sliding_counter"].iter().enumerate() {
        let body = json!({"key": format!("k{number}"), "type": kind, "capacity": 5, "refillRate": 2, "windowSeconds": 60});
        assert_eq!(client.admin(Method::POST, "/admin/policies", body).await.status, 201, "{kind}");
    }
    let list = client.admin(Method::GET, "/admin/policies?limit=2", NOTHING).await;
    assert_eq!(list.body.as_array().unwrap().len(), 2);
    let next = list.header("link");
    let next = next.trim_start_matches('<').split('>').next().unwrap();
    let list = client.admin(Method::GET, next, NOTHING).await;
    assert_eq!((list.body.as_array().unwrap().len(), list.header("link")), (3, ""));

    let rows = [
        ("key", json!(null)),
        ("key", json!("")),
        ("type", json!(null)),
        ("type", json!("NONSENSE")),
        ("capacity", json!(null)),
        ("capacity", json!(0)),
        ("refillRate", json!(0)),
        ("refillRate", json!(-1)),
        ("nonsense", json!(1)),
    ];
    for (field, value) in rows {
        let mut wrong = policy.clone();
        wrong["key"] = json!("other");
        wrong[field] = value.clone();
        let answer = client.admin(Method::POST, "/admin/policies", wrong).await;
        assert_eq!((answer.status.as_u16(), &answer.body["status"]), (400, &json!(400)), "{field}: {value}");
        assert!(answer.body["message"].as_str().unwrap().contains(field), "{}", answer.body);
    }
    let mut other = policy.clone();
    other["type"] = json!("TOKEN_BUCKET");
    let differs = client.admin(Method::PUT, "/admin/policies/k1", other).await;
    assert_eq!(differs.status, 400, "another key in the body");
    let unknown = client.admin(Method::GET, "/admin/policies/unknown", NOTHING).await;
    assert_eq!((unknown.status.as_u16(), &unknown.body["error"]), (404, &json!("Not Found")));
    assert_eq!(client.admin(Method::DELETE, "/admin/policies/user-123", NOTHING).await.status, 204);
    assert_eq!(client.admin(Method::DELETE, "/admin/policies/user-123", NOTHING).await.status, 404);
    let nowhere = client.admin(Method::GET, "/admin/nowhere", NOTHING).await;
    assert_eq!((nowhere.status.as_u16(), &nowhere.body["error"]), (404, &json!("Not Found")));
    assert_eq!(client.admin(Method::PATCH, "/admin/policies", NOTHING).await.body["status"], 405);
}

#[tokio::test]
async fn status_reports_components_and_counts_transitions() {
    let client = Client::managed(
        "rules: [{name: a, dimension: user, algorithm: fixed_window, limit: 10, window: 60s}]",
    )
    .await;
    let check = json!({"user_id": "u1", "endpoint": "/"});
    let mut states = Vec::new();
    for _ in 0..10 {
        let answer = client.check(&check).await;
        states.push((answer.body["state"].clone(), answer.header("x-ratelimit-state").to_owned()));
    }
    let of = |state: &str, header: &str| (json!(state), header.to_owned());
    assert_eq!(states[7], of("normal", ""), "eight of ten is not above 80 %");
    assert_eq!(states[8], of("warning", "warning"));
    assert_eq!(states[9], of("throttled", "throttled"));
    let status = client.admin(Method::GET, "/admin/status", NOTHING).await;
    assert_eq!((status.status.as_u16(), &status.body["status"]), (200, &json!("UP")));
    assert_eq!(status.body["stores"], json!([{"name": "default", "status": "UP"}]));
    assert_eq!(status.body["catalog"], json!({"name": "catalog", "status": "UP"}));
    assert_eq!(status.body["rules"], 1);
    assert_eq!(status.body["stateTransitions"], json!({"normal": 0, "warning": 1, "throttled": 1}));
    assert!(status.body["uptimeSeconds"].is_u64() && status.body["version"].is_string());
}

/// Two administrators change different fields of one user at the same time; both get a 200.
#[tokio::test]
async fn concurrent_changes_of_one_user_are_both_kept() {
    let client = Client::managed(&format!("management: {{writes_per_minute: 10000}}\n{TIERS}")).await;
    for round in 0..100 {
        let path = format!("/api/v1/users/u{round}/tier");
        let custom = json!({"custom_limits": {"per-user-minute": {"limit": 7}}});
        let (tier, custom) = tokio::join!(
            client.admin(Method::PUT, &path, json!({"tier": "premium"})),
            client.admin(Method::PUT, &path, custom),
        );
        assert_eq!((tier.status.as_u16(), custom.status.as_u16()), (200, 200));
        let user = client.admin(Method::GET, &format!("/api/v1/users/u{round}"), NOTHING).await;
        assert_eq!(user.body["tier"], "premium", "pair {round} lost the tier");
        assert_eq!(user.body["custom_limits"], json!({"per-user-minute": {"limit": 7}}), "pair {round}");
        assert_eq!(user.body["version"], 2);
    }
}

/// Every resource that can be replaced or removed sends an ETag, and a stale `If-Match` changes
/// nothing.
#[tokio::test]
async fn if_match_is_honoured_wherever_an_etag_is_sent() {
    let client = Client::managed(&format!("management: {{writes_per_minute: 10000}}\n{TIERS}")).await;
    let stale = [("if-match", "\"7\"")];
    let any = [("if-match", "*")];
    let first = [("if-match", "\"1\"")];
    let plan = json!({"limits": [{"algorithm": "fixed_window", "limit": 5, "window_seconds": 60}]});
    let config =
        json!({"user_id": "u1", "endpoint": "/a", "limit": 5, "window_seconds": 60, "strategy": "gcra"});
    let policy = json!({"type": "FIXED_WINDOW", "capacity": 5, "windowSeconds": 60});

    // A precondition on a resource that does not exist fails, and creates nothing.
    let puts = [
        ("/api/v1/plans/silver", &plan, "/api/v1/plans/silver"),
        ("/v1/rate-limit/config", &config, "/v1/rate-limit/config/u1/a"),
        ("/api/v1/users/u1/tier", &json!({"tier": "premium"}), "/api/v1/users/u1"),
    ];
    for (path, body, shown) in puts {
        for condition in [stale, any] {
            let rejected = client.admin_with(Method::PUT, path, &condition, body.clone()).await;
            assert_eq!(
                (rejected.status.as_u16(), rejected.error().0),
                (412, "PRECONDITION_FAILED"),
                "{path}"
            );
        }
        assert_eq!(client.admin(Method::GET, shown, NOTHING).await.status, 404, "{path}");
        let made = client.admin(Method::PUT, path, body.clone()).await;
        assert_eq!(made.header("etag"), "\"1\"", "{path}");
        assert_eq!(client.admin(Method::GET, shown, NOTHING).await.header("etag"), "\"1\"", "{path}");
    }

    let rule = client.admin(Method::POST, "/api/v1/rules", rule("x", 5)).await;
    let rule_path = format!("/api/v1/rules/{}", rule.body["rule_id"].as_str().unwrap());
    let mut new_policy = policy.clone();
    new_policy["key"] = json!("k");
    let made_policy = client.admin(Method::POST, "/admin/policies", new_policy).await;
    let new_override = json!({"rule": "per-user-minute", "limit": 7, "expires_in_seconds": 3600});
    let made_override = client.admin(Method::POST, "/api/v1/users/u1/override", new_override).await;
    let override_path = format!("/api/v1/users/u1/override/{}", made_override.body["id"].as_str().unwrap());
    let key = client.admin(Method::POST, "/api/v1/keys", json!({"role": "reader"})).await;
    let key_path = format!("/api/v1/keys/{}", key.body["key_id"].as_str().unwrap());
    for made in [&rule, &made_policy, &made_override, &key] {
        assert_eq!((made.status.as_u16(), made.header("etag")), (201, "\"1\""), "{}", made.body);
    }

    // A stale version is rejected everywhere, and the current one is accepted.
    let replaced = [
        (rule_path.as_str(), self::rule("x", 9)),
        ("/api/v1/plans/silver", plan),
        ("/v1/rate-limit/config", config),
        ("/api/v1/users/u1/tier", json!({"tier": "free"})),
        ("/admin/policies/k", policy),
    ];
    for (path, body) in replaced {
        let rejected = client.admin_with(Method::PUT, path, &stale, body.clone()).await;
        assert_eq!(rejected.status, 412, "{path}");
        let done = client.admin_with(Method::PUT, path, &first, body.clone()).await;
        assert_eq!((done.status.as_u16(), done.header("etag")), (200, "\"2\""), "{path}: {}", done.body);
        let done = client.admin_with(Method::PUT, path, &any, body).await;
        assert_eq!((done.status.as_u16(), done.header("etag")), (200, "\"3\""), "{path}");
    }
    let third = [("if-match", "\"3\"")];
    let removed = [
        (rule_path.as_str(), third),
        ("/api/v1/plans/silver", third),
        ("/v1/rate-limit/config/u1/a", third),
        ("/admin/policies/k", third),
        (override_path.as_str(), first),
        (key_path.as_str(), first),
    ];
    for (path, current) in removed {
        let rejected = client.admin_with(Method::DELETE, path, &stale, NOTHING).await;
        assert_eq!(rejected.status, 412, "{path}");
        let rejected = client.admin_with(Method::DELETE, path, &[("if-match", "W/\"1\"")], NOTHING).await;
        assert_eq!(rejected.status, 412, "{path}: a weak ETag never matches");
        assert_eq!(client.admin_with(Method::DELETE, path, &current, NOTHING).await.status, 204, "{path}");
    }
}

#[tokio::test]
async fn resets_leave_an_audit_record() {
    let client = Client::managed(RULES).await;
    let body = json!({"user_id": "u", "endpoint": "/x"});
    assert_eq!(client.reset(&body).await.status, 200);
    let body = json!({"keys": {"ip": "10.0.0.1", "user": "v"}, "endpoint": "/y"});
    assert_eq!(client.admin(Method::POST, "/api/v1/rate-limit/reset", body).await.status, 200);
    assert_eq!(client.admin(Method::POST, "/admin/reset/user-123", NOTHING).await.status, 200);
    for invalid in [json!({"user_id": "u", "endpoint": ""}), json!({"user_id": "", "endpoint": "/x"})] {
        assert_eq!(client.reset(&invalid).await.status, 400);
    }
    let audit = client.admin(Method::GET, "/api/v1/audit", NOTHING).await;
    let records = audit.body["records"].as_array().unwrap();
    let found: Vec<_> = records.iter().map(|record| (&record["action"], &record["subject"])).collect();
    let (reset, key) = (json!("counters.reset"), json!("key:user-123 user:user-123 apikey:user-123"));
    let (both, user) = (json!("ip:10.0.0.1 user:v"), json!("user:u"));
    assert_eq!(
        found,
        [(&reset, &key), (&reset, &both), (&reset, &user)],
        "newest first, without invalid ones"
    );
    let record = &records[2];
    assert_eq!((&record["actor"], &record["address"]), (&json!("configured"), &json!("127.0.0.1")));
    assert!(record["request_id"].is_string() && record["at"].is_string(), "{record}");
    let identities = json!([{"dimension": "user", "identifier": "u"}]);
    assert_eq!(record["after"], json!({"identities": identities, "endpoint": "/x"}));
    let of_user = client.admin(Method::GET, "/api/v1/audit?user=v", NOTHING).await;
    assert_eq!(of_user.body["records"].as_array().unwrap().len(), 1);
}
