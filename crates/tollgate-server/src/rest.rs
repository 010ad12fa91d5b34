//! The REST API: its routes, and how a body is read.

mod answer;
mod batch;
mod check;
mod manage;
mod reset;
mod status;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use serde::Serialize;
use tollgate::StoreHealth;

use crate::BODY_BYTES_MAX;
use crate::app::{Shared, method_not_allowed, not_found};
use crate::respond::{ApiError, Code};
use manage::{admin, audit, config, keys, logs, overrides, plans, policies, rules, users};

pub(crate) use check::check;
pub(crate) use manage::rfc3339;
pub(crate) use wire::CheckRequest;

const CHECK_PATHS: [&str; 2] = ["/v1/rate-limit/check", "/api/v1/rate-limit/check"];

/// Whether `path` is the one that checks are sent to.
pub(crate) fn is_check(path: &str) -> bool {
    CHECK_PATHS.contains(&path)
}

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(|| async { json(StatusCode::OK, &Health { status: "ok" }) }))
        .route("/readyz", get(ready));
    for path in CHECK_PATHS {
        router = router.route(path, post(check::check));
    }
    for prefix in ["/v1", "/api/v1"] {
        router = router
            .route(&format!("{prefix}/rate-limit/batch-check"), post(batch::batch_check))
            .route(&format!("{prefix}/rate-limit/reset"), post(reset::reset))
            .route(&format!("{prefix}/rate-limit/config"), put(config::put))
            .route(
                &format!("{prefix}/rate-limit/config/{{user_id}}/"),
                get(config::get).delete(config::delete),
            )
            .route(
                &format!("{prefix}/rate-limit/config/{{user_id}}/{{*endpoint}}"),
                get(config::get).delete(config::delete),
            )
            .route(&format!("{prefix}/rules"), get(rules::list).post(rules::create))
            .route(
                &format!("{prefix}/rules/{{rule_id}}"),
                get(rules::get).put(rules::replace).delete(rules::delete),
            )
            .route(&format!("{prefix}/plans"), get(plans::list))
            .route(&format!("{prefix}/plans/{{name}}"), get(plans::get).put(plans::put).delete(plans::delete))
            .route(&format!("{prefix}/keys"), get(keys::list).post(keys::create))
            .route(&format!("{prefix}/keys/{{key_id}}"), delete(keys::revoke))
            .route(&format!("{prefix}/audit"), get(audit::list))
            .route(&format!("{prefix}/logs"), get(logs::list))
            .route(&format!("{prefix}/usage"), get(logs::usage))
            .route(&format!("{prefix}/users"), get(users::list))
            .route(&format!("{prefix}/users/{{user_id}}"), get(users::get))
            .route(&format!("{prefix}/users/{{user_id}}/limits"), get(users::limits))
            .route(&format!("{prefix}/users/{{user_id}}/tier"), put(users::put_tier))
            .route(
                &format!("{prefix}/users/{{user_id}}/override"),
                get(overrides::list).post(overrides::create),
            )
            .route(&format!("{prefix}/users/{{user_id}}/override/{{id}}"), delete(overrides::delete))
            .route(&format!("{prefix}/rate-limit/status/{{user_id}}/"), get(status::status))
            .route(&format!("{prefix}/rate-limit/status/{{user_id}}/{{*endpoint}}"), get(status::status));
    }
    router = router
        .route("/admin/status", get(admin::status))
        .route("/admin/metrics", get(admin::metrics))
        .route("/admin/metrics/{key}", get(admin::metrics_of))
        .route("/admin/reset/{key}", post(admin::reset))
        .route("/admin/policies", get(policies::list).post(policies::create))
        .route("/admin/policies/{key}", get(policies::get).put(policies::replace).delete(policies::delete));
    router.fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(shared)
}

#[derive(Debug, Serialize)]
struct Health {
    status: &'static str,
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_draining() {
        return ApiError::new(Code::ServiceUnavailable, "the service is stopping").into_response();
    }
    let stores = shared.limiter.stores();
    let mut failing: Vec<String> = stores
        .health()
        .filter_map(|(name, health)| match health {
            StoreHealth::Up => None,
            StoreHealth::Rejected => Some(format!("store `{name}` refuses to work for this service")),
            _ => Some(format!("store `{name}` does not answer")),
        })
        .collect();
    if let Some(live) = &shared.live
        && live.catalog.ping().await.is_err()
    {
        failing.push("the catalog does not answer".to_owned());
    }
    if !failing.is_empty() {
        return ApiError::new(Code::ServiceUnavailable, failing.join("; ")).into_response();
    }
    json(StatusCode::OK, &Health { status: "ready" })
}

/// A response with a JSON body.
fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            ApiError::new(Code::InternalError, "an internal error occurred").into_response()
        }
    }
}

/// The whole body of a request that says it is JSON, if it is not too large.
async fn read_json(request: Request<Body>) -> Result<(HeaderMap, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    if !says_json(&parts.headers) {
        return Err(ApiError::new(
            Code::UnsupportedMediaType,
            "send JSON with the header Content-Type: application/json",
        ));
    }
    let announced =
        parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(too_large());
    }
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok((parts.headers, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(ApiError::new(Code::InvalidInput, "the body could not be read to its end")),
    }
}

fn too_large() -> ApiError {
    ApiError::new(Code::PayloadTooLarge, format!("the body must be at most {BODY_BYTES_MAX} bytes long"))
}

fn says_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return false };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
}
