//! `/api/v1/plans`: named lists of limits, from the file and from the catalog.

use axum::response::Response;
use hyper::StatusCode;
use pacegate::{PlanLimit, identity};
use pacegate_catalog::{Sources, StoredPlan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rule_wire::{CATALOG, FILE, read_cost, read_limit};
use super::{IfMatch, Managed, Subject, empty, shown, unchanged};
use crate::ad_hoc::{is_sliding_window, name_for};
use crate::clock::rfc3339;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code};
use crate::rest::answer::burst;
use crate::rest::decode::{Count, Integer, Object, Seconds, Whole, inside};
use crate::rest::extract::{Id, Json, NoParameters, Query};
use crate::rest::json;

/// A plan, in requests and responses. A response can be edited and sent back.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Plan)]
pub(crate) struct PlanBody {
    /// Set by the path. It and the fields after `limits` are read-only; a request may send them
    /// back unchanged.
    name: Option<String>,
    /// The limits; no two have the same algorithm and window.
    #[serde(default)]
    #[schema(value_type = Vec<PlanLimitBody>, required = true, min_items = 1, max_items = 16)]
    limits: Vec<Object<PlanLimitBody>>,
    #[schema(value_type = Option<value::SourceName>)]
    source: Option<String>,
    /// In requests: same effect as `If-Match`.
    #[schema(value_type = Option<i64>)]
    version: Option<Integer>,
    /// Null for plans from the configuration file.
    #[schema(value_type = Option<value::Time>)]
    updated_at: Option<String>,
}

/// A limit of a plan.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlanLimit)]
struct PlanLimitBody {
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    algorithm: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<Count>,
    #[schema(value_type = value::Window, required = true)]
    window_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<Count>,
    /// The unit it counts. Default: `requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::UnitName>)]
    unit: Option<String>,
    /// The cost of each request. Overrides the cost of the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::CostNumber>)]
    cost: Option<Count>,
}

impl PlanBody {
    fn file(name: &str, limits: &[PlanLimit]) -> Self {
        Self {
            name: Some(name.to_owned()),
            limits: limits.iter().map(PlanLimitBody::new).map(Object).collect(),
            source: Some(FILE.to_owned()),
            version: Some(Whole(1)),
            updated_at: None,
        }
    }

    fn stored(plan: &StoredPlan) -> Self {
        Self {
            source: Some(CATALOG.to_owned()),
            version: Some(Whole(plan.version)),
            updated_at: Some(rfc3339(plan.updated_at)),
            ..Self::file(&plan.name, &plan.limits)
        }
    }
}

impl PlanLimitBody {
    fn new(PlanLimit { limit, unit, cost }: &PlanLimit) -> Self {
        let count = |number: u32| Whole(u64::from(number));
        Self {
            algorithm: Some(limit.algorithm().name().to_owned()),
            limit: Some(count(limit.quota())),
            window_seconds: Some(Seconds(limit.window())),
            burst_capacity: burst(limit).map(count),
            unit: unit.clone(),
            cost: cost.map(|cost| count(cost.get())),
        }
    }

    fn limit(&self) -> Result<PlanLimit, ApiError> {
        let algorithm = ("algorithm", self.algorithm.as_deref());
        let limit = read_limit(algorithm, self.limit, self.window_seconds, self.burst_capacity)?;
        let unit = self.unit.as_deref().map(identity::check_unit).transpose();
        unit.map_err(|invalid| ApiError::input("unit", invalid.reason()))?;
        Ok(PlanLimit { limit, unit: self.unit.clone(), cost: read_cost(self.cost)? })
    }
}

/// Plans from the file, then plans from the catalog.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlanList)]
struct PlanListResponse {
    plans: Vec<PlanBody>,
}

/// List plans
#[utoipa::path(
    get,
    path = "/api/v1/plans",
    operation_id = "list_plans",
    tag = "Plans",
    responses((status = 200, description = "Plans from the file, then plans from the catalog.", body = PlanListResponse)),
)]
pub(crate) async fn list(managed: Managed, _: Query<NoParameters>) -> Result<Response, ApiError> {
    let (current, stored) = (managed.live.sources(), managed.live.catalog.plans().await?);
    let of_file = current.file.plans.iter().map(|(name, limits)| PlanBody::file(name, limits));
    let plans = of_file.chain(stored.iter().map(PlanBody::stored)).collect();
    Ok(json(StatusCode::OK, &PlanListResponse { plans }))
}

/// Get a plan
#[utoipa::path(
    get,
    path = "/api/v1/plans/{name}",
    operation_id = "get_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "The name of the plan.")),
    responses(
        (status = 200, description = "The plan.", body = PlanBody, headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "Unknown plan."),
    )
)]
pub(crate) async fn get(
    managed: Managed,
    Id(name): Id,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    if let Some((name, limits)) = managed.live.sources().file.plans.iter().find(|(own, _)| *own == name) {
        return Ok(shown(StatusCode::OK, &PlanBody::file(name, limits), 1));
    }
    let plan = managed.live.catalog.plan(&name).await?;
    let plan = plan.ok_or_else(|| ApiError::new(Code::NotFound, "unknown plan"))?;
    Ok(shown(StatusCode::OK, &PlanBody::stored(&plan), plan.version))
}

/// Create or replace a plan
#[utoipa::path(
    put,
    path = "/api/v1/plans/{name}",
    operation_id = "put_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "The name of the plan."), IfMatch),
    request_body = PlanBody,
    responses(
        (status = 200, description = "Replaced.", body = PlanBody, headers(("ETag" = String, description = "The version."))),
        (status = 201, description = "Created.", body = PlanBody, headers(("ETag" = String, description = "The version."))),
        (status = 409, description = "The plan is defined in the configuration file."),
    )
)]
pub(crate) async fn put(
    managed: Managed,
    Id(name): Id,
    Json(body): Json<PlanBody>,
) -> Result<Response, ApiError> {
    let limits = body.limits.iter().enumerate().map(|(index, Object(limit))| {
        limit.limit().map_err(|error| inside(error, &format!("limits[{index}]")))
    });
    let limits = limits.collect::<Result<Vec<PlanLimit>, ApiError>>()?;
    not_of_file(&managed.live.sources(), &name)?;
    PlanLimit::check_all(&limits).map_err(|invalid| ApiError::input("limits", invalid.reason()))?;
    unchanged("name", body.name.as_deref(), &name)?;
    let before = managed.live.catalog.plan(&name).await?;
    if before.is_some() {
        unchanged("source", body.source.as_deref(), CATALOG)?;
    }
    let known = before.map(|plan| (plan.version, plan.updated_at));
    let expected = managed.expected_by(body.version, body.updated_at.as_deref(), known)?;
    let write =
        managed.change(Subject::Rules, |catalog, actor| catalog.put_plan(actor, &name, &limits, expected));
    let (plan, created) = write.await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = PlanBody::stored(&plan);
    for ((Object(limit), Object(sent)), stored) in response.limits.iter_mut().zip(&body.limits).zip(&limits) {
        let sliding_window = sent.algorithm.as_deref().is_some_and(is_sliding_window);
        limit.algorithm = Some(name_for(stored.limit.algorithm(), sliding_window).to_owned());
    }
    Ok(shown(status, &response, plan.version))
}

/// Delete a plan
#[utoipa::path(
    delete,
    path = "/api/v1/plans/{name}",
    operation_id = "delete_plan",
    tag = "Plans",
    params(("name" = value::Name, Path, description = "The name of the plan."), IfMatch),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "Unknown plan."),
        (status = 409, description = "The plan is defined in the configuration file."),
    )
)]
pub(crate) async fn delete(managed: Managed, Id(name): Id) -> Result<Response, ApiError> {
    not_of_file(&managed.live.sources(), &name)?;
    let expected = managed.expected()?;
    managed.change(Subject::Rules, |catalog, actor| catalog.delete_plan(actor, &name, expected)).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn not_of_file(current: &Sources, name: &str) -> Result<(), ApiError> {
    if current.file.plans.iter().any(|(own, _)| own == name) {
        return Err(ApiError::new(
            Code::Conflict,
            "this plan is defined in the configuration file; change it there",
        ));
    }
    Ok(())
}
