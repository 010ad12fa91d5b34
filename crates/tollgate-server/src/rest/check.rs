//! `POST /v1/rate-limit/check`: may this request pass?

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use tollgate::Decision;

use super::answer::CheckResponse;
use super::wire::{CheckRequest, idempotency_key};
use super::{json, read_json};
use crate::app::Shared;
use crate::headers::write_retry_after;
use crate::respond::ApiError;

pub(crate) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (headers, body) = read_json(request).await?;
    let request = CheckRequest::parse(&body)?;
    let key = idempotency_key(request.idempotency_key.as_deref(), &headers)?;
    let mut check = request.check(&shared.limiter)?;
    if let Some(key) = key {
        let caller = check.identity();
        check = check.idempotency(caller, key);
    }
    let decision = shared.limiter.check(&check).await.map_err(|error| request.explain(error))?;
    report_transitions(&decision);
    let status = if decision.allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let mut response = answer(&shared, status, &decision, &CheckResponse::new(&decision));
    if !decision.allowed {
        write_retry_after(&decision, response.headers_mut());
    }
    Ok(response)
}

/// A decision with its body and headers.
pub(super) fn answer(
    shared: &Shared,
    status: StatusCode,
    decision: &Decision,
    body: &CheckResponse<'_>,
) -> Response {
    let mut response = json(status, body);
    shared.families.write(decision, response.headers_mut());
    response
}

/// A key that changes between normal, warning and throttled is an event worth a line; identifiers stay out of it.
pub(super) fn report_transitions(decision: &Decision) {
    if !decision.allowed || decision.replayed {
        return;
    }
    for (limit, answer) in decision.limits().iter().zip(&decision.answers) {
        if answer.allowed && answer.standing != answer.previous_standing {
            let (from, to) = (answer.previous_standing.name(), answer.standing.name());
            tracing::debug!(rule = &*limit.name, from, to, "a key changed its state");
        }
    }
}
