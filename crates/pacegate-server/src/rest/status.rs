//! `GET /v1/rate-limit/status/{user_id}/{endpoint…}`: a user's usage. Nothing is charged.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use pacegate::CheckError;
use serde::Deserialize;
use utoipa::IntoParams;

use super::answer::CheckResponse;
use super::check::answer;
use super::decode::{Count, read_query};
use super::extract::UserEndpoint;
use super::wire::{CheckRequest, Text};
use crate::app::Shared;
use crate::auth::Need;
use crate::openapi::vocabulary::{
    AlgorithmChoice, Burst, Endpoint, MethodName, Quota, TierName, UserId, WholeWindow,
};
use crate::peer::Peer;
use crate::pipeline::Caller;
use crate::respond::ApiError;

/// The fields of a check that a status query accepts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatusQuery {
    /// Same as in a check.
    #[param(value_type = Option<AlgorithmChoice>)]
    strategy: Option<String>,
    /// Same as in a check.
    #[param(value_type = Option<MethodName>)]
    method: Option<String>,
    /// Same as in a check.
    #[param(value_type = Option<Quota>)]
    limit: Option<Count>,
    /// Same as in a check.
    #[param(value_type = Option<WholeWindow>)]
    window_seconds: Option<Count>,
    /// Same as in a check.
    #[param(value_type = Option<Burst>)]
    burst_capacity: Option<Count>,
    /// Same as in a check.
    #[param(value_type = Option<TierName>)]
    tier: Option<String>,
}

/// Get a user's usage without charging anything
#[utoipa::path(
    get,
    path = "/v1/rate-limit/status/{user_id}/{endpoint}",
    operation_id = "status",
    tag = "Checks",
    security((), ("api_key" = []), ("bearer" = [])),
    params(
        ("user_id" = UserId, Path, description = "The user's identifier."),
        ("endpoint" = Endpoint, Path, description = "The endpoint, percent-encoded or as raw path segments."),
        StatusQuery,
    ),
    responses((status = 200, description = "The decision that a check of cost 1 would get now.", body = CheckResponse)),
)]
pub(super) async fn status(
    State(shared): State<Arc<Shared>>,
    path: Result<UserEndpoint, ApiError>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    peer: Option<Extension<Peer>>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer);
    shared.gate.admit_check(&headers, peer.as_ref(), Need::Look).await?;
    let UserEndpoint { user_id, endpoint } = path?;
    let query: StatusQuery = read_query(query.as_deref().unwrap_or_default())?;
    let mut request = CheckRequest::default();
    request.user_id = Some(user_id.as_str().into());
    request.endpoint = Some(endpoint.as_str().into());
    request.strategy = query.strategy.map(Text::from);
    request.method = query.method.map(Text::from);
    request.limit = query.limit;
    request.window_seconds = query.window_seconds;
    request.burst_capacity = query.burst_capacity;
    request.tier = query.tier.map(Text::from);
    let request = request.with_method()?;
    let caller = Caller { headers: &headers, peer: peer.as_ref() };
    let decision = shared.peek(&request, caller).await?;
    // Raw path segments arrive without their leading slash.
    let endpoint = shared.limiter.paths().normalise(&endpoint).map_err(CheckError::from)?;
    let mut body = CheckResponse::new(&decision)
        .uses_sliding_window(request.uses_sliding_window())
        .with_usage(&decision);
    body.user_id = Some(&user_id);
    body.endpoint = Some(&endpoint);
    Ok(answer(&shared, StatusCode::OK, &decision, &body))
}
