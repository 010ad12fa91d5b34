//! `/api/v1/keys`: API keys. A secret is shown once, when its key is made.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use tollgate_catalog::StoredKey;

use super::overrides::expiry;
use super::{Managed, PathParts, empty, path_part, rfc3339};
use crate::app::Shared;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    role: Option<String>,
    name: Option<String>,
    expires_in_seconds: Option<u64>,
    expires_at: Option<String>,
}

const FIELDS: [(&str, Kind); 4] = [
    ("role", Kind::Text),
    ("name", Kind::Text),
    ("expires_in_seconds", Kind::Count),
    ("expires_at", Kind::Text),
];

#[derive(Debug, Serialize)]
struct KeyResponse<'a> {
    key_id: &'a str,
    /// Only in the answer that made the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
    name: &'a str,
    role: &'a str,
    state: &'static str,
    created_at: String,
    expires_at: Option<String>,
    revoked_at: Option<String>,
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

#[derive(Debug, Serialize)]
struct KeyListResponse<'a> {
    keys: Vec<KeyResponse<'a>>,
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let keys = managed.live.catalog.keys().await?;
    Ok(json(StatusCode::OK, &KeyListResponse { keys: keys.iter().map(KeyResponse::new).collect() }))
}

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
    Ok(json(StatusCode::CREATED, &body))
}

pub(crate) async fn revoke(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.live.catalog.revoke_key(&managed.actor, &path_part(path)?).await?;
    managed.in_force().await;
    managed.live.keys.forget();
    Ok(empty(StatusCode::NO_CONTENT))
}
