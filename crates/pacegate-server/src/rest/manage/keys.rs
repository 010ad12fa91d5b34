//! `/api/v1/keys`: API keys. A secret is shown once, when its key is made.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate_catalog::StoredKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::overrides::expiry;
use super::{Managed, PathParts, empty, path_part, rfc3339, with_etag};
use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};

/// A key to be made. It never ends unless `expires_in_seconds` or `expires_at` is given, at most 366 days away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    #[schema(value_type = value::RoleName, required = true)]
    role: Option<String>,
    /// The role's unless given.
    #[schema(value_type = Option<value::KeyName>)]
    name: Option<String>,
    #[schema(value_type = Option<value::Lifetime>)]
    expires_in_seconds: Option<u64>,
    #[schema(value_type = Option<value::Time>)]
    expires_at: Option<String>,
}

const FIELDS: [(&str, Kind); 4] = [
    ("role", Kind::Text),
    ("name", Kind::Text),
    ("expires_in_seconds", Kind::Count),
    ("expires_at", Kind::Text),
];

/// A key as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
struct KeyResponse<'a> {
    key_id: &'a str,
    /// Only in the answer that made the key.
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

/// All API keys, without their secrets
#[utoipa::path(
    get,
    path = "/api/v1/keys",
    operation_id = "list_keys",
    tag = "Keys",
    responses((status = 200, description = "All of them.", body = KeyListResponse)),
)]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let keys = managed.live.catalog.keys().await?;
    Ok(json(StatusCode::OK, &KeyListResponse { keys: keys.iter().map(KeyResponse::new).collect() }))
}

/// Makes an API key
///
/// Its secret is in this answer and never again.
#[utoipa::path(
    post,
    path = "/api/v1/keys",
    operation_id = "create_key",
    tag = "Keys",
    request_body = KeyRequest,
    responses((status = 201, description = "It is made.", body = KeyResponse, headers(("ETag" = String, description = "its version")))),
)]
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let request: KeyRequest = read_object(&body, &FIELDS)?;
    let role = request.role.ok_or_else(|| ApiError::input("role", "is missing"))?;
    let name = request.name.unwrap_or_else(|| role.clone());
    let expires_at = match (request.expires_in_seconds, request.expires_at.as_deref()) {
        (None, None) => None,
        (seconds, at) => Some(expiry(seconds, at)?),
    };
    let (key, secret) = managed.live.catalog.create_key(&managed.actor, &role, &name, expires_at).await?;
    managed.in_force().await;
    let body = KeyResponse { secret: Some(&secret), ..KeyResponse::new(&key) };
    Ok(with_etag(json(StatusCode::CREATED, &body), key.version()))
}

/// Revokes an API key
#[utoipa::path(
    delete,
    path = "/api/v1/keys/{key_id}",
    operation_id = "revoke_key",
    tag = "Keys",
    params(("key_id" = String, Path, description = "the id of a key"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    responses(
        (status = 204, description = "It opens nothing any more."),
        (status = 404, description = "There is no such key."),
        (status = 412, description = "It was revoked since it was read."),
    )
)]
pub(crate) async fn revoke(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.live.catalog.revoke_key(&managed.actor, &path_part(path)?, managed.expected()?).await?;
    managed.in_force().await;
    managed.live.keys.forget();
    Ok(empty(StatusCode::NO_CONTENT))
}
