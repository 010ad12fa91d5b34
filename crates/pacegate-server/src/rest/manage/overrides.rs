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

/// Longest lifetime of an override; a permanent change is a rule.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A temporary limit. `expires_in_seconds` or `expires_at` sets its end, at most 366 days ahead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideRequest {
    /// The name of a rule of the same dimension, or `default` for the default limit.
    #[schema(value_type = value::Name, required = true)]
    rule: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<Count>,
    /// Default: the rule's window.
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

/// An override.
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

/// The active overrides.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OverrideList)]
struct OverrideListResponse<'a> {
    overrides: Vec<OverrideResponse<'a>>,
}

/// Create a temporary override
///
/// Replaces the numbers of a rule for one user until it expires.
#[utoipa::path(
    post,
    path = "/api/v1/users/{user_id}/override",
    operation_id = "create_override",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier.")),
    request_body = OverrideRequest,
    responses((status = 201, description = "Created.", body = OverrideResponse, headers(("ETag" = String, description = "The version.")))),
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

/// List the active overrides of a user
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}/override",
    operation_id = "list_overrides",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier.")),
    responses((status = 200, description = "All active overrides.", body = OverrideListResponse)),
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

/// Delete an override
#[utoipa::path(
    delete,
    path = "/api/v1/users/{user_id}/override/{id}",
    operation_id = "delete_override",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier."), ("id" = String, Path, description = "The id of the override."), IfMatch),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "Unknown override."),
        (status = 412, description = "The override does not have the expected version."),
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

/// Returns the expiry of an override or a key, which must be in the future and not too far ahead.
pub(super) fn expiry(seconds: Option<Count>, at: Option<&str>) -> Result<Timestamp, ApiError> {
    let now = now();
    let (field, at) = match (seconds, at) {
        (Some(Whole(seconds)), None) => {
            ("expires_in_seconds", now.saturating_add(Duration::from_secs(seconds)))
        }
        (None, Some(text)) => {
            let reason = "expected a time such as \"2030-01-31T12:00:00Z\"";
            ("expires_at", parse_rfc3339(text).ok_or_else(|| ApiError::input("expires_at", reason))?)
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::input(
                "expires_at",
                "`expires_in_seconds` and `expires_at` are mutually exclusive",
            ));
        }
        (None, None) => {
            return Err(ApiError::input(
                "expires_in_seconds",
                "required field is missing; send expires_in_seconds or expires_at",
            ));
        }
    };
    if at <= now {
        return Err(ApiError::input(field, "must be in the future"));
    }
    if at > now.saturating_add(LONGEST) {
        return Err(ApiError::input(
            field,
            "must be at most 366 days ahead; create a rule for a permanent change",
        ));
    }
    Ok(at)
}
