//! A limiter that calls a service makes no synchronous decisions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pacegate::{Check, CheckError, Cost};
use pacegate_config::Config;

#[tokio::test]
async fn limiter_with_a_service_does_not_count_in_this_process() {
    let limiter = async |mode: &str| {
        let plans = "plans: {gold: [{algorithm: gcra, limit: 5, window: 1h}]}";
        let text = format!("mode: {mode}\nservice: {{url: \"http://127.0.0.1:1\"}}\n{plans}\n");
        pacegate_connect::from_parsed(&Config::parse(&text).unwrap()).await.unwrap()
    };
    let check = Check::key("user-123").plan("gold");

    let embedded = limiter("embedded").await;
    assert!(embedded.is_in_process());
    assert!(embedded.check_now(&check).unwrap().allowed());
    assert!(embedded.plan("gold").unwrap().check_now("user-123", Cost::ONE).unwrap().allowed());

    let service = limiter("service").await;
    assert!(!service.is_in_process());
    let (now, plan) =
        (service.check_now(&check), service.plan("gold").unwrap().check_now("user-123", Cost::ONE));
    assert!(matches!(now, Err(CheckError::NotInProcess)), "{now:?}");
    assert!(matches!(plan, Err(CheckError::NotInProcess)), "{plan:?}");
}
