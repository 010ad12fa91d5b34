//! The REST API: routes, and how bodies are read and written.

mod answer;
mod batch;
mod check;
mod decode;
mod explain;
mod extract;
mod feed;
mod health;
mod history;
mod manage;
mod metrics;
mod reset;
mod routes;
mod status;
mod throttlex;
mod watchers;
mod whoami;
mod wire;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use serde::Serialize;

use crate::BODY_BYTES_MAX;
use crate::app::Shared;
use crate::peer::Peer;
use crate::respond::{ApiError, Code};
use pacegate_http::server::{Gathered, Incomplete, gather};

pub(crate) use answer::{millis_ceil, used};
pub(crate) use check::check_from;
pub(crate) use feed::{Feed, record_history};
pub(crate) use history::History;
pub(crate) use routes::{operations, router, routes};
pub(crate) use watchers::Watchers;
pub(crate) use wire::parse_strategy;

const CHECK_PATHS: [&str; 2] = ["/v1/rate-limit/check", "/api/v1/rate-limit/check"];

/// Number of headers of the usual response: its type, its id and both families of rate limit
/// headers.
const HEADERS_USUAL: usize = 8;

/// Returns whether `path` is the path of checks.
pub(crate) fn is_check(path: &str) -> bool {
    CHECK_PATHS.contains(&path)
}

/// Returns a response with a JSON body.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    written(status, serde_json::to_vec(body))
}

/// Returns a response with an already serialised JSON body.
fn written(status: StatusCode, bytes: serde_json::Result<Vec<u8>>) -> Response {
    match bytes {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            *response.status_mut() = status;
            *response.headers_mut() = HeaderMap::with_capacity(HEADERS_USUAL);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::error!(%error, "response could not be serialised");
            ApiError::new(Code::InternalError, "an internal error occurred").into_response()
        }
    }
}

/// Reads the whole JSON body of a request from `peer`, up to the size limit.
async fn read_json<B: hyper::body::Body<Data = Bytes>>(
    shared: &Shared,
    request: Request<B>,
    peer: Option<&Peer>,
) -> Result<(HeaderMap, Gathered), ApiError> {
    read_json_of(shared, request, peer, BODY_BYTES_MAX).await
}

/// As [`read_json`], for a body of at most `bytes_max` bytes.
async fn read_json_of<B: hyper::body::Body<Data = Bytes>>(
    shared: &Shared,
    request: Request<B>,
    peer: Option<&Peer>,
    bytes_max: usize,
) -> Result<(HeaderMap, Gathered), ApiError> {
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(ApiError::new(
            Code::UnsupportedMediaType,
            "send JSON with the header Content-Type: application/json",
        ));
    }
    let announced =
        parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(too_large(bytes_max));
    }
    match gather(body, bytes_max, &shared.bodies, peer.map(Peer::ip)).await {
        Ok(body) => Ok((parts.headers, body)),
        Err(Incomplete::TooLarge) => Err(too_large(bytes_max)),
        Err(Incomplete::Broken) => {
            Err(ApiError::new(Code::InvalidInput, "the body was cut off before its end"))
        }
        Err(Incomplete::Full(full)) => Err(full.into()),
    }
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(Code::PayloadTooLarge, format!("the body must be at most {bytes_max} bytes"))
}

/// Returns whether a request has a `Content-Type`.
pub(crate) fn has_content_type(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_TYPE)
}

/// Returns whether the `Content-Type` of a request is JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return false };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
}
