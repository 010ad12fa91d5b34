//! `/api/v1/identities/{dimension}/{identifier}/…`: the limits in force for an address, an API key
//! or any other identity. Their overrides are in [`overrides`](super::overrides).

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use hyper::StatusCode;
use hyper::http::request::Parts;
use pacegate::identity::{self, Invalid};
use serde::Serialize;
use utoipa::ToSchema;

use super::users::EffectiveResponse;
use super::{Managed, Subject};
use crate::app::Shared;
use crate::clock::now;
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{NoParameters, Query, variables};
use crate::rest::json;

/// The identity in the path, in the spelling that is counted.
pub(crate) struct Identity {
    pub(super) dimension: String,
    pub(super) identifier: String,
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
    pub(super) fn user(user_id: String) -> Self {
        Self { dimension: identity::USER.to_owned(), identifier: user_id }
    }

    /// What this node has cached about the identity.
    pub(super) fn subject(&self) -> Subject<'_> {
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

/// The limits in force for an address, an API key or another identity
///
/// Each limit with its source and its current usage.
#[utoipa::path(
    get,
    path = "/api/v1/identities/{dimension}/{identifier}/limits",
    operation_id = "identity_limits",
    tag = "Identities",
    params(
        ("dimension" = value::Dimension, Path, description = "The dimension of the identity."),
        ("identifier" = value::Identifier, Path, description = "The identity."),
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
