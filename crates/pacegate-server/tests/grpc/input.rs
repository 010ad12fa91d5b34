//! Invalid messages return a status that names the field, and charge nothing.

use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{
    BatchCheckRequest, CheckRequest, Error, Identity, Limit, QuotaRequest, ResetRequest,
};
use tokio_stream::StreamExt;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status};

use super::check;
use super::client::RULES;
use super::service::{Service, soon, with};

fn long(length: usize) -> String {
    "x".repeat(length)
}

fn identity(dimension: i32, custom: &str, identifier: &str) -> Identity {
    Identity { identifier: identifier.into(), dimension, custom_dimension: custom.into() }
}

fn limit(algorithm: &str, quota: u32, window_us: u64, burst: u32) -> Option<Limit> {
    Some(Limit { algorithm: algorithm.into(), quota, window_us, burst })
}

/// Returns invalid checks, with the error code and the field.
fn wrong() -> Vec<(CheckRequest, &'static str, &'static str)> {
    let base = || check("u", "/x");
    let input = "INVALID_INPUT";
    let also = |also: Vec<Identity>| CheckRequest { also, ..base() };
    let own = |limit: Option<Limit>| CheckRequest { limit, ..base() };
    let words: Vec<String> = (0..16).map(|number| format!("d{number}")).collect();
    let many = words.iter().map(|word| identity(0, word, "x")).collect();
    vec![
        (check("", "/x"), input, "identifier"),
        (check(&long(1_025), "/x"), input, "identifier"),
        (check("a\nb", "/x"), input, "identifier"),
        (CheckRequest { dimension: 4, ..base() }, input, "dimension"),
        (CheckRequest { dimension: -1, ..base() }, input, "dimension"),
        (CheckRequest { dimension: 2, custom_dimension: "ip".into(), ..base() }, input, "custom_dimension"),
        (CheckRequest { custom_dimension: "two words".into(), ..base() }, input, "custom_dimension"),
        (CheckRequest { custom_dimension: long(65), ..base() }, input, "custom_dimension"),
        (check("u", ""), input, "endpoint"),
        (check("u", &format!("/{}", long(2_048))), input, "endpoint"),
        (check("u", "/a\u{7}"), input, "endpoint"),
        (CheckRequest { cost: 1_000_000_001, ..base() }, input, "cost"),
        (CheckRequest { cost: u32::MAX, ..base() }, input, "cost"),
        (CheckRequest { method: "G T".into(), ..base() }, input, "method"),
        (CheckRequest { method: long(33), ..base() }, input, "method"),
        (also(many), input, "also"),
        (also(vec![identity(1, "", "v")]), input, "also"),
        (also(vec![identity(2, "", "192.0.2.1"), identity(0, "ip", "192.0.2.2")]), input, "also"),
        (also(vec![identity(0, "USER", "v")]), input, "also"),
        (also(vec![identity(2, "", "office")]), input, "also[0].identifier"),
        (also(vec![identity(0, "IP", "office")]), input, "also[0].identifier"),
        (CheckRequest { custom_dimension: "Tenant".into(), ..base() }, input, "custom_dimension"),
        (also(vec![identity(2, "", "")]), input, "also[0].identifier"),
        (also(vec![identity(2, "", "192.0.2.1"), identity(3, "", "a\0")]), input, "also[1].identifier"),
        (also(vec![identity(9, "", "1")]), input, "also[0].dimension"),
        (also(vec![identity(2, "ip", "1")]), input, "also[0].custom_dimension"),
        (also(vec![identity(2, "", "192.0.2.1"), identity(0, "ü", "1")]), input, "also[1].custom_dimension"),
        (CheckRequest { plans: vec!["gold".into(); 17], ..base() }, input, "plans"),
        (CheckRequest { plans: vec!["silver".into()], ..base() }, input, "plans"),
        (CheckRequest { plans: vec!["gold".into(); 2], ..base() }, input, "plans"),
        (CheckRequest { plans: vec![String::new()], ..base() }, input, "plans"),
        (own(limit("leaky", 1, 1_000_000, 0)), "INVALID_STRATEGY", "limit.algorithm"),
        (own(limit("", 0, 0, 0)), "INVALID_LIMIT", "limit.quota"),
        (CheckRequest { tier: "a\nb".into(), ..base() }, input, "tier"),
        (own(limit("", 1_000_000_001, 1_000_000, 0)), "INVALID_LIMIT", "limit.quota"),
        (own(limit("sliding_log", 1_000_001, 1_000_000, 0)), "INVALID_LIMIT", "limit.quota"),
        (own(limit("", 1, 999, 0)), "INVALID_LIMIT", "limit.window_us"),
        (own(limit("", 1, u64::MAX, 0)), "INVALID_LIMIT", "limit.window_us"),
        (own(limit("", 1, 1_000_000, 1_000_000_001)), "INVALID_LIMIT", "limit.burst"),
        (own(limit("fixed_window", 1, 1_000_000, 2)), "INVALID_LIMIT", "limit.burst"),
        (CheckRequest { idempotency_key: long(256), ..base() }, input, "idempotency_key"),
        (CheckRequest { idempotency_key: "a\tb".into(), ..base() }, input, "idempotency_key"),
    ]
}

/// Returns the quota request with the fields of a check.
fn as_quota(check: &CheckRequest) -> QuotaRequest {
    let check = check.clone();
    QuotaRequest {
        identifier: check.identifier,
        dimension: check.dimension,
        endpoint: check.endpoint,
        custom_dimension: check.custom_dimension,
        method: check.method,
        plans: check.plans,
        limit: check.limit,
        with_limits: false,
        also: check.also,
        cost: check.cost,
        tier: check.tier,
        costs: check.costs,
    }
}

fn as_reset(check: &CheckRequest) -> ResetRequest {
    let check = check.clone();
    ResetRequest {
        identifier: check.identifier,
        dimension: check.dimension,
        endpoint: check.endpoint,
        custom_dimension: check.custom_dimension,
        method: check.method,
        plans: check.plans,
        also: check.also,
        limit: check.limit,
        tier: check.tier,
    }
}

fn assert_names(status: &Status, field: &str, request: &CheckRequest) {
    assert_eq!(status.code(), Code::InvalidArgument, "{request:?}: {status}");
    let message = status.message();
    assert!(message.starts_with(&format!("{field}: ")), "{field}: {request:?}: {message}");
    assert!(message.len() > field.len() + 5 && message.len() < 300, "{message}");
}

#[tokio::test]
async fn every_method_names_the_invalid_field() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    for (request, _, field) in wrong() {
        let rejected = client.check_rate_limit(request.clone()).await.unwrap_err();
        assert_names(&rejected, field, &request);
        if !["cost", "idempotency_key"].contains(&field) {
            let rejected = client.get_remaining_quota(as_quota(&request)).await.unwrap_err();
            assert_names(&rejected, field, &request);
        }
        // A reset accepts duplicate plans.
        let twice = request.plans == ["gold", "gold"];
        if !["cost", "idempotency_key"].contains(&field) && !field.starts_with("limit") && !twice {
            let reset = with(as_reset(&request), &[("x-api-key", "secret")]);
            assert_names(&client.reset_limit(reset).await.unwrap_err(), field, &request);
        }
    }
    let untouched = client.get_remaining_quota(as_quota(&check("u", "/x"))).await.unwrap().into_inner();
    assert_eq!(untouched.remaining, Some(100));
}

fn assert_error(outcome: Option<Outcome>, code: &str, field: &str) {
    let Some(Outcome::Error(Error { code: found, message, field: named })) = outcome else {
        panic!("{field}: {outcome:?}")
    };
    assert_eq!((found.as_str(), named.as_str()), (code, field), "{message}");
    assert!(message.starts_with(&format!("{field}: ")), "{message}");
}

#[tokio::test]
async fn invalid_check_of_a_batch_is_an_error_in_its_place() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let wrong = wrong();
    let mixed = || wrong.iter().flat_map(|(request, _, _)| [request.clone(), check("good", "/x")]);
    let batch = BatchCheckRequest { checks: mixed().collect(), ..BatchCheckRequest::default() };
    let results = client.batch_check(batch).await.unwrap().into_inner().results;
    let stream = client.check_stream(tokio_stream::iter(mixed().collect::<Vec<_>>())).await.unwrap();
    let streamed: Vec<_> = soon(stream.into_inner().collect()).await;
    assert_eq!((results.len(), streamed.len()), (2 * wrong.len(), 2 * wrong.len()));
    for (round, results) in [results, streamed.into_iter().map(Result::unwrap).collect()].iter().enumerate() {
        for (place, (_, code, field)) in wrong.iter().enumerate() {
            assert_error(results[2 * place].result.clone(), code, field);
            let Some(Outcome::Response(good)) = &results[2 * place + 1].result else { panic!("{field}") };
            let before = u32::try_from(round * wrong.len() + place + 1).unwrap();
            assert_eq!(good.remaining, Some(100 - before), "{field}");
        }
    }
    let untouched = client.get_remaining_quota(as_quota(&check("u", "/x"))).await.unwrap().into_inner();
    assert_eq!(untouched.remaining, Some(100));
}

#[tokio::test]
async fn too_large_message_is_rejected() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let fits = BatchCheckRequest {
        checks: (0..250).map(|number| check(&format!("{number:0>1000}"), "/x")).collect(),
        ..BatchCheckRequest::default()
    };
    assert_eq!(client.batch_check(fits).await.unwrap().into_inner().results.len(), 250);
    let large = CheckRequest { identifier: long(256 * 1024), ..check("", "/x") };
    let rejected = client.check_rate_limit(large.clone()).await.unwrap_err();
    assert_eq!(rejected.code(), Code::OutOfRange, "{rejected}");
    let stream = client.check_stream(tokio_stream::iter([check("u", "/x"), large])).await.unwrap();
    let mut answers = stream.into_inner();
    assert!(soon(answers.next()).await.unwrap().is_ok());
    assert_eq!(soon(answers.next()).await.unwrap().unwrap_err().code(), Code::OutOfRange);
    assert!(client.check_rate_limit(check("u", "/x")).await.is_ok(), "the connection stays usable");
}

#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let service = Service::start("").await;
    for path in [
        "/pacegate.v1.RateLimiter/CheckEverything",
        "/pacegate.v2.RateLimiter/CheckRateLimit",
        "/envoy.service.ratelimit.v3.RateLimitService/Nothing",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/grpc.health.v1.Health/Nothing",
        "/Nothing",
        "/",
    ] {
        let mut grpc = tonic::client::Grpc::new(service.channel());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<CheckRequest, CheckRequest>::default();
        let path = PathAndQuery::from_static(path);
        let rejected =
            grpc.unary(tonic::Request::new(check("u", "/")), path.clone(), codec).await.unwrap_err();
        assert_eq!(rejected.code(), Code::Unimplemented, "{path}: {rejected}");
    }
}
