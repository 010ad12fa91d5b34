//! `/admin/status`, `/admin/metrics` and `/admin/reset`: operations in ThrottleX's form.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::{Answer, Check, Decision, EffectiveLimit, NamedLimit, Standing, StoreHealth, Timestamp};
use pacegate_catalog::{Period, PolicyDetail, StoredRule, UsageRecord};
use serde::Serialize;
use utoipa::ToSchema;

use super::policies::{DIMENSION, after, is_policy, kind, shown_window, with_next};
use super::{Managed, PathParts, path_part, rfc3339};
use crate::app::Shared;
use crate::observe::usage::OTHERS;
use crate::openapi::parameters::PageParameters;
use crate::openapi::vocabulary as value;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::answer::used;
use crate::rest::json;

/// How the service is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ServiceStatus)]
struct StatusResponse<'a> {
    #[schema(value_type = value::Condition)]
    status: &'static str,
    version: &'static str,
    uptime_seconds: u64,
    stores: Vec<PartStatus<'a>>,
    catalog: PartStatus<'a>,
    rules: usize,
    rules_revision: i64,
    state_transitions: Transitions,
    log_dropped: u64,
}

/// How a store or the catalog is.
#[derive(Debug, Serialize, ToSchema)]
struct PartStatus<'a> {
    name: &'a str,
    #[schema(value_type = value::Condition)]
    status: &'static str,
}

/// How often keys of this node changed their state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StateTransitions)]
struct Transitions {
    normal: u64,
    warning: u64,
    throttled: u64,
}

/// How the service, its stores and its catalog are
#[utoipa::path(
    get,
    path = "/admin/status",
    operation_id = "admin_status",
    tag = "ThrottleX",
    responses((status = 200, description = "Up or down, part by part.", body = StatusResponse)),
)]
pub(crate) async fn status(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let up = |is_up: bool| if is_up { "UP" } else { "DOWN" };
    let stores: Vec<PartStatus<'_>> = shared
        .limiter
        .stores()
        .health()
        .map(|(name, health)| PartStatus { name, status: up(health == StoreHealth::Up) })
        .collect();
    let catalog =
        PartStatus { name: "catalog", status: up(managed.live.catalog_health.found().await.is_ok()) };
    let current = managed.live.sources();
    let all_up = stores.iter().chain([&catalog]).all(|part| part.status == "UP");
    let [normal, warning, throttled] = shared.observer.transitions.counts();
    let body = StatusResponse {
        status: up(all_up),
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: shared.started.elapsed().as_secs(),
        stores,
        catalog,
        rules: current.rules().count(),
        rules_revision: current.catalog.revision.rules,
        state_transitions: Transitions { normal, warning, throttled },
        log_dropped: managed.live.journal.dropped(),
    };
    Ok(json(StatusCode::OK, &body))
}

/// The use of one key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = KeyMetrics)]
struct MetricsResponse {
    key: String,
    /// `key` for one that has a policy.
    #[schema(value_type = value::Dimension)]
    dimension: String,
    /// Null, as the numbers, when no limit applies.
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
    /// How many of its requests passed within the last 24 hours, in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    allowed: Option<u64>,
    /// How many did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    blocked: Option<u64>,
}

impl MetricsResponse {
    /// The use of `key`, which may have a policy, as the limit that binds has it.
    fn bound(key: &str, policy: Option<&StoredRule>, decision: &Decision) -> Self {
        let policy = policy.and_then(|stored| stored.policy);
        Self::new(DIMENSION, key, decision.binding_limit(), policy, decision.binding())
    }

    /// The use of an identifier, as the fullest of the limits that hold for it has it.
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

/// How far back a key was used that is listed.
const USED_WITHIN: Duration = Duration::from_secs(24 * 3_600);

/// The start of cursors within the keys without a policy, which come last.
const USAGE_CURSOR: &str = "used-";

/// The use of all keys
///
/// Those with a policy, then all others that were used within the last 24 hours. Usage is written every ten seconds.
#[utoipa::path(
    get,
    path = "/admin/metrics",
    operation_id = "admin_metrics",
    tag = "ThrottleX",
    params(PageParameters),
    responses((status = 200, description = "One page of them.", body = Vec<MetricsResponse>, headers(
        ("Link" = String, description = "the next page, as `rel=\"next\"`"),
    ))),
)]
pub(crate) async fn metrics(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let current = managed.live.sources();
    let page = managed.page(&[])?;
    let mut shown = Vec::new();
    let after_used = match page.cursor.as_deref().map(|cursor| cursor.strip_prefix(USAGE_CURSOR)) {
        Some(Some(after)) => Some(after.to_owned()).filter(|after| !after.is_empty()),
        Some(None) | None => {
            let (policies, next) = after(&current.catalog.rules, page.number_cursor()?, page.limit);
            for stored in policies {
                let key = stored.rule.identifier.as_deref().unwrap_or_default();
                shown.push(MetricsResponse::bound(key, Some(stored), &shared.limiter.peek(&of(key)).await?));
            }
            let next = next.map(|next| next.to_string());
            if next.is_some() || shown.len() == page.limit {
                let next = next.unwrap_or_else(|| USAGE_CURSOR.to_owned());
                return Ok(with_next(json(StatusCode::OK, &shown), "/admin/metrics", Some(next)));
            }
            None
        }
    };
    let since = Timestamp::from_micros(now().as_micros().saturating_sub(USED_WITHIN.as_micros() as u64));
    let rest = page.limit - shown.len();
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

/// The use of an identifier without a policy of the catalog, as far as its limits have one counter for all endpoints.
async fn used_by(shared: &Shared, dimension: &str, key: &str) -> Result<MetricsResponse, ApiError> {
    let profile = shared.profile(Some(key).filter(|_| dimension == "user")).await;
    let limits = shared.limiter.limits_of(dimension, key, profile.as_deref()).await.map_err(named)?;
    Ok(MetricsResponse::fullest(dimension, key, &limits))
}

/// The use of one key
#[utoipa::path(
    get,
    path = "/admin/metrics/{key}",
    operation_id = "admin_metrics_of",
    tag = "ThrottleX",
    params(
        ("key" = value::Identifier, Path, description = "the key of a policy, or any identifier"),
        ("dimension" = Option<value::Dimension>, Query, description = "of the identifier; `key` unless given"),
    ),
    responses((status = 200, description = "What it has used.", body = MetricsResponse)),
)]
pub(crate) async fn metrics_of(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let parameters = managed.parameters(&["dimension"])?;
    let key = path_part(path)?;
    if let Some((_, dimension)) = parameters.last().filter(|(_, dimension)| dimension != DIMENSION) {
        return Ok(json(StatusCode::OK, &used_by(&shared, dimension, &key).await?));
    }
    let decision = shared.limiter.peek(&of(&key)).await.map_err(named)?;
    let current = managed.live.sources();
    let mut policies = current.catalog.rules.iter().filter(|stored| is_policy(&stored.rule));
    let policy = policies.find(|stored| stored.rule.identifier.as_deref() == Some(&key));
    Ok(json(StatusCode::OK, &MetricsResponse::bound(&key, policy, &decision)))
}

/// What was forgotten, and when.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyReset)]
struct ResetResponse<'a> {
    key: &'a str,
    /// Always `RESET`.
    status: &'static str,
    #[schema(value_type = value::Time)]
    timestamp: String,
}

/// Forgets the counters of one key at `/`, in every dimension whose identifiers are keys of policies
#[utoipa::path(
    post,
    path = "/admin/reset/{key}",
    operation_id = "admin_reset",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "the key of a policy")),
    responses((status = 200, description = "They start anew.", body = ResetResponse)),
)]
pub(crate) async fn reset(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let key = path_part(path)?;
    shared.limiter.validate(&of(&key)).map_err(named)?;
    // Without a policy each of them has a counter of its own. What is no address has none as an address.
    let current = managed.live.sources();
    let others = current.file.policy_dimensions.iter().map(String::as_str);
    let counted = |dimension: &&str| {
        *dimension != DIMENSION && shared.limiter.validate(&Check::new(dimension, &key).endpoint("/")).is_ok()
    };
    let check = others.filter(counted).fold(of(&key), |check, dimension| check.and(dimension, &key));
    shared.record_reset(&managed.actor, &check).await?;
    shared.limiter.reset(&check).await.map_err(named)?;
    let body = ResetResponse { key: &key, status: "RESET", timestamp: rfc3339(now()) };
    Ok(json(StatusCode::OK, &body))
}

/// A policy's key is checked at the root, which its rule covers like everything else.
fn of(key: &str) -> Check<'_> {
    Check::new(DIMENSION, key).endpoint("/")
}

fn named(error: pacegate::CheckError) -> ApiError {
    let mut error = ApiError::from(error);
    if let Some((field, _)) = error.details.as_mut().filter(|(field, _)| field == "user_id") {
        *field = "key".to_owned();
        error.message = error.message.replacen("user_id", "key", 1);
    }
    error
}
