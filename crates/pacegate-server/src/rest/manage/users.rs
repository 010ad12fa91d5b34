//! `/api/v1/users/…`: tiers, limits of a user's own, and what is in force for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::{DEFAULT_NAME, EffectiveLimit, LimitOverride};
use pacegate_catalog::{CUSTOM_LIMITS_MAX, User, UserChange};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::rule_wire::read_window;
use super::{Managed, PathParts, path_part, rfc3339, unchanged, with_etag};
use crate::app::Shared;
use crate::openapi::parameters::PageParameters;
use crate::openapi::vocabulary as value;
use crate::profiles::now;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::answer::burst;
use crate::rest::json;
use crate::rest::wire::{Kind, read_object};
use pacegate_catalog::Sources;

/// LimitOverride for one rule, in requests and answers.
#[derive(Debug, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitOverride)]
pub(super) struct NumbersWire {
    #[schema(value_type = value::Quota, required = true)]
    pub(super) limit: Option<u64>,
    /// The rule's own unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Window>)]
    pub(super) window_seconds: Option<Number>,
    /// In the rule's own ratio to the limit unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Burst>)]
    pub(super) burst_capacity: Option<u64>,
}

impl NumbersWire {
    pub(super) fn of(numbers: &LimitOverride) -> Self {
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
    pub(super) fn numbers(
        &self,
        current: &Sources,
        rule: &str,
        field: &str,
    ) -> Result<LimitOverride, ApiError> {
        let inside = |error: ApiError| {
            let (name, reason) = error.details.unwrap_or_default();
            let path = if field.is_empty() { name } else { format!("{field}.{name}") };
            ApiError::field(error.code, &path, reason)
        };
        let quota = self.limit;
        let quota =
            quota.ok_or_else(|| inside(ApiError::field(Code::InvalidLimit, "limit", "is missing")))?;
        let window = self.window_seconds.as_ref().map(read_window).transpose().map_err(inside)?;
        let numbers = LimitOverride { quota, window, burst: self.burst_capacity };
        let mut known = false;
        let rules = current.rules().filter(|other| other.name == rule && other.dimension == "user");
        let default = current.file.default_limit.as_ref().filter(|_| rule == DEFAULT_NAME);
        for limit in rules.map(|rule| &rule.limit).chain(default) {
            known = true;
            numbers.apply_to(limit).map_err(|error| inside(invalid_limit(error)))?;
        }
        if known {
            return Ok(numbers);
        }
        let rule: String = rule.chars().take(128).collect();
        let field = if field.is_empty() { "rule" } else { field };
        Err(ApiError::input(field, format!("unknown rule `{rule}` in dimension user")))
    }
}

/// The tier and the limits of a user's own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
struct TierRequest {
    /// Missing: stays as it is. `null`: none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<value::TierName>)]
    tier: Option<Option<String>>,
    /// By the names of rules, at most 100. Missing: stay as they are. `null`: none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, NumbersWire>>)]
    custom_limits: Option<Option<BTreeMap<String, NumbersWire>>>,
    /// This and what follows are taken so that an answer can be edited and sent back. Must be the one in the path.
    user_id: Option<String>,
    /// As `If-Match`.
    version: Option<i64>,
    /// Must be the one shown.
    updated_at: Option<String>,
}

/// Tells `null` from what is not there.
fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

const FIELDS: [(&str, Kind); 5] = [
    ("tier", Kind::Text),
    ("custom_limits", Kind::Limits),
    ("user_id", Kind::Text),
    ("version", Kind::Integer),
    ("updated_at", Kind::Text),
];

/// What a user has.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
struct UserResponse<'a> {
    user_id: &'a str,
    #[schema(required = true)]
    tier: Option<&'a str>,
    /// By the names of rules.
    #[schema(value_type = BTreeMap<String, NumbersWire>)]
    custom_limits: BTreeMap<&'a str, NumbersWire>,
    version: i64,
    #[schema(value_type = value::Time)]
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

/// Users that have a tier or limits of their own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserList)]
struct UserListResponse<'a> {
    users: Vec<UserResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// All users that have a tier or limits of their own
#[utoipa::path(
    get,
    path = "/api/v1/users",
    operation_id = "list_users",
    tag = "Users",
    params(PageParameters),
    responses((status = 200, description = "One page of them.", body = UserListResponse)),
)]
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

/// One user
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}",
    operation_id = "get_user",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about")),
    responses(
        (status = 200, description = "What the user has.", body = UserResponse, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "The user has neither a tier nor limits of their own."),
    )
)]
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

/// Sets a user's tier and limits of their own
///
/// What is left out stays, `null` removes it.
#[utoipa::path(
    put,
    path = "/api/v1/users/{user_id}/tier",
    operation_id = "put_tier",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    request_body = TierRequest,
    responses(
        (status = 200, description = "What the user has now.", body = UserResponse, headers(("ETag" = String, description = "its version"))),
        (status = 412, description = "It was changed since it was read."),
    )
)]
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
    unchanged("user_id", request.user_id.as_deref(), &user_id)?;
    let before = managed.live.catalog.user(&user_id).await?;
    let known = before.as_ref().map(|user| (user.version, user.updated_at));
    let expected = managed.expected_by(request.version, request.updated_at.as_deref(), known)?;
    let kept = before.as_ref().map_or(&[][..], |user| &user.custom_limits);
    let read_limits = |limits: Option<BTreeMap<String, NumbersWire>>| {
        let (limits, current) = (limits.unwrap_or_default(), managed.live.sources());
        if limits.len() > CUSTOM_LIMITS_MAX {
            return Err(ApiError::input("custom_limits", format!("must be at most {CUSTOM_LIMITS_MAX}")));
        }
        let numbers = limits.iter().map(|(name, wire)| {
            // What is sent back as it was stays, even if its rule was changed or removed since.
            if let Some((_, own)) = kept.iter().find(|(own, _)| own == name)
                && *wire == NumbersWire::of(own)
            {
                return Ok((name.clone(), *own));
            }
            let shown: String = name.chars().take(128).collect();
            Ok((name.clone(), wire.numbers(&current, name, &format!("custom_limits.{shown}"))?))
        });
        numbers.collect::<Result<Vec<_>, ApiError>>()
    };
    let custom_limits = request.custom_limits.map(read_limits).transpose()?;
    let wanted = UserChange { tier: request.tier, custom_limits };
    let user = managed.live.catalog.put_user(&managed.actor, &user_id, wanted, expected).await?;
    managed.in_force().await;
    managed.live.profiles.forget(&user_id);
    Ok(with_etag(json(StatusCode::OK, &UserResponse::new(&user)), user.version))
}

/// The limits in force for a user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserLimits)]
struct LimitsResponse<'a> {
    user_id: &'a str,
    #[schema(required = true)]
    tier: Option<&'a str>,
    limits: Vec<EffectiveResponse<'a>>,
}

/// A limit in force, why, and how much of it is used.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserLimit)]
struct EffectiveResponse<'a> {
    rule: &'a str,
    #[schema(value_type = value::WhyName)]
    why: &'static str,
    endpoint_pattern: &'a str,
    #[schema(required = true)]
    method: Option<&'a str>,
    /// What it counts, if not requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
    /// Whether what it applies to is not limited; it has no numbers then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    unlimited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<value::AlgorithmName>)]
    algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<u32>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::rest::answer::optional_seconds"
    )]
    #[schema(nullable = false, value_type = Option<value::Window>)]
    window_seconds: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    burst_capacity: Option<u32>,
    #[schema(value_type = value::ModeName)]
    mode: &'static str,
    /// Null, as what follows, where every endpoint has its own counter.
    #[schema(required = true)]
    remaining: Option<u32>,
    #[schema(required = true)]
    current_count: Option<u32>,
    #[schema(required = true, minimum = 0, maximum = 100)]
    usage_percentage: Option<f64>,
    #[schema(required = true)]
    reset_at: Option<u64>,
    #[schema(required = true, value_type = Option<value::StandingName>)]
    state: Option<&'static str>,
    degraded: bool,
}

impl<'a> EffectiveResponse<'a> {
    fn new(effective: &'a EffectiveLimit) -> Self {
        let (limit, answer) = (&effective.limit.limit, effective.answer.as_ref());
        let used = answer.and_then(crate::rest::answer::used);
        let numbers = Some(limit).filter(|_| !effective.unlimited);
        Self {
            rule: &effective.limit.name,
            why: effective.limit.why.name(),
            endpoint_pattern: effective.endpoint.as_str(),
            method: effective.methods.as_text(),
            unit: effective.limit.unit.as_deref(),
            unlimited: effective.unlimited,
            algorithm: numbers.map(|limit| limit.algorithm().name()),
            limit: numbers.map(pacegate::Limit::quota),
            window_seconds: numbers.map(pacegate::Limit::window),
            burst_capacity: numbers.and_then(burst),
            mode: effective.limit.mode.name(),
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

/// The limits in force for a user, why, and how much is used
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}/limits",
    operation_id = "user_limits",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "whom it is about")),
    responses((status = 200, description = "All of them.", body = LimitsResponse)),
)]
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
