//! The body of a denial in the service's format: its error object, and the fields of a denied
//! check.

use serde::Serialize;

use super::Denial;
use pacegate_http::headers::seconds_ceil;

#[derive(Serialize)]
struct Body<'a> {
    error: ErrorBody<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    decision: Option<DecisionBody<'a>>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: &'a str,
    details: Details,
    request_id: &'a str,
}

#[derive(Default, Serialize)]
struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// This and the following fields are those of the binding limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_at: Option<u64>,
}

/// The response of the service to a check, without the answers of the single limits.
#[derive(Serialize)]
struct DecisionBody<'a> {
    allowed: bool,
    limit: Option<u32>,
    remaining: Option<u32>,
    reset_at: Option<u64>,
    strategy: Option<&'static str>,
    state: &'static str,
    rule: Option<&'a str>,
    reason: Option<&'static str>,
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

pub(super) fn body(denial: &Denial<'_>) -> Vec<u8> {
    let message = denial.message();
    let details = denial.details();
    let (field, reason) = details.map_or((None, None), |(field, reason)| (Some(field), Some(reason)));
    let binding = denial.decision().and_then(|decision| decision.binding());
    let (limit, remaining) =
        (binding.map(|answer| answer.capacity), binding.and_then(|answer| answer.remaining));
    let reset_at = binding.and_then(|answer| answer.reset_at).map(|at| at.as_secs_ceil());
    let error = ErrorBody {
        code: denial.code(),
        message: &message,
        details: Details { field, reason, limit, remaining, reset_at },
        request_id: denial.request_id,
    };
    let decision = denial.decision().map(|decision| {
        // When an unavailable store recovers is unknown; only the `Retry-After` header suggests a
        // time.
        let wait = denial.retry_after.filter(|_| !matches!(denial.cause, super::Cause::FailedClosed(_)));
        DecisionBody {
            allowed: false,
            limit,
            remaining,
            reset_at,
            strategy: binding.map(|answer| answer.algorithm.name()),
            state: binding.map_or("normal", |answer| answer.standing.name()),
            rule: decision.binding_limit().map(|limit| &*limit.name),
            reason: Some(match binding.and_then(|answer| answer.reason) {
                Some(reason) => reason.name(),
                None => "QUEUE_FULL",
            }),
            degraded: decision.degraded(),
            retry_after: wait.map(seconds_ceil),
            retry_after_ms: wait
                .map(|wait| u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)),
        }
    });
    // Serialization of these types cannot fail.
    serde_json::to_vec(&Body { error, decision }).unwrap_or_default()
}
