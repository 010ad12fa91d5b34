//! `/admin/reset/{key}`: resets the counters of a key.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::Check;
use serde::Serialize;
use utoipa::ToSchema;

use super::{DIMENSION, check_of, of_key};
use crate::app::Shared;
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{Id, NoParameters, Query};
use crate::rest::json;
use crate::rest::manage::Managed;

/// What was reset, and when.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyReset)]
struct ResetResponse<'a> {
    key: &'a str,
    /// Always `RESET`.
    status: &'static str,
    #[schema(value_type = value::Time)]
    timestamp: String,
}

/// Reset the counters of a key
///
/// Resets its counters at `/`, in every dimension whose identifiers are policy keys.
#[utoipa::path(
    post,
    path = "/admin/reset/{key}",
    operation_id = "admin_reset",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "The key of the policy.")),
    responses((status = 200, description = "The counters were reset.", body = ResetResponse)),
)]
pub(crate) async fn reset(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Id(key): Id,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    shared.limiter.validate(&check_of(&key)).map_err(of_key)?;
    // Without a policy, the key has a counter in each dimension; only an address has one in `ip`.
    let current = managed.live.sources();
    let others = current.file.policy_dimensions.iter().map(String::as_str);
    let counted = |dimension: &&str| {
        *dimension != DIMENSION && shared.limiter.validate(&Check::new(dimension, &key).endpoint("/")).is_ok()
    };
    let check = others.filter(counted).fold(check_of(&key), |check, dimension| check.and(dimension, &key));
    shared.record_reset(&managed.actor, &check).await?;
    shared.limiter.reset(&check).await.map_err(of_key)?;
    let body = ResetResponse { key: &key, status: "RESET", timestamp: rfc3339(now()) };
    Ok(json(StatusCode::OK, &body))
}
