//! `POST /v1/rate-limit/reset`: resets the counters of a user at an endpoint. An admin operation.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Admitted, JsonBody};
use super::json;
use super::wire::CheckRequest;
use crate::app::Shared;
use crate::clock::rfc3339;
use crate::openapi::vocabulary::Time;
use crate::respond::ApiError;

/// What was reset, and when.
#[derive(Debug, Serialize, ToSchema)]
struct ResetResponse<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    user_id: Option<&'a str>,
    #[schema(required = true)]
    endpoint: Option<&'a str>,
    #[schema(value_type = Time)]
    reset_at: String,
}

/// Reset the counters of a user at an endpoint
#[utoipa::path(
    post,
    path = "/v1/rate-limit/reset",
    operation_id = "reset",
    tag = "Checks",
    request_body = CheckRequest,
    responses((status = 200, description = "The counters were reset.", body = ResetResponse)),
)]
pub(super) async fn reset(
    State(shared): State<Arc<Shared>>,
    Admitted(actor): Admitted,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = CheckRequest::parse(&body)?;
    let at = shared.reset(&request, &actor).await?;
    let body = ResetResponse {
        user_id: request.user_id.as_deref(),
        endpoint: request.endpoint.as_deref(),
        reset_at: rfc3339(at),
    };
    Ok(json(StatusCode::OK, &body))
}
