//! `/api/v1/users/{user_id}/override`: temporary limits.

use std::time::Duration;

use axum::response::Response;
use hyper::StatusCode;
use pacegate::{Timestamp, identity};
use pacegate_catalog::{NewOverride, Override};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rule_wire::required;
use super::users::{OverrideBody, unknown_rule};
use super::{IfMatch, Managed, Subject, empty, shown};
use crate::clock::{now, parse_rfc3339, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::decode::{Count, Seconds, Whole};
use crate::rest::extract::{Id, Json, NoParameters, Query, UserId};
use crate::rest::json;

/// What is meant to last is a rule.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A temporary limit. When it ends is said by `expires_in_seconds` or by `expires_at`, at most 366 days away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideRequest {
    /// The name of a rule of the same dimension, or `default` for the default limit.
    #[schema(value_type = value::Name, required = true)]
    rule: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<Count>,
    /// The rule's own unless given.
    #[schema(value_type = Option<value::Window>)]
    window_seconds: Option<Seconds>,
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<Count>,
    #[schema(value_type = Option<value::Lifetime>)]
    expires_in_seconds: Option<Count>,
    #[schema(value_type = Option<value::Time>)]
    expires_at: Option<String>,
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

/// An override as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Override)]
struct OverrideResponse<'a> {
    id: &'a str,
    user_id: &'a str,
    rule: &'a str,
    #[serde(flatten)]
    numbers: OverrideBody,
    #[schema(value_type = value::Time)]
    expires_at: String,
    #[schema(required = true)]
    reason: Option<&'a str>,
    #[schema(value_type = value::Time)]
    created_at: String,
}

impl<'a> OverrideResponse<'a> {
    fn new(stored: &'a Override) -> Self {
        Self {
            id: &stored.override_id,
            user_id: &stored.user_id,
            rule: &stored.rule,
            numbers: OverrideBody::new(&stored.numbers),
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
    managed: Managed,
    UserId(user_id): UserId,
    Json(body): Json<OverrideRequest>,
) -> Result<Response, ApiError> {
    let new = new_override(&managed, identity::USER, &user_id, body)?;
    let write = managed.change(Subject::User(&user_id), |catalog, actor| catalog.add_override(actor, new));
    Ok(shown(StatusCode::CREATED, &OverrideResponse::new(&write.await?), Override::VERSION))
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
    managed: Managed,
    UserId(user_id): UserId,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let stored = managed.live.catalog.overrides(&user_id, now()).await?;
    let overrides = stored.iter().map(OverrideResponse::new).collect();
    Ok(json(StatusCode::OK, &OverrideListResponse { overrides }))
}

/// Ends an override
#[utoipa::path(
    delete,
    path = "/api/v1/users/{user_id}/override/{id}",
    operation_id = "delete_override",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about"), ("id" = String, Path, description = "the id of an override"), IfMatch),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "The user has no such override."),
        (status = 412, description = "It is not the version that is expected."),
    )
)]
pub(crate) async fn delete(
    managed: Managed,
    UserId(user_id): UserId,
    Id(override_id): Id,
) -> Result<Response, ApiError> {
    let expected = managed.expected()?;
    let write = managed.change(Subject::User(&user_id), |catalog, actor| {
        catalog.delete_override(actor, &user_id, &override_id, expected)
    });
    write.await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The override that a body describes, for an identity.
pub(super) fn new_override(
    managed: &Managed,
    dimension: &str,
    identifier: &str,
    body: OverrideRequest,
) -> Result<NewOverride, ApiError> {
    let expires_at = expiry(body.expires_in_seconds, body.expires_at.as_deref())?;
    let rule = required("rule", body.rule)?;
    let OverrideRequest { limit, window_seconds, burst_capacity, reason, .. } = body;
    let numbers = OverrideBody { limit, window_seconds, burst_capacity };
    let numbers = numbers.numbers(&managed.live.sources(), dimension, &rule)?;
    let numbers = numbers.ok_or_else(|| unknown_rule("rule", dimension, &rule))?;
    Ok(NewOverride { user_id: identifier.to_owned(), rule, numbers, reason, expires_at })
}

/// When an override or a key ends, which must be ahead and not too far.
pub(super) fn expiry(seconds: Option<Count>, at: Option<&str>) -> Result<Timestamp, ApiError> {
    let now = now();
    let (field, at) = match (seconds, at) {
        (Some(Whole(seconds)), None) => {
            ("expires_in_seconds", now.saturating_add(Duration::from_secs(seconds)))
        }
        (None, Some(text)) => {
            let reason = "must be a time like 2030-01-31T12:00:00Z";
            ("expires_at", parse_rfc3339(text).ok_or_else(|| ApiError::input("expires_at", reason))?)
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
