//! The same history gets the same responses over gRPC and over REST, number by number.

use std::time::Duration;

use pacegate::store::Clock as _;
use pacegate_proto::v1::{CheckRequest, CheckResponse, LimitAnswer, QuotaRequest, ResetRequest, State};
use serde_json::{Map, Value, json};

use super::check;
use super::client::Client;
use super::service::{Service, with};

/// Returns a limit of each algorithm, and a chain of two.
fn rules() -> String {
    let algorithms =
        ["token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_log", "sliding_counter"];
    let rule = |algorithm: &str| {
        let burst =
            if ["token_bucket", "leaky_bucket", "gcra"].contains(&algorithm) { ", burst: 9" } else { "" };
        format!(
            "  - {{name: {algorithm}, dimension: user, endpoint: /{algorithm}, algorithm: {algorithm}, limit: 7, window: 10s{burst}}}\n"
        )
    };
    let chain = "  - {name: fast, dimension: user, endpoint: /chain, algorithm: gcra, limit: 3, window: 1s}\n  - {name: slow, dimension: user, endpoint: /chain, algorithm: sliding_log, limit: 8, window: 1m}\n  - {name: watch, dimension: user, endpoint: /chain, algorithm: fixed_window, limit: 2, window: 1m, mode: shadow}\n";
    format!("default_limit: none\nrules:\n{}{chain}", algorithms.map(rule).concat())
}

#[tokio::test]
async fn each_algorithm_returns_the_same_over_grpc_and_rest() {
    let service = Service::start(&rules()).await;
    let rest = Client::new(&rules());
    let mut client = service.limiter();
    let mut random = fastrand::Rng::with_seed(7);
    let endpoints =
        ["token_bucket", "leaky_bucket", "gcra", "fixed_window", "sliding_log", "sliding_counter", "chain"];
    let (mut allowed, mut denied) = (0, 0);
    for step in 0..1_400 {
        let pause = Duration::from_micros(random.u64(..600_000));
        service.rest.clock.advance(pause);
        rest.clock.advance(pause);
        let endpoint = format!("/{}", endpoints[step % endpoints.len()]);
        let (over_grpc, over_rest) = match random.u8(..20) {
            0 => {
                let request = ResetRequest {
                    identifier: "u".into(),
                    endpoint: endpoint.clone(),
                    ..ResetRequest::default()
                };
                let answer = client.reset_limit(with(request, &[("x-api-key", "secret")])).await.unwrap();
                let reset = rest.reset(&json!({"user_id": "u", "endpoint": endpoint})).await;
                assert_eq!(reset.status, 200);
                (json!(answer.into_inner().reset_at), json!(rest.clock.now().as_secs_ceil()))
            }
            1..5 => {
                let request = QuotaRequest {
                    identifier: "u".into(),
                    endpoint: endpoint.clone(),
                    with_limits: true,
                    ..QuotaRequest::default()
                };
                let answer = client.get_remaining_quota(request).await.unwrap().into_inner();
                let status = rest.get(&format!("/v1/rate-limit/status/u{endpoint}")).await;
                (as_rest(&answer.check.unwrap()), comparable(status.body))
            }
            _ => {
                let cost = random.u32(1..4);
                let request = CheckRequest { cost, with_limits: true, ..check("u", &endpoint) };
                let answer = client.check_rate_limit(request).await.unwrap().into_inner();
                *if answer.allowed { &mut allowed } else { &mut denied } += 1;
                let body = json!({"user_id": "u", "endpoint": endpoint, "cost": cost});
                (as_rest(&answer), comparable(rest.check(&body).await.body))
            }
        };
        assert_eq!(over_grpc, over_rest, "step {step} at {endpoint}");
    }
    assert!(allowed > 200 && denied > 200, "{allowed} and {denied}");
}

/// Returns a REST body without the fields that repeat the request.
fn comparable(mut body: Value) -> Value {
    for name in ["user_id", "endpoint", "usage_percentage"] {
        body.as_object_mut().unwrap().remove(name);
    }
    body
}

fn object(fields: impl IntoIterator<Item = (&'static str, Value)>, optional: &[(&str, Value)]) -> Value {
    let mut object: Map<String, Value> =
        fields.into_iter().map(|(name, value)| (name.into(), value)).collect();
    for (name, value) in optional.iter().filter(|(_, value)| !value.is_null() && *value != false) {
        object.insert((*name).into(), value.clone());
    }
    object.into()
}

fn text(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.into() }
}

fn state(state: i32) -> String {
    State::try_from(state).unwrap().as_str_name().to_lowercase()
}

/// Converts a gRPC response to the REST body.
fn as_rest(answer: &CheckResponse) -> Value {
    object(
        [
            ("allowed", answer.allowed.into()),
            ("limit", answer.limit.into()),
            ("remaining", answer.remaining.into()),
            ("reset_at", answer.reset_at.into()),
            ("strategy", text(&answer.algorithm)),
            ("current_count", answer.current_count.into()),
            ("state", state(answer.state).into()),
            ("rule", text(&answer.rule)),
            ("reason", text(&answer.reason)),
            ("degraded", answer.degraded.into()),
            (
                "limits",
                answer.limits.iter().map(|limit| limit_as_rest(limit, answer.decided_at_us)).collect(),
            ),
        ],
        &[
            ("retry_after", answer.retry_after.into()),
            ("retry_after_ms", answer.retry_after_ms.into()),
            ("delay_ms", answer.delay_ms.into()),
            ("queue_position", answer.queue_position.into()),
            ("replayed", answer.replayed.into()),
        ],
    )
}

fn limit_as_rest(answer: &LimitAnswer, decided_at_us: u64) -> Value {
    let limit = answer.limit.clone().unwrap();
    let wait = answer.retry_at_us.map(|at| (at - decided_at_us).div_ceil(1_000));
    object(
        [
            ("rule", answer.rule.clone().into()),
            ("dimension", answer.dimension.clone().into()),
            ("allowed", answer.allowed.into()),
            ("limit", limit.burst.into()),
            ("remaining", answer.remaining.into()),
            ("reset_at", answer.reset_at_us.map(|at| at.div_ceil(1_000_000)).into()),
            ("strategy", limit.algorithm.into()),
            ("quota", limit.quota.into()),
            ("window_seconds", (limit.window_us / 1_000_000).into()),
            ("state", state(answer.state).into()),
            ("reason", text(&answer.reason)),
        ],
        &[
            ("retry_after_ms", wait.into()),
            ("shadow", answer.shadow.into()),
            ("degraded", answer.degraded.into()),
        ],
    )
}
