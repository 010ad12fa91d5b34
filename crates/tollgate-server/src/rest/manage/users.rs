//! `/api/v1/users/…`: tiers, limits of a user's own, and what is in force for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use tollgate::{EffectiveLimit, Mode, Numbers};
use tollgate_catalog::User;

use super::rule_wire::read_window;
use super::{Managed, PathParts, path_part, rfc3339, with_etag};
use crate::app::Shared;
use crate::live::Current;
use crate::profiles::now;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};

/// How many rules a user can have limits of their own for.
const CUSTOM_LIMITS_MAX: usize = 100;

/// Numbers for one rule, in requests and answers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumbersWire {
    pub(super) limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window_seconds: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst_capacity: Option<u64>,
}

impl NumbersWire {
    pub(super) fn of(numbers: &Numbers) -> Self {
        Self {
            limit: Some(numbers.quota),
            window_seconds: numbers.window.and_then(|window| {
                let whole = (window.subsec_nanos() == 0).then(|| Number::from(window.as_secs()));
                whole.or_else(|| Number::from_f64(window.as_secs_f64()))
            }),
            burst_capacity: numbers.burst,
        }
    }

    /// The numbers, if every rule named `rule` can have them. `field` is where they stand in the request.
    pub(super) fn numbers(&self, current: &Current, rule: &str, field: &str) -> Result<Numbers, ApiError> {
        let inside = |error: ApiError| {
            let (name, reason) = error.details.unwrap_or_default();
            let path = if field.is_empty() { name } else { format!("{field}.{name}") };
            ApiError::field(error.code, &path, reason)
        };
        let quota = self.limit;
        let quota =
            quota.ok_or_else(|| inside(ApiError::field(Code::InvalidLimit, "limit", "is missing")))?;
        let window = self.window_seconds.as_ref().map(read_window).transpose().map_err(inside)?;
        let numbers = Numbers { quota, window, burst: self.burst_capacity };
        let mut known = false;
        for rule in current.rules().filter(|other| other.name == rule && other.dimension == "user") {
            known = true;
            numbers.apply_to(&rule.limit).map_err(|error| inside(invalid_limit(error)))?;
        }
        if known {
            return Ok(numbers);
        }
        let rule: String = rule.chars().take(128).collect();
        let field = if field.is_empty() { "rule" } else { field };
        Err(ApiError::input(field, format!("there is no rule `{rule}` in dimension user")))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TierRequest {
    /// Missing: stays as it is. `null`: none.
    #[serde(default, deserialize_with = "given")]
    tier: Option<Option<String>>,
    #[serde(default, deserialize_with = "given")]
    custom_limits: Option<Option<BTreeMap<String, NumbersWire>>>,
}

/// Tells `null` from what is not there.
fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

const FIELDS: [(&str, Kind); 2] = [("tier", Kind::Text), ("custom_limits", Kind::Limits)];

#[derive(Debug, Serialize)]
struct UserResponse<'a> {
    user_id: &'a str,
    tier: Option<&'a str>,
    custom_limits: BTreeMap<&'a str, NumbersWire>,
    version: i64,
    updated_at: String,
}

impl<'a> UserResponse<'a> {
    fn new(user: &'a User) -> Self {
        let limits = user.custom_limits.iter();
        Self {
            user_id: &user.user_id,
            tier: user.tier.as_deref(),
            custom_limits: limits.map(|(name, numbers)| (name.as_str(), NumbersWire::of(numbers))).collect(),
            version: user.version,
            updated_at: rfc3339(user.updated_at),
        }
    }
}

#[derive(Debug, Serialize)]
struct UserListResponse<'a> {
    users: Vec<UserResponse<'a>>,
    next_cursor: Option<String>,
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let page = managed.page(&[])?;
    let (users, next_cursor) = managed.live.catalog.user_page(page.cursor, page.limit).await?;
    let users = users.iter().map(UserResponse::new).collect();
    Ok(json(StatusCode::OK, &UserListResponse { users, next_cursor }))
}

pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let user = managed.live.catalog.user(&path_part(path)?).await?;
    let message = "this user has neither a tier nor limits of their own";
    let user = user.ok_or_else(|| ApiError::new(Code::NotFound, message))?;
    Ok(with_etag(json(StatusCode::OK, &UserResponse::new(&user)), user.version))
}

pub(crate) async fn put_tier(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let user_id = path_part(path)?;
    let request: TierRequest = read_object(&body, &FIELDS)?;
    if request.tier.is_none() && request.custom_limits.is_none() {
        return Err(ApiError::input("tier", "is missing; give tier, custom_limits or both"));
    }
    let before = managed.live.catalog.user(&user_id).await?;
    let tier = match request.tier {
        None => before.as_ref().and_then(|user| user.tier.clone()),
        Some(tier) => tier,
    };
    let custom_limits = match request.custom_limits {
        None => before.map(|user| user.custom_limits).unwrap_or_default(),
        Some(limits) => {
            let (limits, current) = (limits.unwrap_or_default(), managed.live.current());
            if limits.len() > CUSTOM_LIMITS_MAX {
                return Err(ApiError::input("custom_limits", format!("must be at most {CUSTOM_LIMITS_MAX}")));
            }
            let numbers = limits.iter().map(|(name, wire)| {
                let shown: String = name.chars().take(128).collect();
                Ok((name.clone(), wire.numbers(&current, name, &format!("custom_limits.{shown}"))?))
            });
            numbers.collect::<Result<_, ApiError>>()?
        }
    };
    let user =
        managed.live.catalog.put_user(&managed.actor, &user_id, tier.as_deref(), &custom_limits).await?;
    managed.in_force().await;
    managed.live.profiles.forget(&user_id).await;
    Ok(with_etag(json(StatusCode::OK, &UserResponse::new(&user)), user.version))
}

#[derive(Debug, Serialize)]
struct LimitsResponse<'a> {
    user_id: &'a str,
    tier: Option<&'a str>,
    limits: Vec<EffectiveResponse<'a>>,
}

/// A limit in force, why, and how much of it is used.
#[derive(Debug, Serialize)]
struct EffectiveResponse<'a> {
    rule: &'a str,
    why: &'static str,
    endpoint_pattern: &'a str,
    method: Option<&'a str>,
    algorithm: &'static str,
    limit: u32,
    #[serde(serialize_with = "crate::rest::answer::seconds")]
    window_seconds: Duration,
    burst_capacity: u32,
    mode: &'static str,
    remaining: Option<u32>,
    current_count: Option<u32>,
    usage_percentage: Option<f64>,
    reset_at: Option<u64>,
    state: Option<&'static str>,
    degraded: bool,
}

impl<'a> EffectiveResponse<'a> {
    fn new(effective: &'a EffectiveLimit) -> Self {
        let (limit, answer) = (&effective.limit.limit, effective.answer.as_ref());
        let used = answer.and_then(crate::rest::answer::used);
        Self {
            rule: &effective.limit.name,
            why: effective.limit.why.name(),
            endpoint_pattern: effective.endpoint.as_str(),
            method: effective.method.as_deref(),
            algorithm: limit.algorithm().name(),
            limit: limit.quota(),
            window_seconds: limit.window(),
            burst_capacity: limit.capacity(),
            mode: if effective.limit.mode == Mode::Shadow { "shadow" } else { "enforce" },
            remaining: answer.and_then(|answer| answer.remaining),
            current_count: used,
            usage_percentage: used
                .map(|used| (u64::from(used) * 1_000 / u64::from(limit.capacity())) as f64 / 10.0),
            reset_at: answer.and_then(|answer| answer.reset_at).map(|at| at.as_secs_ceil()),
            state: answer.map(|answer| answer.standing.name()),
            degraded: answer.is_some_and(|answer| answer.degraded),
        }
    }
}

pub(crate) async fn limits(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let user_id = path_part(path)?;
    // As the catalog has it, not as this node remembers it.
    let (profile, _) = managed.live.catalog.profile(&user_id, now()).await?;
    let found = shared.limiter.limits_of("user", &user_id, Some(&profile)).await?;
    let body = LimitsResponse {
        user_id: &user_id,
        tier: profile.tier.as_deref(),
        limits: found.iter().map(EffectiveResponse::new).collect(),
    };
    Ok(json(StatusCode::OK, &body))
}
