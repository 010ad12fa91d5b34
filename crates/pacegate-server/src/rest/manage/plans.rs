//! `/api/v1/plans`: named lists of limits, of the file and of the catalog.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::{PlanLimit, identity};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::rule_wire::{CATALOG, read_cost, read_limit};
use super::{Managed, PathParts, empty, path_part, rfc3339, unchanged, with_etag};
use crate::ad_hoc::{SLIDING_WINDOW, is_sliding_window};
use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code};
use crate::rest::answer::burst;
use crate::rest::json;
use crate::rest::wire::{Kind, parse_strategy, read_object};
use pacegate_catalog::Sources;

/// The limits of a plan, each of another algorithm or window.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PlanRequest {
    #[schema(value_type = Vec<LimitRequest>, min_items = 1, max_items = 16)]
    limits: Vec<serde_json::Value>,
    /// This and what follows are taken so that an answer can be edited and sent back. Must be the one in the path.
    name: Option<String>,
    /// As `If-Match`.
    version: Option<i64>,
    /// This and the time must be those shown.
    source: Option<String>,
    updated_at: Option<String>,
}

/// One limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LimitRequest {
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    algorithm: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<u64>,
    #[schema(value_type = value::Window, required = true)]
    window_seconds: Option<Number>,
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<u64>,
    /// What it counts; `requests` unless given.
    #[schema(value_type = Option<value::UnitName>)]
    unit: Option<String>,
    /// What each request takes, instead of the cost that a check names.
    #[schema(value_type = Option<value::CostNumber>)]
    cost: Option<u64>,
}

const FIELDS: [(&str, Kind); 5] = [
    ("limits", Kind::List),
    ("name", Kind::Text),
    ("version", Kind::Integer),
    ("source", Kind::Text),
    ("updated_at", Kind::Text),
];
const LIMIT_FIELDS: [(&str, Kind); 6] = [
    ("algorithm", Kind::Text),
    ("limit", Kind::Count),
    ("window_seconds", Kind::Number),
    ("burst_capacity", Kind::Count),
    ("unit", Kind::Text),
    ("cost", Kind::Count),
];

/// A plan as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Plan)]
struct PlanResponse<'a> {
    name: &'a str,
    limits: Vec<LimitResponse<'a>>,
    #[schema(value_type = value::SourceName)]
    source: &'static str,
    version: i64,
    /// Null for plans of the configuration file.
    #[schema(required = true, value_type = Option<value::Time>)]
    updated_at: Option<String>,
}

/// A limit of a plan.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlanLimit)]
struct LimitResponse<'a> {
    #[schema(value_type = value::AlgorithmName)]
    algorithm: &'static str,
    limit: u32,
    #[serde(serialize_with = "crate::rest::answer::seconds")]
    #[schema(value_type = value::Window)]
    window_seconds: std::time::Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    burst_capacity: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cost: Option<u32>,
}

impl<'a> PlanResponse<'a> {
    fn new(name: &'a str, limits: &'a [PlanLimit]) -> Self {
        let limits = limits.iter().map(|PlanLimit { limit, unit, cost }| LimitResponse {
            algorithm: limit.algorithm().name(),
            limit: limit.quota(),
            window_seconds: limit.window(),
            burst_capacity: burst(limit),
            unit: unit.as_deref(),
            cost: cost.map(|cost| cost.get()),
        });
        Self { name, limits: limits.collect(), source: "file", version: 1, updated_at: None }
    }

    fn stored(plan: &'a pacegate_catalog::StoredPlan) -> Self {
        let updated_at = Some(rfc3339(plan.updated_at));
        Self { source: CATALOG, version: plan.version, updated_at, ..Self::new(&plan.name, &plan.limits) }
    }
}

/// The file's plans, then the catalog's.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlanList)]
struct PlanListResponse<'a> {
    plans: Vec<PlanResponse<'a>>,
}

/// All plans
#[utoipa::path(
    get,
    path = "/api/v1/plans",
    operation_id = "list_plans",
    tag = "Plans",
    responses((status = 200, description = "The file's, then the catalog's.", body = PlanListResponse)),
)]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let (current, stored) = (managed.live.sources(), managed.live.catalog.plans().await?);
    let of_file = current.file.plans.iter().map(|(name, limits)| PlanResponse::new(name, limits));
    let plans = of_file.chain(stored.iter().map(PlanResponse::stored)).collect();
    Ok(json(StatusCode::OK, &PlanListResponse { plans }))
}

/// One plan
#[utoipa::path(
    get,
    path = "/api/v1/plans/{name}",
    operation_id = "get_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "the name of a plan")),
    responses(
        (status = 200, description = "It is this.", body = PlanResponse, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "There is no such plan."),
    )
)]
pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    let (name, current) = (path_part(path)?, managed.live.sources());
    if let Some((name, limits)) = current.file.plans.iter().find(|(own, _)| *own == name) {
        return Ok(with_etag(json(StatusCode::OK, &PlanResponse::new(name, limits)), 1));
    }
    let plan = managed.live.catalog.plan(&name).await?;
    let plan = plan.ok_or_else(|| ApiError::new(Code::NotFound, "there is no such plan"))?;
    Ok(with_etag(json(StatusCode::OK, &PlanResponse::stored(&plan)), plan.version))
}

/// Makes or replaces a plan
#[utoipa::path(
    put,
    path = "/api/v1/plans/{name}",
    operation_id = "put_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "the name of a plan"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    request_body = PlanRequest,
    responses(
        (status = 200, description = "It is replaced.", body = PlanResponse, headers(("ETag" = String, description = "its version"))),
        (status = 201, description = "It is made.", body = PlanResponse, headers(("ETag" = String, description = "its version"))),
        (status = 409, description = "The plan is from the configuration file."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn put(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let name = path_part(path)?;
    let request: PlanRequest = read_object(&body, &FIELDS)?;
    let limits = request.limits.iter().enumerate().map(|(place, value)| {
        read_plan_limit(value).map_err(|error| {
            let (field, reason) = error.details.unwrap_or_default();
            ApiError::field(error.code, &format!("limits[{place}].{field}"), reason)
        })
    });
    let limits = limits.collect::<Result<Vec<PlanLimit>, ApiError>>()?;
    not_of_file(&managed.live.sources(), &name)?;
    PlanLimit::check_all(&limits).map_err(|invalid| ApiError::input("limits", invalid.reason()))?;
    unchanged("name", request.name.as_deref(), &name)?;
    let before = managed.live.catalog.plan(&name).await?;
    if before.is_some() {
        unchanged("source", request.source.as_deref(), CATALOG)?;
    }
    let known = before.map(|plan| (plan.version, plan.updated_at));
    let expected = managed.expected_by(request.version, request.updated_at.as_deref(), known)?;
    let (plan, created) = managed.live.catalog.put_plan(&managed.actor, &name, &limits, expected).await?;
    managed.in_force().await;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let mut body = PlanResponse::stored(&plan);
    for (limit, sent) in body.limits.iter_mut().zip(&request.limits) {
        if sent["algorithm"].as_str().is_some_and(is_sliding_window) {
            limit.algorithm = SLIDING_WINDOW;
        }
    }
    Ok(with_etag(json(status, &body), plan.version))
}

/// Removes a plan
#[utoipa::path(
    delete,
    path = "/api/v1/plans/{name}",
    operation_id = "delete_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "the name of a plan"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "There is no such plan."),
        (status = 409, description = "The plan is from the configuration file."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let name = path_part(path)?;
    not_of_file(&managed.live.sources(), &name)?;
    managed.live.catalog.delete_plan(&managed.actor, &name, managed.expected()?).await?;
    managed.in_force().await;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn read_plan_limit(value: &serde_json::Value) -> Result<PlanLimit, ApiError> {
    let text = value.to_string();
    let request: LimitRequest = read_object(text.as_bytes(), &LIMIT_FIELDS)?;
    let algorithm = request.algorithm.ok_or_else(|| ApiError::input("algorithm", "is missing"))?;
    let algorithm = parse_strategy("algorithm", &algorithm)?;
    let limit =
        read_limit(algorithm, request.limit, request.window_seconds.as_ref(), request.burst_capacity)?;
    let unit = request.unit.as_deref().map(identity::check_unit).transpose();
    unit.map_err(|invalid| ApiError::input("unit", invalid.reason()))?;
    Ok(PlanLimit { limit, unit: request.unit, cost: read_cost(request.cost)? })
}

fn not_of_file(current: &Sources, name: &str) -> Result<(), ApiError> {
    if current.file.plans.iter().any(|(own, _)| own == name) {
        return Err(ApiError::new(
            Code::Conflict,
            "this plan is from the configuration file; change it there",
        ));
    }
    Ok(())
}
