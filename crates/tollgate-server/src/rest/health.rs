//! `GET /healthz` and `GET /readyz`: alive, and ready for traffic.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use serde::Serialize;
use tollgate::StoreHealth;
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
