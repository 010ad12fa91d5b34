//! `GET /healthz` and `GET /readyz`: liveness and readiness.

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

/// The health of the service.
#[derive(Debug, Serialize, ToSchema)]
struct Health {
    #[schema(value_type = HealthName)]
    status: &'static str,
}

/// Liveness
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "healthz",
    tag = "Service",
    security(()),
    responses((status = 200, description = "The process is alive.", body = Health)),
)]
pub(super) async fn alive() -> Response {
    json(StatusCode::OK, &Health { status: "ok" })
}

/// Readiness
///
/// The service is ready when its stores and its catalog are available and it is not shutting down.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "Service",
    security(()),
    responses(
        (status = 200, description = "Ready for traffic.", body = Health),
        (status = 503, description = "Not ready; the message has the reason."),
    )
)]
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if let Err(reason) = shared.readiness().await {
        return ApiError::new(Code::ServiceUnavailable, reason).into_response();
    }
    json(StatusCode::OK, &Health { status: "ready" })
}
