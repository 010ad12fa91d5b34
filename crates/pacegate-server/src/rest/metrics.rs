//! `GET /metrics`: what was measured, for Prometheus and whatever else reads OpenMetrics.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::CONTENT_TYPE;

use crate::app::Shared;
use crate::observe::telemetry::scrape;
use crate::respond::{ApiError, Code};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What was measured, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "Service",
    security(()),
    responses(
        (status = 200, description = "In the text format of OpenMetrics.", body = String, content_type = "application/openmetrics-text"),
        (status = 404, description = "The configuration says that nothing is measured."),
    ),
)]
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    if !shared.observer.telemetry.is_on() {
        return Err(ApiError::new(Code::NotFound, "metrics are switched off in the configuration"));
    }
    let catalog_up = match &shared.live {
        Some(live) => Some(live.catalog_health.found().await.is_ok()),
        None => None,
    };
    let text = scrape(&shared, catalog_up)
        .map_err(|_| ApiError::new(Code::InternalError, "the metrics could not be written"))?;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text).into_response())
}
