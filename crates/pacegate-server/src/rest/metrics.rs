//! `GET /metrics`: metrics for Prometheus and other readers of OpenMetrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;

use crate::app::Shared;
use crate::observe::telemetry::scrape;
use crate::respond::{ApiError, Code};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Get metrics in OpenMetrics format
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "Service",
    security(()),
    responses(
        (status = 200, description = "Metrics in the OpenMetrics text format.", body = String, content_type = "application/openmetrics-text"),
        (status = 404, description = "Metrics are disabled in the configuration."),
    ),
)]
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    if !shared.observer.telemetry.is_on() {
        return Err(ApiError::new(Code::NotFound, "metrics are disabled in the configuration"));
    }
    let catalog_up = match &shared.live {
        Some(live) => Some(live.catalog_health.check().await.is_ok()),
        None => None,
    };
    let text = scrape(&shared, catalog_up)
        .map_err(|_| ApiError::new(Code::InternalError, "the metrics could not be encoded"))?;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text).into_response())
}
