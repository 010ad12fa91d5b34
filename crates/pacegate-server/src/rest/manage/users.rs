//! `/api/v1/users/…`: tiers, custom limits, and the limits in force for a user.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::{LimitOverride, explain::EffectiveLimit, identity, rules::DEFAULT_NAME};
use pacegate_catalog::{CUSTOM_LIMITS_MAX, Sources, User, UserChange};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{IfMatch, Managed, Subject, shown, unchanged};
use crate::app::Shared;
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::answer::LimitNumbers;
use crate::rest::decode::{Count, Integer, Object, Seconds, Whole, inside};
use crate::rest::extract::{Json, NoParameters, Page, PageLimit, Query, UserId};
use crate::rest::json;

/// The numbers that override a rule's for one user, in requests and responses.
#[derive(Debug, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LimitOverride)]
pub(super) struct OverrideBody {
    #[schema(value_type = value::Quota, required = true)]
    pub(super) limit: Option<Count>,
    /// Default: the rule's window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Window>)]
    pub(super) window_seconds: Option<Seconds>,
    /// Default: scaled with the limit, in the rule's own ratio of burst to limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Burst>)]
    pub(super) burst_capacity: Option<Count>,
}

impl OverrideBody {
    pub(super) fn new(numbers: &LimitOverride) -> Self {
        Self {
            limit: Some(Whole(numbers.quota)),
            window_seconds: numbers.window.map(Seconds),
            burst_capacity: numbers.burst.map(Whole),
        }
    }

    /// Returns the numbers if every rule of `dimension` named `rule` accepts them, `None` if the
    /// rule is unknown.
    pub(super) fn numbers(
        &self,
        current: &Sources,
        dimension: &str,
        rule: &str,
    ) -> Result<Option<LimitOverride>, ApiError> {
        let missing = || ApiError::field(Code::InvalidLimit, "limit", "required field is missing");
        let Whole(quota) = self.limit.ok_or_else(missing)?;
        let window = self.window_seconds.map(|Seconds(window)| window);
        let burst = self.burst_capacity.map(|Whole(burst)| burst);
        let numbers = LimitOverride { quota, window, burst };
        let rules = current.rules().filter(|other| other.name == rule && other.dimension == dimension);
        let default = current.file.default_limit.as_ref().filter(|_| rule == DEFAULT_NAME);
        let mut found = None;
        for limit in rules.map(|rule| &rule.limit).chain(default) {
            numbers.apply_to(limit).map_err(invalid_limit)?;
            found = Some(numbers);
        }
        Ok(found)
    }
}

/// The error for numbers that name an unknown rule in `field`.
pub(super) fn unknown_rule(field: &str, dimension: &str, rule: &str) -> ApiError {
    let rule: String = rule.chars().take(128).collect();
    ApiError::input(field, format!("unknown rule `{rule}` in dimension {dimension}"))
}

/// The tier and custom limits of a user.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub(crate) struct TierRequest {
    /// Omitted: unchanged. `null`: removed.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<value::TierName>)]
    tier: Option<Option<String>>,
    /// Keyed by rule name, at most 100. Omitted: unchanged. `null`: all removed.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, OverrideBody>>)]
    custom_limits: Option<Option<BTreeMap<String, Object<OverrideBody>>>>,
    /// Must equal the one in the path. Accepted, like the fields below, so that a response can be
    /// edited and sent back.
    user_id: Option<String>,
    /// Same effect as `If-Match`.
    #[schema(value_type = Option<i64>)]
    version: Option<Integer>,
    /// Must equal the current value.
    updated_at: Option<String>,
    /// Ignored.
    #[schema(value_type = Option<Vec<String>>)]
    #[expect(dead_code, reason = "accepted and ignored")]
    warnings: Option<IgnoredAny>,
}

/// Distinguishes `null` from an absent field.
pub(super) fn given<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// A user's tier and custom limits.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
struct UserResponse<'a> {
    user_id: &'a str,
    #[schema(required = true)]
    tier: Option<&'a str>,
    /// Keyed by rule name.
    #[schema(value_type = BTreeMap<String, OverrideBody>)]
    custom_limits: BTreeMap<&'a str, OverrideBody>,
    version: i64,
    #[schema(value_type = value::Time)]
    updated_at: String,
    /// Values that have no effect, such as a tier that no rule has. Only in responses to changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

impl<'a> UserResponse<'a> {
    fn new(user: &'a User) -> Self {
        let limits = user.custom_limits.iter();
        Self {
            user_id: &user.user_id,
            tier: user.tier.as_deref(),
            custom_limits: limits
                .map(|(name, numbers)| (name.as_str(), OverrideBody::new(numbers)))
                .collect(),
            version: user.version,
            updated_at: rfc3339(user.updated_at),
            warnings: Vec::new(),
        }
    }
}

/// Users with a tier or custom limits.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserList)]
struct UserListResponse<'a> {
    users: Vec<UserResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// List users with a tier or custom limits
#[utoipa::path(
    get,
    path = "/api/v1/users",
    operation_id = "list_users",
    tag = "Users",
    params(Page),
    responses((status = 200, description = "One page of users.", body = UserListResponse)),
)]
pub(crate) async fn list(managed: Managed, Query(page): Query<Page>) -> Result<Response, ApiError> {
    let PageLimit(limit) = page.limit;
    let (users, next_cursor) = managed.live.catalog.user_page(page.cursor.0, limit).await?;
    let users = users.iter().map(UserResponse::new).collect();
    Ok(json(StatusCode::OK, &UserListResponse { users, next_cursor }))
}

/// Get a user's tier and custom limits
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}",
    operation_id = "get_user",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier.")),
    responses(
        (status = 200, description = "The user.", body = UserResponse, headers(("ETag" = String, description = "The user's version."))),
        (status = 404, description = "The user has neither a tier nor custom limits."),
    )
)]
pub(crate) async fn get(
    managed: Managed,
    UserId(user_id): UserId,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let user = managed.live.catalog.user(&user_id).await?;
    let message = "this user has neither a tier nor custom limits";
    let user = user.ok_or_else(|| ApiError::new(Code::NotFound, message))?;
    Ok(shown(StatusCode::OK, &UserResponse::new(&user), user.version))
}

/// Set a user's tier and custom limits
///
/// Omitted fields are unchanged; `null` removes a value.
#[utoipa::path(
    put,
    path = "/api/v1/users/{user_id}/tier",
    operation_id = "put_tier",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier."), IfMatch),
    request_body = TierRequest,
    responses(
        (status = 200, description = "The user after the change.", body = UserResponse, headers(("ETag" = String, description = "The user's version."))),
    )
)]
pub(crate) async fn put_tier(
    managed: Managed,
    UserId(user_id): UserId,
    Json(body): Json<TierRequest>,
) -> Result<Response, ApiError> {
    if body.tier.is_none() && body.custom_limits.is_none() {
        return Err(ApiError::input("tier", "required field is missing; send tier, custom_limits or both"));
    }
    unchanged("user_id", body.user_id.as_deref(), &user_id)?;
    let before = managed.live.catalog.user(&user_id).await?;
    let known = before.as_ref().map(|user| (user.version, user.updated_at));
    let expected = managed.expected_by(body.version, body.updated_at.as_deref(), known)?;
    let kept = before.as_ref().map_or(&[][..], |user| &user.custom_limits);
    let custom_limits = match body.custom_limits {
        Some(limits) => Some(read_limits(limits.unwrap_or_default(), kept, &managed.live.sources())?),
        None => None,
    };
    let wanted = UserChange { tier: body.tier, custom_limits };
    let write = managed.change(Subject::User(&user_id), |catalog, actor| {
        catalog.put_user(actor, &user_id, wanted, expected)
    });
    let user = write.await?;
    let warning = user.tier.as_deref().and_then(|tier| tier_warning(&managed.live.sources(), tier));
    let body = UserResponse { warnings: warning.into_iter().collect(), ..UserResponse::new(&user) };
    Ok(shown(StatusCode::OK, &body, user.version))
}

/// The warning for a tier that no rule has.
pub(super) fn tier_warning(current: &Sources, tier: &str) -> Option<String> {
    let is_known = current.rules().any(|rule| rule.tier.as_deref() == Some(tier));
    (!is_known)
        .then(|| format!("no rule has the tier `{tier}`; its users get the limits of users without a tier"))
}

fn read_limits(
    limits: BTreeMap<String, Object<OverrideBody>>,
    kept: &[(String, LimitOverride)],
    current: &Sources,
) -> Result<Vec<(String, LimitOverride)>, ApiError> {
    if limits.len() > CUSTOM_LIMITS_MAX {
        let reason = format!("must have at most {CUSTOM_LIMITS_MAX} entries, got {}", limits.len());
        return Err(ApiError::input("custom_limits", reason));
    }
    let numbers = limits.into_iter().map(|(name, Object(body))| {
        // An unchanged entry is kept even if its rule was changed or removed since.
        if let Some((_, own)) = kept.iter().find(|(own, _)| *own == name)
            && body == OverrideBody::new(own)
        {
            return Ok((name, *own));
        }
        read_limit(&name, &body, current).map(|numbers| (name, numbers))
    });
    numbers.collect()
}

/// Returns the numbers of one entry of `custom_limits`.
pub(super) fn read_limit(
    rule: &str,
    body: &OverrideBody,
    current: &Sources,
) -> Result<LimitOverride, ApiError> {
    let path = format!("custom_limits.{}", rule.chars().take(128).collect::<String>());
    let numbers = body.numbers(current, identity::USER, rule).map_err(|error| inside(error, &path))?;
    numbers.ok_or_else(|| unknown_rule(&path, identity::USER, rule))
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

/// A limit in force, why it applies, and its usage.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserLimit)]
pub(super) struct EffectiveResponse<'a> {
    rule: &'a str,
    #[schema(value_type = value::WhyName)]
    why: &'static str,
    endpoint_pattern: &'a str,
    #[schema(required = true)]
    method: Option<&'a str>,
    #[serde(flatten)]
    numbers: LimitNumbers<'a>,
    #[schema(value_type = value::ModeName)]
    mode: &'static str,
    /// Null, like the fields below, if every endpoint has its own counter.
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
    pub(super) fn new(effective: &'a EffectiveLimit) -> Self {
        let (limit, answer) = (&effective.limit.limit, effective.answer.as_ref());
        let used = answer.and_then(crate::rest::answer::used);
        Self {
            rule: &effective.limit.name,
            why: effective.limit.why.name(),
            endpoint_pattern: effective.endpoint.as_str(),
            method: effective.methods.as_text(),
            numbers: LimitNumbers::new(&effective.limit, effective.unlimited),
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

/// List the limits in force for a user, why they apply, and their usage
#[utoipa::path(
    get,
    path = "/api/v1/users/{user_id}/limits",
    operation_id = "user_limits",
    tag = "Users",
    params(("user_id" = value::UserId, Path, description = "The user's identifier.")),
    responses((status = 200, description = "All limits in force.", body = LimitsResponse)),
)]
pub(crate) async fn limits(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    UserId(user_id): UserId,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    // Read from the catalog, not from this node's cache.
    let (profile, _) = managed.live.catalog.profile(&user_id, now()).await?;
    let found = shared.limiter.limits_of("user", &user_id, Some(&profile)).await?;
    let body = LimitsResponse {
        user_id: &user_id,
        tier: profile.tier.as_deref(),
        limits: found.iter().map(EffectiveResponse::new).collect(),
    };
    Ok(json(StatusCode::OK, &body))
}
