//! Access control by the API key in the metadata.

use hyper::Method;
use pacegate_catalog::{Actor, Catalog};
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::v1::{BatchCheckRequest, QuotaRequest, ResetRequest};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use super::check;
use super::client::Client;
use super::service::{Service, soon, with};

const METHODS: [&str; 6] =
    ["CheckRateLimit", "GetRemainingQuota", "ResetLimit", "BatchCheck", "CheckStream", "ShouldRateLimit"];

/// Calls a method with this metadata and returns the status code.
async fn call(service: &Service, method: &str, metadata: &[(&'static str, &str)]) -> Code {
    let mut client = service.limiter();
    let (identifier, endpoint) = ("u".to_owned(), "/".to_owned());
    let result: Result<(), Status> = match method {
        "CheckRateLimit" => client.check_rate_limit(with(check("u", "/"), metadata)).await.map(drop),
        "GetRemainingQuota" => {
            let message = QuotaRequest { identifier, endpoint, ..QuotaRequest::default() };
            client.get_remaining_quota(with(message, metadata)).await.map(drop)
        }
        "ResetLimit" => {
            let message = ResetRequest { identifier, endpoint, ..ResetRequest::default() };
            client.reset_limit(with(message, metadata)).await.map(drop)
        }
        "BatchCheck" => {
            let message = BatchCheckRequest { checks: vec![check("u", "/")], ..BatchCheckRequest::default() };
            client.batch_check(with(message, metadata)).await.map(drop)
        }
        "CheckStream" => {
            match client.check_stream(with(tokio_stream::iter([check("u", "/")]), metadata)).await {
                Ok(stream) => soon(stream.into_inner().next()).await.unwrap().map(drop),
                Err(status) => Err(status),
            }
        }
        _ => {
            let message = RateLimitRequest {
                domain: "d".into(),
                descriptors: vec![RateLimitDescriptor::default()],
                hits_addend: 0,
            };
            service.envoy().should_rate_limit(with(message, metadata)).await.map(drop)
        }
    };
    result.map_or_else(|status| status.code(), |()| Code::Ok)
}

async fn service(yaml: &str) -> (Service, [(&'static str, String); 3]) {
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let mut keys = Vec::new();
    for role in ["admin", "reader", "checker"] {
        keys.push((role, catalog.create_key(&Actor::default(), role, role, None).await.unwrap().1));
    }
    let rest = Client::with_catalog(yaml, catalog).await;
    (Service::serve(rest, yaml).await, keys.try_into().unwrap())
}

#[tokio::test]
async fn every_role_permits_its_operations_only() {
    let (service, keys) = service("server: {require_key: true}").await;
    for method in METHODS {
        for (role, secret) in &keys {
            let may = match (*role, method) {
                ("admin", _) | (_, "GetRemainingQuota") => true,
                ("checker", method) => method != "ResetLimit",
                _ => false,
            };
            let expected = if may { Code::Ok } else { Code::PermissionDenied };
            let bearer = format!("Bearer {secret}");
            assert_eq!(call(&service, method, &[("x-api-key", secret)]).await, expected, "{role} {method}");
            let as_bearer = call(&service, method, &[("authorization", &bearer)]).await;
            assert_eq!(as_bearer, expected, "{role} {method}");
        }
        assert_eq!(call(&service, method, &[]).await, Code::Unauthenticated, "{method}");
    }
    for method in METHODS {
        let wrong = call(&service, method, &[("x-api-key", "guess")]).await;
        assert_eq!(wrong, Code::Unauthenticated, "{method}");
    }
}

#[tokio::test]
async fn checks_require_a_key_only_if_configured_and_resets_always() {
    let (service, keys) = service("").await;
    for method in METHODS {
        let expected = if method == "ResetLimit" { Code::Unauthenticated } else { Code::Ok };
        assert_eq!(call(&service, method, &[]).await, expected, "{method}");
    }
    assert_eq!(call(&service, "ResetLimit", &[("x-api-key", &keys[2].1)]).await, Code::PermissionDenied);
    assert_eq!(call(&service, "ResetLimit", &[("x-api-key", &keys[0].1)]).await, Code::Ok);
}

#[tokio::test]
async fn reset_leaves_an_audit_record() {
    let (service, keys) = service("").await;
    for key in [&keys[0].1, &keys[1].1] {
        call(&service, "ResetLimit", &[("x-api-key", key), ("x-request-id", "r-7")]).await;
    }
    let audit = service.rest.admin(Method::GET, "/api/v1/audit?user=u", Value::Null).await;
    let records = audit.body["records"].as_array().unwrap();
    assert_eq!(records.len(), 1, "the reader was rejected: {records:?}");
    let record = &records[0];
    assert_eq!((&record["action"], &record["subject"]), (&json!("counters.reset"), &json!("user:u")));
    assert_eq!((&record["request_id"], &record["address"]), (&json!("r-7"), &json!("127.0.0.1")));
    assert_eq!(record["after"]["endpoint"], "/");
    assert!(
        keys[0].1.contains(record["actor"].as_str().unwrap()),
        "the actor is the id of the key: {record}"
    );
}

#[tokio::test]
async fn addresses_and_guesses_are_limited_like_over_rest() {
    let (service, keys) = service("server: {admin_allow: [10.0.0.0/8]}").await;
    let rejected = call(&service, "ResetLimit", &[("x-api-key", &keys[0].1)]).await;
    assert_eq!(rejected, Code::PermissionDenied, "this address is not allowed");

    let (service, _) = self::service("").await;
    let reset = ResetRequest { identifier: "u".into(), endpoint: "/".into(), ..ResetRequest::default() };
    let mut client = service.limiter();
    let mut codes = Vec::new();
    for guess in 0..25 {
        let key = format!("pgk_{guess:016x}_{guess:064x}");
        let rejected = client.reset_limit(with(reset.clone(), &[("x-api-key", &key)])).await.unwrap_err();
        let wait = rejected.metadata().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
        assert_eq!(wait.is_some(), rejected.code() == Code::ResourceExhausted, "{rejected}");
        codes.push(rejected.code());
    }
    assert_eq!(codes[..20], [Code::Unauthenticated; 20]);
    assert_eq!(codes[20..], [Code::ResourceExhausted; 5]);
}

#[tokio::test]
async fn stream_of_a_revoked_key_ends() {
    let yaml = "server: {require_key: true}";
    let catalog = Catalog::open("sqlite::memory:").await.unwrap();
    let (key, secret) = catalog.create_key(&Actor::default(), "checker", "c", None).await.unwrap();
    let service = Service::serve(Client::with_catalog(yaml, catalog).await, yaml).await;
    let (sender, receiver) = mpsc::channel(1);
    let request = with(ReceiverStream::new(receiver), &[("x-api-key", &secret)]);
    let mut answers = service.limiter().check_stream(request).await.unwrap().into_inner();
    sender.send(check("u", "/")).await.unwrap();
    assert!(soon(answers.next()).await.unwrap().is_ok());
    let path = format!("/api/v1/keys/{}", key.key_id);
    assert_eq!(service.rest.admin(Method::DELETE, &path, Value::Null).await.status, 204);
    let end = soon(answers.next()).await.unwrap().unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Unauthenticated, "the API key was revoked"));
}
