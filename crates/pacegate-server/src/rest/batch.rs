//! `POST /v1/rate-limit/batch-check`: many checks in one request, each decided independently.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{HeaderMap, Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::answer::CheckResponse;
use super::decode::read_object;
use super::wire::CheckRequest;
use super::{read_json, written};
use crate::app::Shared;
use crate::auth::Need;
use crate::openapi::vocabulary::IdempotencyKey;
use crate::peer::{Peer, batch_permit, peer};
use crate::pipeline::Caller;
use crate::pipeline::batch::{Batch, check_size, yield_after_some};
use crate::respond::{ApiError, Envelope};
use pacegate_http::request_id::request_id;
use pacegate_http::server::Gathered;

/// Checks, each decided independently.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BatchRequest<'a> {
    /// Decoded one by one, so that an invalid check affects only its own result.
    #[serde(borrow, default)]
    #[schema(value_type = Vec<Object>, required = true, min_items = 1, max_items = 1000)]
    checks: Vec<&'a RawValue>,
    /// The idempotency key of the whole batch.
    #[serde(borrow, default)]
    #[schema(value_type = Option<IdempotencyKey>)]
    idempotency_key: Option<Cow<'a, str>>,
}

/// Minimum size of a check: it has at least an identity and an endpoint.
const CHECK_BYTES_MIN: usize = 32;

/// The results, in the order of the checks.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes the response, which is written result by result")]
struct BatchResponse<'a> {
    results: Vec<ItemResponse<'a>>,
}

/// The decision for one check of a batch, or its error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = BatchItem)]
enum ItemResponse<'a> {
    Decided(Box<CheckResponse<'a>>),
    Failed {
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        user_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        endpoint: Option<&'a str>,
        #[serde(flatten)]
        error: Envelope<'a>,
    },
}

/// Check a batch
///
/// Each check is decided independently. An invalid check returns an error in its place in the
/// results; the others are still decided.
#[utoipa::path(
    post,
    path = "/v1/rate-limit/batch-check",
    operation_id = "batch_check",
    tag = "Checks",
    security((), ("api_key" = []), ("bearer" = [])),
    params(
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Same as `idempotency_key` in the body. If both are sent, they must be equal."),
        ("X-Idempotency-Key" = Option<IdempotencyKey>, Header, description = "Alias of `Idempotency-Key`."),
    ),
    request_body = BatchRequest,
    responses(
        (status = 200, description = "One result per check, in order.", body = BatchResponse),
        (status = 422, description = "The idempotency key was used with a different batch."),
    )
)]
pub(super) async fn batch_check(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let peer = peer(&request).cloned();
    shared.gate.admit_check(request.headers(), peer.as_ref(), Need::Check).await?;
    let (headers, body) = read_json(&shared, request, peer.as_ref()).await?;
    let _permit = batch_permit(peer.as_ref()).await;
    // An estimate: the number of checks is not known before the body is parsed.
    let checks = body.len() / CHECK_BYTES_MIN;
    let work = decide_batch(shared.clone(), headers, body, peer);
    shared.batches.run(checks, work).await
}

async fn decide_batch(
    shared: Arc<Shared>,
    headers: HeaderMap,
    body: Gathered,
    peer: Option<Peer>,
) -> Result<Response, ApiError> {
    let batch: BatchRequest<'_> = read_object(&body)?;
    check_size(batch.checks.len())?;
    let mut requests: Vec<Result<CheckRequest<'_>, ApiError>> = Vec::with_capacity(batch.checks.len());
    for (index, item) in batch.checks.iter().enumerate() {
        yield_after_some(index).await;
        requests.push(CheckRequest::parse(item.get().as_bytes()));
    }
    let checks = Batch { messages: &requests, key: batch.idempotency_key.as_deref(), body: &body };
    let results = shared.decide_each(checks, Caller { headers: &headers, peer: peer.as_ref() }).await?;
    // Written one by one, so that other tasks can run in between.
    let mut body = br#"{"results":["#.to_vec();
    for (index, (result, request)) in results.iter().zip(&requests).enumerate() {
        yield_after_some(index).await;
        let request = request.as_ref().ok();
        let user_id = request.and_then(|request| request.user_id.as_deref());
        let endpoint = request.and_then(|request| request.endpoint.as_deref());
        let item = match result {
            Ok(decision) => {
                let uses_alias = request.is_some_and(CheckRequest::uses_sliding_window);
                let mut body = CheckResponse::new(decision).uses_sliding_window(uses_alias);
                (body.user_id, body.endpoint) = (user_id, endpoint);
                ItemResponse::Decided(Box::new(body))
            }
            Err(error) => {
                ItemResponse::Failed { user_id, endpoint, error: error.envelope(request_id(&headers)) }
            }
        };
        if index > 0 {
            body.push(b',');
        }
        if let Err(error) = serde_json::to_writer(&mut body, &item) {
            return Ok(written(StatusCode::OK, Err(error)));
        }
    }
    body.extend_from_slice(b"]}");
    Ok(written(StatusCode::OK, Ok(body)))
}
