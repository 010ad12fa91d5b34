//! `POST /v1/rate-limit/check`: decides whether a request is within its limits.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Request, StatusCode};
use pacegate::Decision;

use super::answer::{CheckAnswer, CheckResponse, MinimalResponse};
use super::wire::CheckRequest;
use super::{json, read_json, written};
use crate::ad_hoc::SLIDING_WINDOW;
use crate::app::Shared;
use crate::auth::Need;
use crate::openapi::vocabulary::IdempotencyKey;
use crate::peer::{Peer, peer};
use crate::pipeline::Caller;
use crate::respond::{ApiError, Code};
use pacegate_http::headers::write_retry_after;
use pacegate_http::request_id::request_id;

/// `Retry-After` in seconds while a store is unavailable: stores are probed at least this often.
const STORE_RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const MINIMAL: &str = "return=minimal";

/// Check a request against its rate limits
///
/// Finds every limit that applies, and charges all of them or none.
#[utoipa::path(
    post,
    path = "/v1/rate-limit/check",
    operation_id = "check",
    tag = "Checks",
    security((), ("api_key" = []), ("bearer" = [])),
    params(
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Same as `idempotency_key` in the body. If both are sent, they must be equal."),
        ("X-Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Alias of `Idempotency-Key`."),
        ("Prefer" = Option<String>, Header, description = "`return=minimal` (RFC 7240) returns the decision, the remaining quota and when to retry, without the results by limit and without rate limit headers."),
    ),
    request_body = CheckRequest,
    responses(
        (status = 200, description = "Allowed and charged.", body = CheckAnswer),
        (status = 422, description = "The idempotency key was used with a different request."),
        (status = 429, description = "Rate limit exceeded; nothing was charged.", body = CheckAnswer),
        (status = 503, description = "Denied, because a store is unavailable and the limit fails closed; or not decided, because the node is overloaded (`OVERLOADED`).", body = CheckResponse),
    )
)]
pub(crate) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let peer = peer(&request).cloned();
    check_from(&shared, request, peer.as_ref()).await
}

/// Handles a request from `peer` that is known to be a check.
pub(crate) async fn check_from<B: hyper::body::Body<Data = Bytes>>(
    shared: &Shared,
    request: Request<B>,
    peer: Option<&Peer>,
) -> Result<Response, ApiError> {
    shared.gate.admit_check(request.headers(), peer, Need::Check).await?;
    let (headers, body) = read_json(shared, request, peer).await?;
    // After the body is read: a slow body must not count as an unanswered check.
    let _unanswered = shared.overload.accept()?;
    let request = CheckRequest::parse(&body)?;
    let decision = shared.decide(&request, Caller { headers: &headers, peer }).await?;
    if prefers_minimal(&headers) && !decision.failed_closed() {
        return Ok(minimal(&decision));
    }
    let mut body = CheckResponse::new(&decision).uses_sliding_window(request.uses_sliding_window());
    if decision.allowed() {
        return Ok(answer(shared, StatusCode::OK, &decision, &body));
    }
    if !decision.failed_closed() {
        let mut response = answer(shared, StatusCode::TOO_MANY_REQUESTS, &decision, &body);
        write_retry_after(&decision, response.headers_mut());
        return Ok(response);
    }
    let message = "store unavailable; this limit fails closed";
    let error = ApiError::new(Code::ServiceUnavailable, message);
    body.error = Some(error.envelope(request_id(&headers)).error);
    let mut response = answer(shared, error.code.status(), &decision, &body);
    response.headers_mut().insert(RETRY_AFTER, STORE_RETRY_AFTER);
    Ok(response)
}

/// Returns whether a client prefers a short response (RFC 7240).
fn prefers_minimal(headers: &HeaderMap) -> bool {
    let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(','));
    preferences.any(|preference| preference.trim().eq_ignore_ascii_case(MINIMAL))
}

/// Returns a short response: the decision, the remaining quota and when to retry.
fn minimal(decision: &Decision) -> Response {
    let status = if decision.allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = json(status, &MinimalResponse::new(decision));
    let headers = response.headers_mut();
    headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(MINIMAL));
    if !decision.allowed() {
        write_retry_after(decision, headers);
    }
    response
}

/// Returns the response to a decision, with its body and headers.
pub(super) fn answer(
    shared: &Shared,
    status: StatusCode,
    decision: &Decision,
    body: &CheckResponse<'_>,
) -> Response {
    let mut response = written(status, body.to_json());
    shared.families.write(decision, response.headers_mut());
    // Use the client's name for the sliding log.
    if body.strategy() == Some(SLIDING_WINDOW)
        && let Some(strategy) = response.headers_mut().get_mut("x-ratelimit-strategy")
    {
        *strategy = HeaderValue::from_static(SLIDING_WINDOW);
    }
    response
}
