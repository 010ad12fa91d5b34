//! `/admin/status`, `/admin/metrics` and `/admin/reset`: operations in ThrottleX's form.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::{Check, Decision, Standing, StoreHealth};
use pacegate_catalog::StoredRule;
use serde::Serialize;
use utoipa::ToSchema;

use super::policies::{DIMENSION, is_policy, kind, page, window_seconds, with_next};
use super::{Managed, PathParts, path_part, rfc3339};
use crate::app::Shared;
use crate::openapi::parameters::PageParameters;
use crate::openapi::vocabulary as value;
use crate::profiles::now;
use crate::respond::ApiError;
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
    let catalog = PartStatus { name: "catalog", status: up(managed.live.catalog.ping().await.is_ok()) };
    let current = managed.live.sources();
    let all_up = stores.iter().chain([&catalog]).all(|part| part.status == "UP");
    let [normal, warning, throttled] = shared.transitions.counts();
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
}

impl MetricsResponse {
    /// The use of `key`, which may have a policy.
    fn new(key: &str, policy: Option<&StoredRule>, decision: &Decision) -> Self {
        let (answer, limit) = (decision.binding(), decision.binding_limit());
        Self {
            key: key.to_owned(),
            algorithm: answer.map(|answer| kind(answer.algorithm)),
            current_tokens: answer.and_then(|answer| answer.remaining),
            capacity: answer.map(|answer| answer.capacity),
            window_request_count: answer.and_then(crate::rest::answer::used),
            window_seconds: policy
                .map(window_seconds)
                .or_else(|| limit.map(|limit| limit.limit.window().as_secs())),
            status: match answer {
                Some(answer) if answer.degraded => "UNKNOWN",
                Some(answer) if answer.standing == Standing::Throttled => "THROTTLED",
                Some(answer) if answer.standing == Standing::Warning => "WARNING",
                _ => "OK",
            },
        }
    }
}

/// The use of every key that has a policy
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
    let (policies, next) = page(&managed, &current.catalog.rules)?;
    let mut shown = Vec::with_capacity(policies.len());
    for stored in policies {
        let key = stored.rule.identifier.as_deref().unwrap_or_default();
        shown.push(MetricsResponse::new(key, Some(stored), &shared.limiter.peek(&of(key)).await?));
    }
    Ok(with_next(json(StatusCode::OK, &shown), "/admin/metrics", next))
}

/// The use of one key
#[utoipa::path(
    get,
    path = "/admin/metrics/{key}",
    operation_id = "admin_metrics_of",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "the key of a policy")),
    responses((status = 200, description = "What it has used.", body = MetricsResponse)),
)]
pub(crate) async fn metrics_of(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let key = path_part(path)?;
    let decision = shared.limiter.peek(&of(&key)).await.map_err(named)?;
    let current = managed.live.sources();
    let mut policies = current.catalog.rules.iter().filter(|stored| is_policy(&stored.rule));
    let policy = policies.find(|stored| stored.rule.identifier.as_deref() == Some(&key));
    Ok(json(StatusCode::OK, &MetricsResponse::new(&key, policy, &decision)))
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

/// Forgets the counters of one key
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
    shared.limiter.reset(&of(&key)).await.map_err(named)?;
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
