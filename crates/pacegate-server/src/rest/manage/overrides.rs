//! `/api/v1/users/{user_id}/override` and `/api/v1/identities/{dimension}/{identifier}/override`:
//! temporary limits. Users are the identities of the dimension `user`.

use std::time::Duration;

use axum::response::Response;
use hyper::StatusCode;
use pacegate::{Timestamp, identity};
use pacegate_catalog::{NewOverride, Override};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::identities::Identity;
use super::rule_wire::required;
use super::users::{OverrideBody, unknown_rule};
use super::{IfMatch, Managed, empty, shown};
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

/// A temporary override of one identity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Override)]
struct OverrideResponse<'a> {
    id: &'a str,
    dimension: &'a str,
    identifier: &'a str,
    /// The identifier, if the dimension is `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a str>,
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
        let identifier = stored.user_id.as_str();
        Self {
            id: &stored.override_id,
            dimension: &stored.dimension,
            identifier,
            user_id: (stored.dimension == identity::USER).then_some(identifier),
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

/// Create a temporary override for a user
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
    create_for(&managed, &Identity::user(user_id), body).await
}

/// Create a temporary override for an address, an API key or another identity
///
/// Replaces the numbers of a rule for this identity until it expires. Identities other than users
/// can have 1,000 overrides in total.
#[utoipa::path(
    post,
    path = "/api/v1/identities/{dimension}/{identifier}/override",
    operation_id = "create_identity_override",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "The dimension of the identity."),
        ("identifier" = value::Identifier, Path, description = "The identity."),
    ),
    request_body = OverrideRequest,
    responses((status = 201, description = "Created.", body = OverrideResponse, headers(("ETag" = String, description = "The version.")))),
)]
pub(crate) async fn create_for_identity(
    managed: Managed,
    identity: Identity,
    Json(body): Json<OverrideRequest>,
) -> Result<Response, ApiError> {
    create_for(&managed, &identity, body).await
}

async fn create_for(
    managed: &Managed,
    identity: &Identity,
    body: OverrideRequest,
) -> Result<Response, ApiError> {
    let Identity { dimension, identifier } = identity;
    let new = new_override(managed, dimension, identifier, body)?;
    let write =
        managed.change(identity.subject(), |catalog, actor| catalog.add_override_for(actor, dimension, new));
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
    list_of(&managed, &Identity::user(user_id)).await
}

/// List the active overrides of an address, an API key or another identity
#[utoipa::path(
    get,
    path = "/api/v1/identities/{dimension}/{identifier}/override",
    operation_id = "list_identity_overrides",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "The dimension of the identity."),
        ("identifier" = value::Identifier, Path, description = "The identity."),
    ),
    responses((status = 200, description = "All active overrides.", body = OverrideListResponse)),
)]
pub(crate) async fn list_of_identity(
    managed: Managed,
    identity: Identity,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    list_of(&managed, &identity).await
}

async fn list_of(managed: &Managed, identity: &Identity) -> Result<Response, ApiError> {
    let stored = managed.live.catalog.overrides_of(&identity.dimension, &identity.identifier, now()).await?;
    let overrides = stored.iter().map(OverrideResponse::new).collect();
    Ok(json(StatusCode::OK, &OverrideListResponse { overrides }))
}

/// Delete an override of a user
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
    delete_of(&managed, &Identity::user(user_id), &override_id).await
}

/// Delete an override of an address, an API key or another identity
#[utoipa::path(
    delete,
    path = "/api/v1/identities/{dimension}/{identifier}/override/{id}",
    operation_id = "delete_identity_override",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "The dimension of the identity."),
        ("identifier" = value::Identifier, Path, description = "The identity."),
        ("id" = String, Path, description = "The id of the override."),
        IfMatch,
    ),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "Unknown override."),
        (status = 412, description = "The override does not have the expected version."),
    )
)]
pub(crate) async fn delete_of_identity(
    managed: Managed,
    identity: Identity,
    Id(override_id): Id,
) -> Result<Response, ApiError> {
    delete_of(&managed, &identity, &override_id).await
}

async fn delete_of(managed: &Managed, identity: &Identity, override_id: &str) -> Result<Response, ApiError> {
    let expected = managed.expected()?;
    let Identity { dimension, identifier } = identity;
    let write = managed.change(identity.subject(), |catalog, actor| {
        catalog.delete_override_of(actor, dimension, identifier, override_id, expected)
    });
    write.await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The override that a body describes, for an identity.
fn new_override(
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
