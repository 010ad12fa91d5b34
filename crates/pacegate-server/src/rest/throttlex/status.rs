//! `/admin/status`: the status of the service, its stores and its catalog.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::store::StoreHealth;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{NoParameters, Query};
use crate::rest::json;
use crate::rest::manage::Managed;

/// The status of the service.
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

/// The status of a store or of the catalog.
#[derive(Debug, Serialize, ToSchema)]
struct PartStatus<'a> {
    name: &'a str,
    #[schema(value_type = value::Condition)]
    status: &'static str,
}

/// Number of state transitions of keys on this node, by new state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StateTransitions)]
struct Transitions {
    normal: u64,
    warning: u64,
    throttled: u64,
}

/// Get the status of the service, its stores and its catalog
#[utoipa::path(
    get,
    path = "/admin/status",
    operation_id = "admin_status",
    tag = "ThrottleX",
    responses((status = 200, description = "The status of each component.", body = StatusResponse)),
)]
pub(crate) async fn status(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let up = |is_up: bool| if is_up { "UP" } else { "DOWN" };
    let stores: Vec<PartStatus<'_>> = shared
        .limiter
        .stores()
        .health()
        .map(|(name, health)| PartStatus { name, status: up(health == StoreHealth::Up) })
        .collect();
    let catalog =
        PartStatus { name: "catalog", status: up(managed.live.catalog_health.check().await.is_ok()) };
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
