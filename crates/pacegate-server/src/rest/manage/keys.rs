//! `/api/v1/keys`: API keys. A secret is shown once, when its key is created.

use axum::response::Response;
use hyper::StatusCode;
use pacegate_catalog::StoredKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::overrides::expiry;
use super::rule_wire::required;
use super::{IfMatch, Managed, Subject, empty, shown};
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::decode::Count;
use crate::rest::extract::{Id, Json, NoParameters, Query};
use crate::rest::json;

/// A new key. It never expires unless `expires_in_seconds` or `expires_at` is set, at most 366 days
/// ahead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    #[schema(value_type = value::RoleName, required = true)]
    role: Option<String>,
    /// Default: the name of the role.
    #[schema(value_type = Option<value::KeyName>)]
    name: Option<String>,
    #[schema(value_type = Option<value::Lifetime>)]
    expires_in_seconds: Option<Count>,
    #[schema(value_type = Option<value::Time>)]
    expires_at: Option<String>,
}

/// A key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
struct KeyResponse<'a> {
    key_id: &'a str,
    /// Only in the response to the creation of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    secret: Option<&'a str>,
    name: &'a str,
    #[schema(value_type = value::RoleName)]
    role: &'a str,
    #[schema(value_type = value::KeyState)]
    state: &'static str,
    #[schema(value_type = value::Time)]
    created_at: String,
    #[schema(required = true, value_type = Option<value::Time>)]
    expires_at: Option<String>,
    #[schema(required = true, value_type = Option<value::Time>)]
    revoked_at: Option<String>,
    #[schema(required = true, value_type = Option<value::Time>)]
    last_used_at: Option<String>,
}

impl<'a> KeyResponse<'a> {
    fn new(key: &'a StoredKey) -> Self {
        let is_expired = key.expires_at.is_some_and(|expires_at| expires_at <= now());
        Self {
            key_id: &key.key_id,
            secret: None,
            name: &key.name,
            role: &key.role,
            state: match (key.revoked_at, is_expired) {
                (Some(_), _) => "revoked",
                (None, true) => "expired",
                (None, false) => "active",
            },
            created_at: rfc3339(key.created_at),
            expires_at: key.expires_at.map(rfc3339),
            revoked_at: key.revoked_at.map(rfc3339),
            last_used_at: key.last_used_at.map(rfc3339),
        }
    }
}

/// All keys, without their secrets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyList)]
struct KeyListResponse<'a> {
    keys: Vec<KeyResponse<'a>>,
}

/// List API keys, without their secrets
#[utoipa::path(
    get,
    path = "/api/v1/keys",
    operation_id = "list_keys",
    tag = "Keys",
    responses((status = 200, description = "All keys.", body = KeyListResponse)),
)]
pub(crate) async fn list(managed: Managed, _: Query<NoParameters>) -> Result<Response, ApiError> {
    let keys = managed.live.catalog.keys().await?;
    Ok(json(StatusCode::OK, &KeyListResponse { keys: keys.iter().map(KeyResponse::new).collect() }))
}

/// Create an API key
///
/// The secret is returned only in this response.
#[utoipa::path(
    post,
    path = "/api/v1/keys",
    operation_id = "create_key",
    tag = "Keys",
    request_body = KeyRequest,
    responses((status = 201, description = "Created.", body = KeyResponse, headers(("ETag" = String, description = "The version.")))),
)]
pub(crate) async fn create(managed: Managed, Json(body): Json<KeyRequest>) -> Result<Response, ApiError> {
    let role = required("role", body.role)?;
    let name = body.name.unwrap_or_else(|| role.clone());
    let expires_at = match (body.expires_in_seconds, body.expires_at.as_deref()) {
        (None, None) => None,
        (seconds, at) => Some(expiry(seconds, at)?),
    };
    let write =
        managed.change(Subject::Keys, |catalog, actor| catalog.create_key(actor, &role, &name, expires_at));
    let (key, secret) = write.await?;
    let body = KeyResponse { secret: Some(&secret), ..KeyResponse::new(&key) };
    Ok(shown(StatusCode::CREATED, &body, key.version()))
}

/// Revoke an API key
#[utoipa::path(
    delete,
    path = "/api/v1/keys/{key_id}",
    operation_id = "revoke_key",
    tag = "Keys",
    params(("key_id" = String, Path, description = "The id of the key."), IfMatch),
    responses(
        (status = 204, description = "Revoked."),
        (status = 404, description = "Unknown key."),
        (status = 412, description = "The key was revoked since it was read."),
    )
)]
pub(crate) async fn revoke(managed: Managed, Id(key_id): Id) -> Result<Response, ApiError> {
    let expected = managed.expected()?;
    managed.change(Subject::Keys, |catalog, actor| catalog.revoke_key(actor, &key_id, expected)).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}
