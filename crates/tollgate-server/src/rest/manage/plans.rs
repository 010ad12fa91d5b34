//! `/api/v1/plans`: named lists of limits, of the file and of the catalog.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use tollgate::Limit;

use super::rule_wire::read_limit;
use super::{Managed, PathParts, empty, path_part, rfc3339, with_etag};
use crate::app::Shared;
use crate::live::Current;
use crate::respond::{ApiError, Code};
use crate::rest::json;
use crate::rest::wire::{Kind, parse_strategy, read_object};

/// How many limits a plan can have.
const LIMITS_MAX: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanRequest {
    limits: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitRequest {
    algorithm: Option<String>,
    limit: Option<u64>,
    window_seconds: Option<Number>,
    burst_capacity: Option<u64>,
}

const FIELDS: [(&str, Kind); 1] = [("limits", Kind::List)];
const LIMIT_FIELDS: [(&str, Kind); 4] = [
    ("algorithm", Kind::Text),
    ("limit", Kind::Count),
    ("window_seconds", Kind::Number),
    ("burst_capacity", Kind::Count),
];

#[derive(Debug, Serialize)]
struct PlanResponse<'a> {
    name: &'a str,
    limits: Vec<LimitResponse>,
    source: &'static str,
    version: i64,
    updated_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct LimitResponse {
    algorithm: &'static str,
    limit: u32,
    #[serde(serialize_with = "crate::rest::answer::seconds")]
    window_seconds: std::time::Duration,
    burst_capacity: u32,
}

impl<'a> PlanResponse<'a> {
    fn new(name: &'a str, limits: &[Limit]) -> Self {
        let limits = limits.iter().map(|limit| LimitResponse {
            algorithm: limit.algorithm().name(),
            limit: limit.quota(),
            window_seconds: limit.window(),
            burst_capacity: limit.capacity(),
        });
        Self { name, limits: limits.collect(), source: "file", version: 1, updated_at: None }
    }

    fn stored(plan: &'a tollgate_catalog::StoredPlan) -> Self {
        let updated_at = Some(rfc3339(plan.updated_at));
        Self { source: "catalog", version: plan.version, updated_at, ..Self::new(&plan.name, &plan.limits) }
    }
}

#[derive(Debug, Serialize)]
struct PlanListResponse<'a> {
    plans: Vec<PlanResponse<'a>>,
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let (current, stored) = (managed.live.current(), managed.live.catalog.plans().await?);
    let of_file = current.file.plans.iter().map(|(name, limits)| PlanResponse::new(name, limits));
    let plans = of_file.chain(stored.iter().map(PlanResponse::stored)).collect();
    Ok(json(StatusCode::OK, &PlanListResponse { plans }))
}

pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let (name, current) = (path_part(path)?, managed.live.current());
    if let Some((name, limits)) = current.file.plans.iter().find(|(own, _)| *own == name) {
        return Ok(with_etag(json(StatusCode::OK, &PlanResponse::new(name, limits)), 1));
    }
    let plan = managed.live.catalog.plan(&name).await?;
    let plan = plan.ok_or_else(|| ApiError::new(Code::NotFound, "there is no such plan"))?;
    Ok(with_etag(json(StatusCode::OK, &PlanResponse::stored(&plan)), plan.version))
}

pub(crate) async fn put(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let name = path_part(path)?;
    let request: PlanRequest = read_object(&body, &FIELDS)?;
    if !(1..=LIMITS_MAX).contains(&request.limits.len()) {
        return Err(ApiError::input("limits", format!("must be 1 to {LIMITS_MAX} limits")));
    }
    let limits = request.limits.iter().enumerate().map(|(place, value)| {
        read_plan_limit(value).map_err(|error| {
            let (field, reason) = error.details.unwrap_or_default();
            ApiError::field(error.code, &format!("limits[{place}].{field}"), reason)
        })
    });
    let limits = limits.collect::<Result<Vec<Limit>, ApiError>>()?;
    not_of_file(&managed.live.current(), &name)?;
    if let Err(error) = tollgate::Limiter::builder().plan(&name, limits.iter().copied()).build() {
        return Err(ApiError::input("limits", error.to_string()));
    }
    let expected = managed.expected_version()?;
    let (plan, created) = managed.live.catalog.put_plan(&managed.actor, &name, &limits, expected).await?;
    managed.in_force().await;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(with_etag(json(status, &PlanResponse::stored(&plan)), plan.version))
}

pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let name = path_part(path)?;
    not_of_file(&managed.live.current(), &name)?;
    managed.live.catalog.delete_plan(&managed.actor, &name).await?;
    managed.in_force().await;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn read_plan_limit(value: &serde_json::Value) -> Result<Limit, ApiError> {
    let text = value.to_string();
    let request: LimitRequest = read_object(text.as_bytes(), &LIMIT_FIELDS)?;
    let algorithm = request.algorithm.ok_or_else(|| ApiError::input("algorithm", "is missing"))?;
    let algorithm = parse_strategy("algorithm", &algorithm)?;
    read_limit(algorithm, request.limit, request.window_seconds.as_ref(), request.burst_capacity)
}

fn not_of_file(current: &Current, name: &str) -> Result<(), ApiError> {
    if current.file.plans.iter().any(|(own, _)| own == name) {
        return Err(ApiError::new(
            Code::Conflict,
            "this plan is from the configuration file; change it there",
        ));
    }
    Ok(())
}
