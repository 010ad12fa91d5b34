//! Changed plans take effect in a running program, from a file or a catalog.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use pacegate::{Check, Limit, Limiter, Stores};
use pacegate_catalog::{Actor, Catalog, Registry};
use pacegate_config::Config;

/// Waits until `plan` has this capacity. Changes must be in force within two seconds.
async fn capacity_becomes(limiter: &Limiter, plan: &str, capacity: u32) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let decision = limiter.peek(&Check::key("k").plan(plan)).await;
        let now = decision.ok().and_then(|decision| Some(decision.binding()?.capacity));
        if now == Some(capacity) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "the capacity is {now:?} instead of {capacity}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn plan(quota: u32) -> String {
    format!("plans:\n  gold: [{{algorithm: fixed_window, limit: {quota}, window: 1h}}]\n")
}

#[tokio::test]
async fn file_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pacegate.yaml");
    fs::write(&path, plan(10)).unwrap();
    let limiter = pacegate_connect::from_config(&path).follow().await.unwrap();
    let check = Check::key("k").plan("gold");
    assert_eq!(limiter.check(&check).await.unwrap().remaining(), Some(9));
    fs::write(&path, plan(20)).unwrap();
    capacity_becomes(&limiter, "gold", 20).await;
    assert_eq!(limiter.peek(&check).await.unwrap().remaining(), Some(19), "usage is kept");
}

#[tokio::test]
async fn catalog_is_followed_and_the_file_takes_precedence() {
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let config = Config::parse(&plan(10)).unwrap();
    let registry = Arc::new(Registry::start(config, Stores::default(), catalog.clone()).await.unwrap());
    let following = tokio::spawn(registry.clone().follow());
    let (limiter, actor) = (registry.limiter().clone(), Actor::default());
    assert!(limiter.check(&Check::key("k").plan("silver")).await.is_err(), "the plan does not exist yet");
    catalog.put_plan(&actor, "silver", &[Limit::per_hour(7).build().unwrap().into()], None).await.unwrap();
    capacity_becomes(&limiter, "silver", 7).await;
    catalog.put_plan(&actor, "silver", &[Limit::per_hour(70).build().unwrap().into()], None).await.unwrap();
    catalog.put_plan(&actor, "gold", &[Limit::per_hour(1).build().unwrap().into()], None).await.unwrap();
    capacity_becomes(&limiter, "silver", 70).await;
    capacity_becomes(&limiter, "gold", 10).await;
    registry.reload(Config::default()).await.unwrap();
    capacity_becomes(&limiter, "gold", 1).await;
    following.abort();
}
