//! `/api/v1/users/{user_id}/override`: temporary limits.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use jiff::Timestamp as Time;
use pacegate::Timestamp;
use pacegate_catalog::{NewOverride, Override};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::users::NumbersWire;
use super::{Managed, PathParts, empty, path_part, path_parts, path_user, rfc3339, with_etag};
use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};

/// What is meant to last is a rule.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A temporary limit. When it ends is said by `expires_in_seconds` or by `expires_at`, at most 366 days away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OverrideRequest {
    /// The name of a rule in the dimension `user`, or `default` for the default limit.
    #[schema(value_type = value::Name, required = true)]
    rule: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<u64>,
    /// The rule's own unless given.
    #[schema(value_type = Option<value::Window>)]
    window_seconds: Option<Number>,
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<u64>,
    #[schema(value_type = Option<value::Lifetime>)]
    expires_in_seconds: Option<u64>,
    #[schema(value_type = Option<value::Time>)]
    expires_at: Option<String>,
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

const FIELDS: [(&str, Kind); 7] = [
    ("rule", Kind::Text),
    ("limit", Kind::Count),
    ("window_seconds", Kind::Number),
    ("burst_capacity", Kind::Count),
    ("expires_in_seconds", Kind::Count),
    ("expires_at", Kind::Text),
    ("reason", Kind::Text),
];

/// An override as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Override)]
struct OverrideResponse<'a> {
    id: &'a str,
    user_id: &'a str,
    rule: &'a str,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = value::Window, required = false)]
    window_seconds: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = value::Burst, required = false)]
    burst_capacity: Option<u64>,
    #[schema(value_type = value::Time)]
    expires_at: String,
    #[schema(required = true)]
    reason: Option<&'a str>,
    #[schema(value_type = value::Time)]
    created_at: String,
}

impl<'a> OverrideResponse<'a> {
    fn new(stored: &'a Override) -> Self {
        let NumbersWire { limit, window_seconds, burst_capacity } = NumbersWire::of(&stored.numbers);
        Self {
            id: &stored.override_id,
            user_id: &stored.user_id,
            rule: &stored.rule,
            limit,
            window_seconds,
            burst_capacity,
            expires_at: rfc3339(stored.expires_at),
            reason: stored.reason.as_deref(),
            created_at: rfc3339(stored.created_at),
        }
    }
}

/// The overrides that hold now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OverrideList)]
struct OverrideListResponse<'a> {
    overrides: Vec<OverrideResponse<'a>>,
}

/// Makes a temporary override
///
/// It replaces the numbers of a rule for one user, until it ends.
#[utoipa::path(
    post,
    path = "/api/v1/users/{user_id}/override",
    operation_id = "create_override",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about")),
    request_body = OverrideRequest,
    responses((status = 201, description = "It is made.", body = OverrideResponse, headers(("ETag" = String, description = "its version")))),
)]
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let user_id = path_part(path)?;
    let request: OverrideRequest = read_object(&body, &FIELDS)?;
    let expires_at = expiry(request.expires_in_seconds, request.expires_at.as_deref())?;
    let rule = request.rule.ok_or_else(|| ApiError::input("rule", "is missing"))?;
    let wire = NumbersWire {
        limit: request.limit,
        window_seconds: request.window_seconds,
        burst_capacity: request.burst_capacity,
    };
    let numbers = wire.numbers(&managed.live.sources(), &rule, "")?;
    let made = NewOverride { user_id: user_id.clone(), rule, numbers, reason: request.reason, expires_at };
    let stored = managed.live.catalog.add_override(&managed.actor, made).await?;
    managed.in_force().await;
    managed.live.profiles.forget(&user_id);
    Ok(with_etag(json(StatusCode::CREATED, &OverrideResponse::new(&stored)), Override::VERSION))
}

/// The overrides of a user that hold now
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}/override",
    operation_id = "list_overrides",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about")),
    responses((status = 200, description = "All of them.", body = OverrideListResponse)),
)]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let stored = managed.live.catalog.overrides(&path_user(path)?, now()).await?;
    let overrides = stored.iter().map(OverrideResponse::new).collect();
    Ok(json(StatusCode::OK, &OverrideListResponse { overrides }))
}

/// Ends an override
#[utoipa::path(
    delete,
    path = "/api/v1/users/{user_id}/override/{id}",
    operation_id = "delete_override",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about"), ("id" = String, Path, description = "the id of an override"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "The user has no such override."),
        (status = 412, description = "It is not the version that is expected."),
    )
)]
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let parts = path_parts(path)?;
    let [user_id, override_id] = parts.as_slice() else {
        return Err(ApiError::input("path", "has no id of an override"));
    };
    managed.live.catalog.delete_override(&managed.actor, user_id, override_id, managed.expected()?).await?;
    managed.in_force().await;
    managed.live.profiles.forget(user_id);
    Ok(empty(StatusCode::NO_CONTENT))
}

/// When an override or a key ends, which must be ahead and not too far.
pub(super) fn expiry(seconds: Option<u64>, at: Option<&str>) -> Result<Timestamp, ApiError> {
    let now = now();
    let (field, at) = match (seconds, at) {
        (Some(seconds), None) => ("expires_in_seconds", now.saturating_add(Duration::from_secs(seconds))),
        (None, Some(text)) => {
            let time: Time = text
                .parse()
                .map_err(|_| ApiError::input("expires_at", "must be a time like 2030-01-31T12:00:00Z"))?;
            ("expires_at", Timestamp::from_micros(u64::try_from(time.as_microsecond()).unwrap_or_default()))
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::input("expires_at", "give either expires_in_seconds or expires_at"));
        }
        (None, None) => {
            return Err(ApiError::input("expires_in_seconds", "is missing; or give expires_at"));
        }
    };
    if at <= now {
        return Err(ApiError::input(field, "must be in the future"));
    }
    if at > now.saturating_add(LONGEST) {
        return Err(ApiError::input(field, "must be at most 366 days away; make a rule instead"));
    }
    Ok(at)
}
