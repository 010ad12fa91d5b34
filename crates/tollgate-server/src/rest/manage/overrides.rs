//! `/api/v1/users/{user_id}/override`: temporary limits.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use jiff::Timestamp as Time;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use tollgate::Timestamp;
use tollgate_catalog::{NewOverride, Override};

use super::users::NumbersWire;
use super::{Managed, PathParts, empty, path_part, path_parts, rfc3339};
use crate::app::Shared;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};

/// What is meant to last is a rule.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideRequest {
    rule: Option<String>,
    limit: Option<u64>,
    window_seconds: Option<Number>,
    burst_capacity: Option<u64>,
    expires_in_seconds: Option<u64>,
    expires_at: Option<String>,
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

#[derive(Debug, Serialize)]
struct OverrideResponse<'a> {
    id: &'a str,
    user_id: &'a str,
    rule: &'a str,
    #[serde(flatten)]
    numbers: NumbersWire,
    expires_at: String,
    reason: Option<&'a str>,
    created_at: String,
}

impl<'a> OverrideResponse<'a> {
    fn new(stored: &'a Override) -> Self {
        Self {
            id: &stored.override_id,
            user_id: &stored.user_id,
            rule: &stored.rule,
            numbers: NumbersWire::of(&stored.numbers),
            expires_at: rfc3339(stored.expires_at),
            reason: stored.reason.as_deref(),
            created_at: rfc3339(stored.created_at),
        }
    }
}

#[derive(Debug, Serialize)]
struct OverrideListResponse<'a> {
    overrides: Vec<OverrideResponse<'a>>,
}

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
    let numbers = wire.numbers(&managed.live.current(), &rule, "")?;
    let made = NewOverride { user_id: user_id.clone(), rule, numbers, reason: request.reason, expires_at };
    let stored = managed.live.catalog.add_override(&managed.actor, made).await?;
    managed.in_force().await;
    managed.live.profiles.forget(&user_id).await;
    Ok(json(StatusCode::CREATED, &OverrideResponse::new(&stored)))
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let stored = managed.live.catalog.overrides(&path_part(path)?, now()).await?;
    let overrides = stored.iter().map(OverrideResponse::new).collect();
    Ok(json(StatusCode::OK, &OverrideListResponse { overrides }))
}

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
    managed.live.catalog.delete_override(&managed.actor, user_id, override_id).await?;
    managed.in_force().await;
    managed.live.profiles.forget(user_id).await;
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
