//! `GET /metrics`: what was measured, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;

use crate::app::Shared;

/// What was measured, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "Service",
    security(()),
    responses((status = 200, description = "In Prometheus' text format.", body = String, content_type = "text/plain")),
)]
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], shared.telemetry.render()).into_response()
}
