//! `POST /v1/rate-limit/batch-check`: many checks in one request, each decided on its own.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::{Check, CheckError, Decision};

use super::check::report_transitions;
use super::wire::{CheckRequest, CheckResponse, Kind, idempotency_key, read_object};
use super::{json, read_json};
use crate::app::Shared;
use crate::request_id::{REQUEST_ID, as_text};
use crate::respond::{ApiError, Envelope};

/// How many checks one batch can have.
const CHECKS_MAX: usize = 1_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRequest<'a> {
    /// Read one by one, so that a bad one spoils only its own answer.
    #[serde(borrow)]
    checks: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    idempotency_key: Option<Cow<'a, str>>,
}

const FIELDS: [(&str, Kind); 2] = [("checks", Kind::List), ("idempotency_key", Kind::Text)];

#[derive(Debug, Serialize)]
struct BatchResponse<'a> {
    results: Vec<ItemResponse<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ItemResponse<'a> {
    Decided(Box<CheckResponse<'a>>),
    Failed {
        #[serde(skip_serializing_if = "Option::is_none")]
        user_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        endpoint: Option<&'a str>,
        #[serde(flatten)]
        error: Envelope<'a>,
    },
}

pub(super) async fn batch_check(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (headers, body) = read_json(request).await?;
    let request_id = headers.get(&REQUEST_ID).map(as_text).unwrap_or_default();
    let batch: BatchRequest<'_> = read_object(&body, &FIELDS)?;
    if !(1..=CHECKS_MAX).contains(&batch.checks.len()) {
        return Err(ApiError::input("checks", format!("must have 1 to {CHECKS_MAX} items")));
    }
    let key = idempotency_key(batch.idempotency_key.as_deref(), &headers)?;
    if let Some(key) = key {
        // Recorded before anything is charged: the same key on another batch is refused as a whole.
        shared.limiter.anchor(BATCH_CALLER, key, &body).await?;
    }

    let requests: Vec<Result<CheckRequest<'_>, ApiError>> =
        batch.checks.iter().map(|item| CheckRequest::parse(item.get().as_bytes())).collect();
    // What an idempotency key borrows: whose it is, and the key of each item.
    let callers: Vec<(String, Option<String>)> = requests
        .iter()
        .enumerate()
        .map(|(index, request)| match request {
            Err(_) => (String::new(), None),
            Ok(request) => {
                let own = request.idempotency_key.as_deref().map(str::to_owned);
                (request.identity(), own.or_else(|| key.map(|key| format!("{key}#{index}"))))
            }
        })
        .collect();
    let mut checks: Vec<Check<'_>> = Vec::with_capacity(requests.len());
    let parsed: Vec<Result<(), ApiError>> = requests
        .iter()
        .zip(&callers)
        .map(|(request, (caller, key))| {
            let request = request.as_ref().map_err(Clone::clone)?;
            let mut check = request.check(&shared.limiter)?;
            if let Some(key) = key {
                check = check.idempotency(caller, key);
            }
            checks.push(check);
            Ok(())
        })
        .collect();

    let mut outcomes = shared.limiter.check_all(&checks).await.into_iter();
    let results: Vec<Result<Decision, ApiError>> = parsed
        .into_iter()
        .map(|parsed| {
            parsed.and_then(|()| match outcomes.next() {
                Some(outcome) => outcome.map_err(ApiError::from),
                None => Err(ApiError::from(CheckError::NotInProcess)),
            })
        })
        .collect();
    let results = results.iter().zip(&requests).map(|(result, request)| {
        let request = request.as_ref().ok();
        let user_id = request.and_then(|request| request.user_id.as_deref());
        let endpoint = request.and_then(|request| request.endpoint.as_deref());
        match result {
            Ok(decision) => {
                report_transitions(decision);
                let mut body = CheckResponse::new(decision);
                (body.user_id, body.endpoint) = (user_id, endpoint);
                ItemResponse::Decided(Box::new(body))
            }
            Err(error) => ItemResponse::Failed { user_id, endpoint, error: error.envelope(request_id) },
        }
    });
    Ok(json(StatusCode::OK, &BatchResponse { results: results.collect() }))
}

/// The scope of batches' own idempotency keys, which no identity's is.
const BATCH_CALLER: &str = "batch";
