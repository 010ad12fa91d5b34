//! `GET /healthz` and `GET /readyz`: alive, and ready for traffic.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::json;
use crate::app::Shared;
use crate::openapi::vocabulary::HealthName;
use crate::respond::{ApiError, Code};

/// That all is well.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    #[schema(value_type = HealthName)]
    status: &'static str,
}

/// Is the process alive?
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    tag = "Service",
    security(()),
    responses((status = 200, description = "It is.", body = Health)),
)]
pub(super) async fn alive() -> Response {
    json(StatusCode::OK, &Health { status: "ok" })
}

/// Is it ready for traffic?
///
/// It is when its stores and its catalog answer, and it is not stopping.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "Service",
    security(()),
    responses(
        (status = 200, description = "It is.", body = Health),
        (status = 503, description = "It is not; the message says why."),
    )
)]
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if let Err(reason) = shared.readiness().await {
        return ApiError::new(Code::ServiceUnavailable, reason).into_response();
    }
    json(StatusCode::OK, &Health { status: "ready" })
}
