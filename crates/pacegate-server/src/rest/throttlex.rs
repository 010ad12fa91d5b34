//! ThrottleX's API under `/admin`: policies, status, metrics and resets, with camel-case fields.
//! A policy is a rule named `policy` for one exact key.

pub(super) mod metrics;
pub(super) mod policies;
pub(super) mod reset;
pub(super) mod status;

use std::fmt::Display;
use std::time::Duration;

use axum::response::Response;
use hyper::header::{HeaderValue, LINK};
use pacegate::{Algorithm, Check, CheckError, Limit, Rule};
use pacegate_catalog::{PolicyDetail, StoredRule};

use crate::respond::ApiError;

/// The dimension of policy keys.
const DIMENSION: &str = "key";
/// Defaults of a policy.
const REFILL_RATE: u64 = 10;
const WINDOW_SECONDS: u64 = 60;

/// Returns whether a rule is a policy: its key has no other limit here, and ThrottleX's form can
/// express its numbers.
fn is_policy(rule: &Rule) -> bool {
    let window = rule.limit.window();
    let is_said = match rule.limit.algorithm().takes_burst() {
        true => window == Duration::from_secs(1),
        false => window.subsec_nanos() == 0,
    };
    is_said && rule.is_policy()
}

/// Returns the policies among `rules`, which are ordered by number: up to `limit` after the number
/// `after`, and where the next page starts.
fn page_of(rules: &[StoredRule], after: Option<i64>, limit: usize) -> (Vec<&StoredRule>, Option<i64>) {
    let mut found = rules
        .iter()
        .filter(|stored| after.is_none_or(|after| stored.number > after) && is_policy(&stored.rule));
    let policies: Vec<&StoredRule> = found.by_ref().take(limit).collect();
    let next = found.next().and(policies.last()).map(|last| last.number);
    (policies, next)
}

/// Returns ThrottleX's name of an algorithm; the sliding log has a different name there.
fn kind(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::SlidingLog => "SLIDING_WINDOW".to_owned(),
        other => other.name().to_ascii_uppercase(),
    }
}

/// Returns the window to show. A bucket shows the window it was given, or the default.
fn shown_window(limit: &Limit, policy: Option<PolicyDetail>) -> u64 {
    if limit.algorithm().takes_burst() {
        return policy.map_or(WINDOW_SECONDS, |own| own.window_seconds);
    }
    limit.window().as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}

/// Adds a `Link` to the next page, for lists without an envelope.
fn with_next(mut response: Response, path: &str, next: Option<impl Display>) -> Response {
    if let Some(next) = next
        && let Ok(link) = HeaderValue::try_from(format!("<{path}?cursor={next}>; rel=\"next\""))
    {
        response.headers_mut().insert(LINK, link);
    }
    response
}

/// The check of a policy's key: at `/`, which its rule covers like every other path.
fn check_of(key: &str) -> Check<'_> {
    Check::new(DIMENSION, key).endpoint("/")
}

/// The error of a check whose identifier is a policy key.
fn of_key(error: CheckError) -> ApiError {
    let mut error = ApiError::from(error);
    if let Some((field, _)) = error.details.as_mut().filter(|(field, _)| field == "user_id") {
        *field = "key".to_owned();
        error.message = error.message.replacen("user_id", "key", 1);
    }
    error
}
