//! Idempotency keys, in the message and in the metadata.

use pacegate_proto::v1::{CheckRequest, Identity};
use serde_json::json;
use tonic::{Code, Request};

use super::check;
use super::client::RULES;
use super::service::{Service, with};

const HEADER: &str = "x-idempotency-key";

fn keyed(key: &str) -> CheckRequest {
    CheckRequest { idempotency_key: key.into(), ..check("u", "/x") }
}

#[tokio::test]
async fn same_key_is_charged_once_in_message_or_metadata() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let mut ask =
        async |request: Request<CheckRequest>| client.check_rate_limit(request).await.unwrap().into_inner();
    let first = ask(Request::new(keyed("k1"))).await;
    assert_eq!((first.remaining, first.replayed), (Some(99), false));
    let both = with(keyed("k1"), &[(HEADER, "k1")]);
    for again in [Request::new(keyed("k1")), with(check("u", "/x"), &[(HEADER, "k1")]), both] {
        let again = ask(again).await;
        assert_eq!((again.remaining, again.replayed, again.reset_at), (Some(99), true, first.reset_at));
    }
    let clock = CheckRequest { timestamp: 12_345, ..keyed("k1") };
    assert!(ask(Request::new(clock)).await.replayed, "timestamps are not part of the request");
    assert_eq!(ask(Request::new(keyed("k2"))).await.remaining, Some(98), "nothing else was charged");
    let other = CheckRequest { identifier: "v".into(), ..keyed("k1") };
    assert_eq!(
        ask(Request::new(other)).await.remaining,
        Some(99),
        "keys of other identities are independent"
    );
}

#[tokio::test]
async fn keys_of_rest_and_grpc_are_shared() {
    let service = Service::start(RULES).await;
    let body = json!({"user_id": "u", "endpoint": "/x", "idempotency_key": "k"});
    assert_eq!(service.rest.check(&body).await.body["remaining"], 99);
    let again = service.limiter().check_rate_limit(keyed("k")).await.unwrap().into_inner();
    assert_eq!((again.remaining, again.replayed), (Some(99), true));
}

#[tokio::test]
async fn key_with_another_request_is_rejected() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    client.check_rate_limit(keyed("k")).await.unwrap();
    for other in [
        CheckRequest { cost: 2, ..keyed("k") },
        CheckRequest { endpoint: "/y".into(), ..keyed("k") },
        CheckRequest { method: "GET".into(), ..keyed("k") },
        CheckRequest { plans: vec!["gold".into()], ..keyed("k") },
    ] {
        let rejected = client.check_rate_limit(other.clone()).await.unwrap_err();
        assert_eq!(rejected.code(), Code::FailedPrecondition, "{other:?}");
        assert!(rejected.message().starts_with("idempotency_key: "), "{rejected}");
    }
    let also = vec![Identity { identifier: "192.0.2.1".into(), dimension: 2, ..Identity::default() }];
    let others = CheckRequest { also, ..keyed("k") };
    assert!(client.check_rate_limit(others).await.is_ok(), "keys of other identities are independent");
    let disagreeing = client.check_rate_limit(with(keyed("k"), &[(HEADER, "other")])).await.unwrap_err();
    assert_eq!(disagreeing.code(), Code::InvalidArgument);
    assert!(disagreeing.message().starts_with("idempotency_key: "), "{disagreeing}");
    assert_eq!(client.check_rate_limit(check("u", "/x")).await.unwrap().into_inner().remaining, Some(98));
}

#[tokio::test]
async fn denial_is_not_recorded_under_a_key() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let request = |key: &str| CheckRequest { identifier: "192.0.2.1".into(), dimension: 2, ..keyed(key) };
    for key in ["a", "b"] {
        assert!(client.check_rate_limit(request(key)).await.unwrap().into_inner().allowed);
    }
    assert!(!client.check_rate_limit(request("c")).await.unwrap().into_inner().allowed);
    service.rest.clock.advance(std::time::Duration::from_secs(40));
    let judged_afresh = client.check_rate_limit(request("c")).await.unwrap().into_inner();
    assert_eq!((judged_afresh.allowed, judged_afresh.replayed), (true, false));
}
