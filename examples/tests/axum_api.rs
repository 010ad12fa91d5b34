//! The axum API, over HTTP. Quota is restored after 36 seconds at the earliest, so a slow machine
//! does not change the numbers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::json;
use support::{Example, command};

const ALICE: &str = "key-of-alice";
const BOB: &str = "key-of-bob";
const ADMIN: &str = "key-of-admin";

fn start() -> Example {
    Example::start(&mut command(env!("CARGO_BIN_EXE_axum_api"), &["127.0.0.1:0"]))
}

#[tokio::test]
async fn user_is_limited_and_then_the_address_of_all_users() {
    let api = start();
    for remaining in (0..10).rev() {
        let answer = api.send("GET", "/items", ALICE).await;
        assert_eq!((answer.status, &answer.json()), (200, &json!(["tea", "bread"])));
        assert_eq!(answer.number("x-ratelimit-remaining"), remaining);
    }
    let answer = api.send("GET", "/items", ALICE).await;
    assert_eq!((answer.status, &answer.json()["rule"]), (429, &json!("per-user")));
    assert!((1..=36).contains(&answer.number("retry-after")), "{answer:?}");
    for _ in 0..5 {
        assert_eq!(api.send("GET", "/items", BOB).await.status, 200);
    }
    let answer = api.send("GET", "/items", BOB).await;
    assert_eq!((answer.status, &answer.json()["rule"]), (429, &json!("per-address")));
    assert_eq!(answer.json()["error"]["code"], "RATE_LIMITED");
    let bob = api.send("GET", "/admin/limits/bob", ADMIN).await.json();
    assert_eq!(bob["limits"][0]["remaining"], 5, "a denial by the address does not charge the user: {bob}");
}

#[tokio::test]
async fn order_costs_its_items_and_a_denied_one_charges_nothing() {
    let api = start();
    let answer = api.send("POST", "/orders?items=3", ALICE).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"for": "alice", "items": 3})));
    assert_eq!(answer.header("x-ratelimit-remaining"), "2");
    let answer = api.send("POST", "/orders?items=3", ALICE).await;
    assert_eq!((answer.status, &answer.json()["rule"]), (429, &json!("orders")));
    let answer = api.send("POST", "/orders?items=2", ALICE).await;
    assert_eq!(answer.status, 200, "a smaller order is allowed");
    let limits = json!([
        {"limit": "per-user", "capacity": 10, "remaining": 5},
        {"limit": "orders", "capacity": 5, "remaining": 0},
    ]);
    assert_eq!(api.send("GET", "/admin/limits/alice", ADMIN).await.json()["limits"], limits);
    assert_eq!(api.send("GET", "/items", ALICE).await.status, 200, "orders have a separate limit");
}

#[tokio::test]
async fn invalid_or_too_large_order_is_rejected() {
    let api = start();
    for path in ["/orders", "/orders?items=0", "/orders?items=-1", "/orders?items=many"] {
        assert_eq!(api.send("POST", path, ALICE).await.status, 400, "{path}");
    }
    for items in ["6", "2000000000", "4294967295"] {
        let answer = api.send("POST", &format!("/orders?items={items}"), BOB).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, ""), "never: {answer:?}");
    }
}

#[tokio::test]
async fn only_an_admin_can_see_and_reset_limits() {
    let api = start();
    for _ in 0..11 {
        api.send("GET", "/items", ALICE).await;
    }
    assert_eq!(api.send("GET", "/items", ALICE).await.status, 429);
    for (key, status) in [("", 401), ("key-of-eve", 401), (ALICE, 403), (BOB, 403)] {
        assert_eq!(api.send("GET", "/admin/limits/alice", key).await.status, status);
        assert_eq!(api.send("DELETE", "/admin/limits/alice", key).await.status, status);
    }
    assert_eq!(api.send("GET", "/items", "").await.status, 401);
    // More often than the limit of the address would allow.
    for _ in 0..20 {
        let answer = api.send("GET", "/admin/limits/alice", ADMIN).await;
        assert_eq!((answer.status, &answer.json()["limits"][0]["remaining"]), (200, &json!(0)));
    }
    assert_eq!(api.send("DELETE", "/admin/limits/alice", ADMIN).await.status, 204);
    assert_eq!(api.send("GET", "/admin/limits/alice", ADMIN).await.json()["limits"][0]["remaining"], 10);
    assert_eq!(api.send("GET", "/items", ALICE).await.status, 200);
    assert_eq!(api.send("GET", "/admin/limits/a%0Ab", ADMIN).await.status, 400);
}
