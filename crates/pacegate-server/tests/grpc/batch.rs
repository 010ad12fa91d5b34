//! Batches of checks.

use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest, CheckResponse, CheckResult};
use tonic::Code;

use super::check;
use super::client::RULES;
use super::service::{Service, with};

fn batch(checks: Vec<CheckRequest>, key: &str) -> BatchCheckRequest {
    BatchCheckRequest { checks, idempotency_key: key.into(), ..BatchCheckRequest::default() }
}

fn responses(results: Vec<CheckResult>) -> Vec<CheckResponse> {
    let response = |result: CheckResult| match result.result {
        Some(Outcome::Response(response)) => response,
        other => panic!("{other:?}"),
    };
    results.into_iter().map(response).collect()
}

fn costs(costs: &[u32]) -> Vec<CheckRequest> {
    costs.iter().map(|cost| CheckRequest { cost: *cost, ..check("u", "/x") }).collect()
}

#[tokio::test]
async fn results_are_in_the_order_of_the_checks() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let checks: Vec<CheckRequest> = (0..1_000)
        .map(|place| CheckRequest { cost: place % 90 + 1, ..check(&format!("u{place}"), "/x") })
        .collect();
    let results = client.batch_check(batch(checks, "")).await.unwrap().into_inner().results;
    let remaining: Vec<u32> = responses(results).iter().map(|response| response.remaining.unwrap()).collect();
    assert_eq!(remaining, (0..1_000).map(|place| 99 - place % 90).collect::<Vec<u32>>());

    let mut last = costs(&[60, 50, 40]);
    last[2].with_limits = true;
    let results = responses(client.batch_check(batch(last, "")).await.unwrap().into_inner().results);
    let found: Vec<(bool, Option<u32>, usize)> =
        results.iter().map(|each| (each.allowed, each.remaining, each.limits.len())).collect();
    assert_eq!(found, [(true, Some(40), 0), (false, Some(40), 0), (true, Some(0), 1)]);
    assert_eq!(results[1].retry_after, Some(1));
}

#[tokio::test]
async fn batch_has_between_one_and_a_thousand_checks() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    for count in [0, 1_001] {
        let rejected = client.batch_check(batch(vec![check("u", "/x"); count], "")).await.unwrap_err();
        assert_eq!(rejected.code(), Code::InvalidArgument);
        assert_eq!(rejected.message(), format!("checks: must have between 1 and 1000 entries, got {count}"));
    }
    let first = client.check_rate_limit(check("u", "/x")).await.unwrap().into_inner();
    assert_eq!(first.remaining, Some(99), "nothing was charged");
}

#[tokio::test]
async fn batch_with_a_key_is_repeatable_and_another_batch_is_rejected() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    for replayed in [false, true] {
        let results = client.batch_check(batch(costs(&[3, 4]), "k")).await.unwrap().into_inner().results;
        let found: Vec<(Option<u32>, bool)> =
            responses(results).iter().map(|each| (each.remaining, each.replayed)).collect();
        assert_eq!(found, [(Some(97), replayed), (Some(93), replayed)]);
    }
    let from_metadata = with(batch(costs(&[3, 4]), ""), &[("x-idempotency-key", "k")]);
    let results = responses(client.batch_check(from_metadata).await.unwrap().into_inner().results);
    assert!(results.iter().all(|each| each.replayed), "the key may be in the message or in the metadata");
    let mut later = costs(&[3, 4]);
    later[0].timestamp = 1_790_000_000_000;
    let results = responses(client.batch_check(batch(later, "k")).await.unwrap().into_inner().results);
    assert!(results.iter().all(|each| each.replayed), "timestamps are not part of the request");

    for (other, key) in [(costs(&[3, 5]), "k"), (costs(&[4, 3]), "k")] {
        let rejected = client.batch_check(batch(other, key)).await.unwrap_err();
        assert_eq!(rejected.code(), Code::FailedPrecondition, "{rejected}");
        assert!(rejected.message().starts_with("idempotency_key: "), "{rejected}");
    }
    let disagreeing = with(batch(costs(&[3, 4]), "k"), &[("x-idempotency-key", "other")]);
    assert_eq!(client.batch_check(disagreeing).await.unwrap_err().code(), Code::InvalidArgument);
    let too_long = client.batch_check(batch(costs(&[1]), &"k".repeat(256))).await.unwrap_err();
    assert_eq!(too_long.code(), Code::InvalidArgument);
    assert!(too_long.message().starts_with("idempotency_key: "), "{too_long}");
    let first = client.check_rate_limit(check("u", "/x")).await.unwrap().into_inner();
    assert_eq!(first.remaining, Some(92), "7 for the batch, once, and 1");
}

#[tokio::test]
async fn check_of_a_batch_can_have_its_own_key() {
    let service = Service::start(RULES).await;
    let mut client = service.limiter();
    let keyed = CheckRequest { idempotency_key: "own".into(), ..check("u", "/x") };
    client.check_rate_limit(keyed.clone()).await.unwrap();
    let mismatched = CheckRequest { cost: 9, ..keyed.clone() };
    let checks = vec![keyed, check("u", "/x"), mismatched];
    let results = client.batch_check(batch(checks, "")).await.unwrap().into_inner().results;
    let Some(Outcome::Error(error)) = &results[2].result else { panic!("{results:?}") };
    assert_eq!((error.code.as_str(), error.field.as_str()), ("IDEMPOTENCY_MISMATCH", "idempotency_key"));
    let found: Vec<(Option<u32>, bool)> =
        responses(results[..2].to_vec()).iter().map(|each| (each.remaining, each.replayed)).collect();
    assert_eq!(found, [(Some(99), true), (Some(98), false)]);
}
