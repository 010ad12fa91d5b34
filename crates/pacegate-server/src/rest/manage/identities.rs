//! `/api/v1/identities/{dimension}/{identifier}/…`: limits and temporary overrides of an address,
//! an API key or any other identity.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::http::request::Parts;
use pacegate::identity::{self, Invalid};
use pacegate_catalog::Override;
use serde::Serialize;
use utoipa::ToSchema;

use super::overrides::{OverrideRequest, new_override};
use super::users::{EffectiveResponse, OverrideBody};
use super::{IfMatch, Managed, Subject, empty, shown};
use crate::app::Shared;
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{Id, Json, NoParameters, Query, variables};
use crate::rest::json;

/// The identity in the path, in the spelling that is counted.
pub(crate) struct Identity {
    dimension: String,
    identifier: String,
}

impl FromRequestParts<Arc<Shared>> for Identity {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let mut variables = variables(parts, shared).await?.into_iter();
        let (dimension, identifier) =
            (variables.next().unwrap_or_default(), variables.next().unwrap_or_default());
        let invalid = |field| move |invalid: Invalid| ApiError::input(field, invalid.reason());
        let dimension = identity::dimension(&dimension).map_err(invalid("dimension"))?;
        let identifier = identity::identifier(dimension, &identifier, shared.limiter.ipv6_prefix());
        let identifier = identifier.map_err(invalid("identifier"))?.into_owned();
        Ok(Self { dimension: dimension.to_owned(), identifier })
    }
}

impl Identity {
    fn subject(&self) -> Subject<'_> {
        if self.dimension == identity::USER { Subject::User(&self.identifier) } else { Subject::Rules }
    }
}

/// The limits in force for an identity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdentityLimits)]
struct LimitsResponse<'a> {
    dimension: &'a str,
    /// As it is counted: an IPv6 address by its prefix.
    identifier: &'a str,
    limits: Vec<EffectiveResponse<'a>>,
}

/// An override of an identity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdentityOverride)]
struct OverrideResponse<'a> {
    id: &'a str,
    dimension: &'a str,
    identifier: &'a str,
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
            dimension: &stored.dimension,
            identifier: &stored.user_id,
            rule: &stored.rule,
            numbers: OverrideBody::new(&stored.numbers),
            expires_at: rfc3339(stored.expires_at),
            reason: stored.reason.as_deref(),
            created_at: rfc3339(stored.created_at),
        }
    }
}

/// The overrides in force for an identity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdentityOverrideList)]
struct OverrideListResponse<'a> {
    overrides: Vec<OverrideResponse<'a>>,
}

/// The limits in force for an address, an API key or another identity
///
/// Each limit with its source and its current usage.
#[utoipa::path(
    get,
    path = "/api/v1/identities/{dimension}/{identifier}/limits",
    operation_id = "identity_limits",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "the dimension of the identity"),
        ("identifier" = value::Identifier, Path, description = "the identity"),
    ),
    responses((status = 200, description = "All of them.", body = LimitsResponse)),
)]
pub(crate) async fn limits(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    identity: Identity,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let Identity { dimension, identifier } = &identity;
    let profile = if dimension == identity::USER {
        Some(managed.live.catalog.profile(identifier, now()).await?.0)
    } else {
        None
    };
    let found = shared.limiter.limits_of(dimension, identifier, profile.as_ref()).await?;
    let limits = found.iter().map(EffectiveResponse::new).collect();
    Ok(json(StatusCode::OK, &LimitsResponse { dimension, identifier, limits }))
}

/// Creates a temporary override for an address, an API key or another identity
///
/// It replaces the numbers of a rule for this identity until it expires. There are at most 1,000
/// such overrides at a time, not counting those of users.
#[utoipa::path(
    post,
    path = "/api/v1/identities/{dimension}/{identifier}/override",
    operation_id = "create_identity_override",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "the dimension of the identity"),
        ("identifier" = value::Identifier, Path, description = "the identity"),
    ),
    request_body = OverrideRequest,
    responses((status = 201, description = "The override is in force.", body = OverrideResponse, headers(("ETag" = String, description = "its version")))),
)]
pub(crate) async fn create(
    managed: Managed,
    identity: Identity,
    Json(body): Json<OverrideRequest>,
) -> Result<Response, ApiError> {
    let Identity { dimension, identifier } = &identity;
    let new = new_override(&managed, dimension, identifier, body)?;
    let write =
        managed.change(identity.subject(), |catalog, actor| catalog.add_override_for(actor, dimension, new));
    Ok(shown(StatusCode::CREATED, &OverrideResponse::new(&write.await?), Override::VERSION))
}

/// The overrides in force for an address, an API key or another identity
#[utoipa::path(
    get,
    path = "/api/v1/identities/{dimension}/{identifier}/override",
    operation_id = "list_identity_overrides",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "the dimension of the identity"),
        ("identifier" = value::Identifier, Path, description = "the identity"),
    ),
    responses((status = 200, description = "All of them.", body = OverrideListResponse)),
)]
pub(crate) async fn list(
    managed: Managed,
    identity: Identity,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let Identity { dimension, identifier } = &identity;
    let stored = managed.live.catalog.overrides_of(dimension, identifier, now()).await?;
    let overrides = stored.iter().map(OverrideResponse::new).collect();
    Ok(json(StatusCode::OK, &OverrideListResponse { overrides }))
}

/// Ends an override of an address, an API key or another identity
#[utoipa::path(
    delete,
    path = "/api/v1/identities/{dimension}/{identifier}/override/{id}",
    operation_id = "delete_identity_override",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "the dimension of the identity"),
        ("identifier" = value::Identifier, Path, description = "the identity"),
        ("id" = String, Path, description = "the id of an override"),
        IfMatch,
    ),
    responses(
        (status = 204, description = "The override is removed."),
        (status = 404, description = "The identity has no such override."),
        (status = 412, description = "The override has another version."),
    )
)]
pub(crate) async fn delete(
    managed: Managed,
    identity: Identity,
    Id(override_id): Id,
) -> Result<Response, ApiError> {
    let expected = managed.expected()?;
    let Identity { dimension, identifier } = &identity;
    let write = managed.change(identity.subject(), |catalog, actor| {
        catalog.delete_override_of(actor, dimension, identifier, &override_id, expected)
    });
    write.await?;
    Ok(empty(StatusCode::NO_CONTENT))
}
