//! `GET /v1/rate-limit/status/{user_id}/{endpoint…}`: how a user stands, without consuming anything.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::CheckError;

use super::answer::CheckResponse;
use super::check::answer;
use super::wire::CheckRequest;
use crate::app::Shared;
use crate::auth::Need;
use crate::openapi::vocabulary::{
    AlgorithmChoice, Burst, Endpoint, MethodName, Quota, TierName, UserId, WholeWindow,
};
use crate::peer::{Peer, peer};
use crate::pipeline::Caller;
use crate::respond::{ApiError, Code};

/// How a user stands, without consuming anything
#[utoipa::path(
    get,
    path = "/v1/rate-limit/status/{user_id}/{endpoint}",
    operation_id = "status",
    tag = "Checks",
    security((), ("api_key" = []), ("bearer" = [])),
    params(
        ("user_id" = UserId, Path, description = "whom it is about"),
        ("endpoint" = Endpoint, Path, description = "the endpoint, percent-encoded or as raw path segments"),
        ("strategy" = Option<AlgorithmChoice>, Query, description = "as in a check"),
        ("method" = Option<MethodName>, Query, description = "as in a check"),
        ("limit" = Option<Quota>, Query, description = "as in a check"),
        ("window_seconds" = Option<WholeWindow>, Query, description = "as in a check"),
        ("burst_capacity" = Option<Burst>, Query, description = "as in a check"),
        ("tier" = Option<TierName>, Query, description = "as in a check"),
    ),
    responses((status = 200, description = "What a check of cost 1 would be answered now.", body = CheckResponse)),
)]
pub(super) async fn status(
    State(shared): State<Arc<Shared>>,
    path: Result<Path<Vec<String>>, PathRejection>,
    RawQuery(query): RawQuery,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    shared.gate.admit_check(request.headers(), peer(&request), Need::Look).await?;
    let (caller, _) = request.into_parts();
    let Path(path) = path.map_err(|_| ApiError::input("endpoint", "is not valid UTF-8"))?;
    // With nothing behind the user's slash, the endpoint is that slash.
    let (user_id, endpoint) =
        (path.first().cloned().unwrap_or_default(), path.get(1).map_or("/", String::as_str));
    let mut request = CheckRequest::default();
    request.user_id = Some(user_id.as_str().into());
    request.endpoint = Some(endpoint.into());
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes()) {
        match &*name {
            "strategy" => request.strategy = Some(value.into_owned().into()),
            "method" => request.method = Some(value.into_owned().into()),
            "limit" => request.limit = Some(number("limit", &value)?),
            "window_seconds" => request.window_seconds = Some(number("window_seconds", &value)?),
            "tier" => request.tier = Some(value.into_owned().into()),
            "burst_capacity" => request.burst_capacity = Some(number("burst_capacity", &value)?),
            _ => {
                let name: String = name.chars().take(64).collect();
                let reason = "unknown parameter; known are strategy, method, limit, window_seconds, burst_capacity, tier";
                return Err(ApiError::input(&name, reason));
            }
        }
    }
    let request = request.with_method()?;
    let caller = Caller { headers: &caller.headers, peer: caller.extensions.get::<Peer>() };
    let decision = shared.look(&request, caller).await?;
    // As raw path segments it arrives without its leading slash.
    let endpoint = shared.limiter.paths().normalise(endpoint).map_err(CheckError::from)?;
    let mut body = CheckResponse::new(&decision)
        .says_sliding_window(request.says_sliding_window())
        .with_usage(&decision);
    body.user_id = Some(&user_id);
    body.endpoint = Some(&endpoint);
    Ok(answer(&shared, StatusCode::OK, &decision, &body))
}

fn number(field: &str, text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| ApiError::field(Code::InvalidLimit, field, "must be a positive whole number"))
}
