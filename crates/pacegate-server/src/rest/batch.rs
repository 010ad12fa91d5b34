//! `POST /v1/rate-limit/batch-check`: many checks in one request, each decided on its own.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use futures_util::future::join_all;
use hyper::{HeaderMap, Request, StatusCode};
use pacegate::Check;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::answer::CheckResponse;
use super::wire::{CheckRequest, Kind, idempotency_key, read_object};
use super::{read_json, written};
use crate::app::Shared;
use crate::auth::Need;
use crate::batch::{CHECKS_MAX, Item, Sent, between, decide, identities};
use crate::bodies::Gathered;
use crate::openapi::vocabulary::IdempotencyKey;
use crate::peer::{Peer, batch_place, peer};
use crate::respond::{ApiError, Envelope};
use pacegate_http::request_id::request_id;

/// Many checks, each decided on its own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BatchRequest<'a> {
    /// Read one by one, so that a bad one spoils only its own answer.
    #[serde(borrow)]
    #[schema(value_type = Vec<Object>, min_items = 1, max_items = 1000)]
    checks: Vec<&'a RawValue>,
    /// For the whole batch.
    #[serde(borrow, default)]
    #[schema(value_type = Option<IdempotencyKey>)]
    idempotency_key: Option<Cow<'a, str>>,
}

/// A check has at least an identity and an endpoint.
const CHECK_BYTES_MIN: usize = 32;

const FIELDS: [(&str, Kind); 2] = [("checks", Kind::List), ("idempotency_key", Kind::Text)];

/// The answers, in the order of the checks.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it describes the answer, which is written one by one")]
struct BatchResponse<'a> {
    results: Vec<ItemResponse<'a>>,
}

/// The answer to one check of a batch, or what is wrong with it.
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

/// Many checks in one request
///
/// Each is decided on its own; a bad one is an error in its place, and the rest are answered.
#[utoipa::path(
    post,
    path = "/v1/rate-limit/batch-check",
    operation_id = "batch_check",
    tag = "Checks",
    security((), ("api_key" = []), ("bearer" = [])),
    params(
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "as `idempotency_key` in the body, which must agree"),
        ("X-Idempotency-Key" = Option<IdempotencyKey>, Header, description = "the same, by its older name"),
    ),
    request_body = BatchRequest,
    responses(
        (status = 200, description = "An answer for each check, in their order.", body = BatchResponse),
        (status = 422, description = "The idempotency key came with another batch."),
    )
)]
pub(super) async fn batch_check(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let peer = peer(&request).cloned();
    shared.gate.admit_check(request.headers(), peer.as_ref(), Need::Check).await?;
    let (headers, body) = read_json(&shared, request, peer.as_ref()).await?;
    let _place = batch_place(peer.as_ref()).await;
    // How many checks it has is not known before it is read.
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
    let batch: BatchRequest<'_> = read_object(&body, &FIELDS)?;
    if !(1..=CHECKS_MAX).contains(&batch.checks.len()) {
        return Err(ApiError::input("checks", format!("must have 1 to {CHECKS_MAX} items")));
    }
    let key = idempotency_key(batch.idempotency_key.as_deref(), &headers)?;
    let mut requests: Vec<Result<CheckRequest<'_>, ApiError>> = Vec::with_capacity(batch.checks.len());
    for (index, item) in batch.checks.iter().enumerate() {
        between(index).await;
        requests.push(CheckRequest::parse(item.get().as_bytes()));
    }
    let mut checks: Vec<Result<Check<'_>, ApiError>> = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        between(index).await;
        checks.push(match request {
            Ok(request) => {
                shared.skew.observe(request.timestamp);
                request.check(&shared)
            }
            Err(error) => Err(error.clone()),
        });
    }
    let _unanswered = shared.overload.take_on_batch(identities(&checks))?;
    let checks = shared.permit_each(checks, &headers, peer.as_ref()).await;
    let sender = shared.gate.sender(&headers, peer.as_ref());
    let users: Vec<Option<String>> =
        checks.iter().map(|check| check.as_ref().ok().and_then(Check::user).map(str::to_owned)).collect();
    let profiles = join_all(users.iter().map(|user_id| shared.profile(user_id.as_deref()))).await;
    let items = checks.into_iter().zip(&requests).zip(&profiles).map(|((check, request), profile)| Item {
        check: check.map(|check| check.profile(profile.as_deref())),
        key: request.as_ref().ok().and_then(|request| request.idempotency_key.as_deref()),
    });
    let explain = |index: usize, error| match &requests[index] {
        Ok(request) => request.explain(error),
        Err(_) => error.into(),
    };
    let sent = Sent { key, sender: &sender, body: &body };
    let results = decide(&shared, items.collect(), sent, &headers, explain).await?;
    // Written one by one, so that others get their turn in between.
    let mut body = br#"{"results":["#.to_vec();
    for (index, (result, request)) in results.iter().zip(&requests).enumerate() {
        between(index).await;
        let request = request.as_ref().ok();
        let user_id = request.and_then(|request| request.user_id.as_deref());
        let endpoint = request.and_then(|request| request.endpoint.as_deref());
        let item = match result {
            Ok(decision) => {
                let says = request.is_some_and(CheckRequest::says_sliding_window);
                let mut body = CheckResponse::new(decision).says_sliding_window(says);
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
