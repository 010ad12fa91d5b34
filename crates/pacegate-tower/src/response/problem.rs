//! The body of a denial as RFC 9457 problem details, with the problem types of
//! draft-ietf-httpapi-ratelimit-headers.

use pacegate::Decision;
use serde::Serialize;

use super::{Cause, Denial};
use pacegate_http::headers::{policy_name, seconds_ceil};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<String>,
    /// This and the following fields are those of the binding limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
}

pub(super) fn body(denial: &Denial<'_>) -> Vec<u8> {
    let detail = denial.message();
    let (r#type, title) = match denial.cause {
        Cause::Limited(_) | Cause::QueueFull(_) => {
            (QUOTA_EXCEEDED, "Request cannot be satisfied as assigned quota has been exceeded")
        }
        Cause::FailedClosed(_) => {
            (REDUCED_CAPACITY, "Request cannot be satisfied due to temporary server capacity constraints")
        }
        _ => ("about:blank", denial.status().canonical_reason().unwrap_or_default()),
    };
    let binding = denial.decision().and_then(|decision| decision.binding());
    let problem = Problem {
        r#type,
        title,
        status: denial.status().as_u16(),
        detail: &detail,
        violated_policies: violated(denial),
        limit: binding.map(|answer| answer.capacity),
        remaining: binding.and_then(|answer| answer.remaining),
        reset_at: binding.and_then(|answer| answer.reset_at).map(|at| at.as_secs_ceil()),
        retry_after: denial.retry_after.map(seconds_ceil),
        request_id: denial.request_id,
    };
    // Serialization of these types cannot fail.
    serde_json::to_vec(&problem).unwrap_or_default()
}

/// The exceeded policies, by their names in `RateLimit-Policy`.
fn violated(denial: &Denial<'_>) -> Vec<String> {
    let names = |decision: &Decision, violates: &dyn Fn(usize) -> bool| {
        let indices = (0..decision.answers().len()).filter(|index| violates(*index));
        indices.map(|index| policy_name(decision, index)).collect()
    };
    match denial.cause {
        // The limit allows the request, so it is the queue of the binding limit.
        Cause::QueueFull(decision) => names(decision, &|index| index == decision.binding_index()),
        Cause::Limited(decision) | Cause::FailedClosed(decision) => names(decision, &|index| {
            let answer = &decision.answers()[index];
            !answer.allowed && !answer.shadow
        }),
        Cause::Unresolved(_) | Cause::Failed(_) => Vec::new(),
    }
}
