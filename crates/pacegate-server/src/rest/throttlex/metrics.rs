//! `/admin/metrics`: usage of keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::{Answer, Decision, NamedLimit, Standing, Timestamp, explain::EffectiveLimit};
use pacegate_catalog::{Period, PolicyDetail, StoredRule, UsageRecord};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{DIMENSION, check_of, is_policy, kind, of_key, page_of, shown_window, with_next};
use crate::app::Shared;
use crate::clock::now;
use crate::observe::usage::OTHERS;
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::answer::used;
use crate::rest::extract::{Id, Page, PageLimit, Query};
use crate::rest::json;
use crate::rest::manage::Managed;

/// The usage of one key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = KeyMetrics)]
struct MetricsResponse {
    key: String,
    /// `key` for keys with a policy.
    #[schema(value_type = value::Dimension)]
    dimension: String,
    /// Null, like the numbers, when no limit applies.
    #[schema(required = true, value_type = Option<value::PolicyType>)]
    algorithm: Option<String>,
    #[schema(required = true)]
    current_tokens: Option<u32>,
    #[schema(required = true)]
    capacity: Option<u32>,
    #[schema(required = true)]
    window_request_count: Option<u32>,
    #[schema(required = true)]
    window_seconds: Option<u64>,
    #[schema(value_type = value::KeyCondition)]
    status: &'static str,
    /// Allowed requests within the last 24 hours. In lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    allowed: Option<u64>,
    /// Denied requests within the last 24 hours. In lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    blocked: Option<u64>,
}

impl MetricsResponse {
    /// The usage of `key`, which may have a policy, under the binding limit.
    fn bound(key: &str, policy: Option<&StoredRule>, decision: &Decision) -> Self {
        let policy = policy.and_then(|stored| stored.policy);
        Self::new(DIMENSION, key, decision.binding_limit(), policy, decision.binding())
    }

    /// The usage of an identifier, under the limit with the highest usage.
    fn fullest(dimension: &str, key: &str, limits: &[EffectiveLimit]) -> Self {
        let fill = |answer: &Answer| {
            u64::from(used(answer).unwrap_or_default()) * 1_000_000 / u64::from(answer.capacity).max(1)
        };
        let fullest = limits.iter().max_by_key(|limit| limit.answer.as_ref().map(fill));
        let (limit, answer) =
            (fullest.map(|limit| &*limit.limit), fullest.and_then(|limit| limit.answer.as_ref()));
        Self::new(dimension, key, limit, None, answer)
    }

    fn new(
        dimension: &str,
        key: &str,
        limit: Option<&NamedLimit>,
        policy: Option<PolicyDetail>,
        answer: Option<&Answer>,
    ) -> Self {
        Self {
            key: key.to_owned(),
            dimension: dimension.to_owned(),
            algorithm: limit.map(|limit| kind(limit.limit.algorithm())),
            current_tokens: answer.and_then(|answer| answer.remaining),
            capacity: limit.map(|limit| limit.limit.capacity()),
            window_request_count: answer.and_then(used),
            window_seconds: limit.map(|limit| shown_window(&limit.limit, policy)),
            status: match answer {
                Some(answer) if answer.degraded => "UNKNOWN",
                Some(answer) if answer.standing == Standing::Throttled => "THROTTLED",
                Some(answer) if answer.standing == Standing::Warning => "WARNING",
                _ => "OK",
            },
            allowed: None,
            blocked: None,
        }
    }
}

/// Keys that were used within this time are listed.
const USED_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// Prefix of cursors within the keys without a policy, which come last.
const USAGE_CURSOR: &str = "used-";

/// List the usage of all keys
///
/// Keys with a policy first, then all others that were used within the last 24 hours. Usage is
/// written every ten seconds.
#[utoipa::path(
    get,
    path = "/admin/metrics",
    operation_id = "admin_metrics",
    tag = "ThrottleX",
    params(Page),
    responses((status = 200, description = "One page of keys.", body = Vec<MetricsResponse>, headers(
        ("Link" = String, description = "The next page, as `rel=\"next\"`."),
    ))),
)]
pub(crate) async fn metrics(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Query(page): Query<Page>,
) -> Result<Response, ApiError> {
    let (PageLimit(limit), current) = (page.limit, managed.live.sources());
    let mut shown = Vec::new();
    let after_used = match page.cursor.0.as_deref().map(|cursor| cursor.strip_prefix(USAGE_CURSOR)) {
        Some(Some(after)) => Some(after.to_owned()).filter(|after| !after.is_empty()),
        Some(None) | None => {
            let (policies, next) = page_of(&current.catalog.rules, page.cursor.number()?, limit);
            for stored in policies {
                let key = stored.rule.identifier.as_deref().unwrap_or_default();
                let decision = shared.limiter.peek(&check_of(key)).await?;
                shown.push(MetricsResponse::bound(key, Some(stored), &decision));
            }
            let next = next.map(|next| next.to_string());
            if next.is_some() || shown.len() == limit {
                let next = next.unwrap_or_else(|| USAGE_CURSOR.to_owned());
                return Ok(with_next(json(StatusCode::OK, &shown), "/admin/metrics", Some(next)));
            }
            None
        }
    };
    let since = Timestamp::from_micros(now().as_micros().saturating_sub(USED_WITHIN.as_micros() as u64));
    let rest = limit - shown.len();
    let (records, next) = managed.live.catalog.usage_page(Period::Hour, since, after_used, rest).await?;
    let listed = current.catalog.rules.iter().map(|stored| &stored.rule).filter(|rule| is_policy(rule));
    let policies: HashSet<&str> = listed.filter_map(|rule| rule.identifier.as_deref()).collect();
    let has_policy = |usage: &UsageRecord| {
        let covered = &current.file.policy_dimensions;
        policies.contains(&*usage.identifier)
            && (usage.dimension == DIMENSION || covered.contains(&usage.dimension))
    };
    for usage in records.iter().filter(|usage| !has_policy(usage) && usage.identifier != OTHERS) {
        let row = used_by(&shared, &usage.dimension, &usage.identifier).await?;
        shown.push(MetricsResponse { allowed: Some(usage.allowed), blocked: Some(usage.blocked), ..row });
    }
    let next = next.map(|next| format!("{USAGE_CURSOR}{next}"));
    Ok(with_next(json(StatusCode::OK, &shown), "/admin/metrics", next))
}

/// The usage of an identifier without a policy in the catalog, under those of its limits that have
/// one counter for all endpoints.
async fn used_by(shared: &Shared, dimension: &str, key: &str) -> Result<MetricsResponse, ApiError> {
    let profile = shared.profile(Some(key).filter(|_| dimension == "user")).await;
    let limits = shared.limiter.limits_of(dimension, key, profile.as_deref()).await.map_err(of_key)?;
    Ok(MetricsResponse::fullest(dimension, key, &limits))
}

/// The identifier whose usage is requested.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyQuery {
    /// The dimension of the identifier. Default: `key`.
    #[param(value_type = Option<value::Dimension>)]
    dimension: Option<String>,
}

/// Get the usage of one key
#[utoipa::path(
    get,
    path = "/admin/metrics/{key}",
    operation_id = "admin_metrics_of",
    tag = "ThrottleX",
    params(
        ("key" = value::Identifier, Path, description = "The key of a policy, or any identifier."),
        KeyQuery,
    ),
    responses((status = 200, description = "The usage of the key.", body = MetricsResponse)),
)]
pub(crate) async fn metrics_of(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Id(key): Id,
    Query(query): Query<KeyQuery>,
) -> Result<Response, ApiError> {
    if let Some(dimension) = query.dimension.filter(|dimension| dimension != DIMENSION) {
        return Ok(json(StatusCode::OK, &used_by(&shared, &dimension, &key).await?));
    }
    let decision = shared.limiter.peek(&check_of(&key)).await.map_err(of_key)?;
    let current = managed.live.sources();
    let mut policies = current.catalog.rules.iter().filter(|stored| is_policy(&stored.rule));
    let policy = policies.find(|stored| stored.rule.identifier.as_deref() == Some(&key));
    Ok(json(StatusCode::OK, &MetricsResponse::bound(&key, policy, &decision)))
}
