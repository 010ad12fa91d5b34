//! Ordinary rules matched by descriptors: an entry is a dimension and an identifier; `path` and
//! `method` are the endpoint and the method.

use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;

use super::client::Client;
use super::service::Service;
use super::{ask, descriptor, numbers};

const RULES: &str = r#"
default_limit: {algorithm: token_bucket, limit: 10, window: 1s, burst: 100}
rules:
  - {name: per-user, dimension: user, algorithm: fixed_window, limit: 5, window: 1d}
  - {name: per-user, dimension: user, tier: premium, algorithm: fixed_window, limit: 50, window: 1d}
  - {name: orders, dimension: tenant, endpoint: "/api/{*rest}", algorithm: fixed_window, limit: 3, window: 1d}
  - {name: writes, dimension: tenant, endpoint: "/api/{*rest}", method: POST, algorithm: fixed_window, limit: 2, window: 1d}
  - {name: each, dimension: ip, endpoint: "/files/{name}", algorithm: fixed_window, limit: 4, window: 1d, counter: endpoint}
"#;

async fn left(service: &Service, entries: &[(&str, &str)]) -> (Code, Option<(String, u32)>) {
    let response = ask(service, vec![descriptor(entries)]).await;
    let status = &response.statuses[0];
    let limit = status.current_limit.as_ref().map(|limit| (limit.name.clone(), status.limit_remaining));
    (response.overall_code(), limit)
}

fn ok(rule: &str, remaining: u32) -> (Code, Option<(String, u32)>) {
    (Code::Ok, Some((rule.to_owned(), remaining)))
}

#[tokio::test]
async fn entries_are_dimensions_path_and_method() {
    let service = Service::start(RULES).await;
    assert_eq!(left(&service, &[("user", "u1")]).await, ok("per-user", 4));
    assert_eq!(
        left(&service, &[("user", "u1"), ("path", "/any")]).await,
        ok("per-user", 3),
        "the same counter"
    );
    let get = [("tenant", "t"), ("path", "/api/orders"), ("method", "GET")];
    assert_eq!(left(&service, &get).await, ok("orders", 2));
    let unknown = [("tenant", "n"), ("path", "/api/orders")];
    assert_eq!(
        left(&service, &unknown).await,
        ok("writes", 1),
        "rules with a method apply to descriptors without one"
    );
    let post = [("tenant", "t"), ("endpoint", "/api/orders"), ("method", "POST")];
    assert_eq!(left(&service, &post).await, ok("orders", 1), "the binding one of two rules");
    assert_eq!(
        left(&service, &[("method", "post"), ("path", "/api"), ("tenant", "v")]).await,
        ok("writes", 1)
    );
    assert_eq!(
        left(&service, &[("tenant", "t")]).await,
        (Code::Ok, None),
        "a rule for a path requires a path"
    );
    assert_eq!(left(&service, &[("tenant", "t"), ("path", "/web")]).await, (Code::Ok, None));
    assert_eq!(
        left(&service, &[("planet", "mars")]).await,
        (Code::Ok, None),
        "the default limit does not apply to descriptors"
    );
    for (name, remaining) in [("a", 3), ("b", 3), ("a", 2)] {
        let path = format!("/files/{name}");
        assert_eq!(left(&service, &[("ip", "1"), ("path", &path)]).await, ok("each", remaining));
    }
    let both = [("user", "u2"), ("tenant", "w"), ("path", "/api/x"), ("method", "GET")];
    let response = ask(&service, vec![descriptor(&both)]).await;
    assert_eq!(numbers(&response), (Code::Ok, vec![2]), "both identities in one step");
    assert_eq!(left(&service, &[("user", "u2")]).await, ok("per-user", 3));
}

#[tokio::test]
async fn no_spelling_of_a_path_bypasses_its_rule() {
    let service = Service::start(RULES).await;
    let long_query = format!("/api/orders?{}", "x".repeat(5_000));
    let long_path = format!("/api/{}", "x".repeat(5_000));
    let long_way = format!("{}/api/orders", "/web/%2e%2E".repeat(1_000));
    let long_and_odd = format!("/api/{}", "ü".repeat(5_000));
    let paths = [
        "/api/orders",
        "//api/./orders/",
        "/api/%6Frders",
        "/web/../api/orders",
        "/api/orders?page=2",
        &long_query,
        &long_path,
        &long_way,
        &long_and_odd,
        "/api/a\u{7}b",
        "api/x",
    ];
    for (place, path) in paths.into_iter().enumerate() {
        let tenant = format!("t{place}");
        let found = left(&service, &[("tenant", &tenant), ("path", path), ("method", "GET")]).await;
        assert_eq!(found, ok("orders", 2), "{}", path.chars().take(40).collect::<String>());
    }
}

#[tokio::test]
async fn tier_of_a_user_comes_from_the_catalog() {
    let rest = Client::managed(RULES).await;
    let put = rest.admin(hyper::Method::PUT, "/api/v1/users/u1/tier", json!({"tier": "premium"})).await;
    assert!(put.status.is_success(), "{}", put.body);
    let service = Service::serve(rest, RULES).await;
    // The request waits for the catalog only briefly, so the user is known by the second request at
    // the latest.
    let mut first = left(&service, &[("user", "u1")]).await;
    for _ in 0..1_000 {
        if first.1.as_ref().is_some_and(|(_, remaining)| *remaining > 5) {
            break;
        }
        first = left(&service, &[("user", "u1")]).await;
    }
    let remaining = first.1.unwrap().1;
    assert!((40..50).contains(&remaining), "{remaining}");
    assert_eq!(left(&service, &[("user", "u1")]).await, ok("per-user", remaining - 1));
    assert_eq!(left(&service, &[("user", "u2")]).await, ok("per-user", 4));
    let two =
        ask(&service, vec![descriptor(&[("ip", "1")]), descriptor(&[("path", "/x"), ("user", "u1")])]).await;
    assert_eq!(two.statuses[1].current_limit.as_ref().unwrap().requests_per_unit, 50);
}
