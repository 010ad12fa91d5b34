//! `GET /api/v1/logs` and `GET /api/v1/usage`: the decision log, and usage per identifier.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::Timestamp;
use pacegate::identity::{self, Invalid};
use pacegate_catalog::{DecisionFilter, DecisionRecord, Period, UsageFilter, UsageRecord};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Managed;
use crate::app::Shared;
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{Filter, PageLimit, Query, Since};
use crate::rest::json;

/// One decision.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionRecord)]
struct DecisionResponse<'a> {
    #[schema(value_type = value::Time)]
    at: String,
    #[schema(required = true)]
    request_id: Option<&'a str>,
    #[schema(required = true)]
    user_id: Option<&'a str>,
    dimension: &'a str,
    identifier: &'a str,
    endpoint: &'a str,
    #[schema(required = true)]
    method: Option<&'a str>,
    allowed: bool,
    #[schema(required = true)]
    rule: Option<&'a str>,
    #[schema(required = true, value_type = Option<value::ReasonName>)]
    reason: Option<&'a str>,
    cost: u64,
    #[schema(required = true)]
    limit: Option<u64>,
    #[schema(required = true)]
    remaining: Option<u64>,
}

impl<'a> DecisionResponse<'a> {
    fn new(record: &'a DecisionRecord) -> Self {
        Self {
            at: rfc3339(record.at),
            request_id: record.request_id.as_deref(),
            user_id: record.user_id.as_deref(),
            dimension: &record.dimension,
            identifier: &record.identifier,
            endpoint: &record.endpoint,
            method: record.method.as_deref(),
            allowed: record.allowed,
            rule: record.rule.as_deref(),
            reason: record.reason.as_deref(),
            cost: record.cost,
            limit: record.capacity,
            remaining: record.remaining,
        }
    }
}

/// Decisions, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionList)]
struct DecisionListResponse<'a> {
    decisions: Vec<DecisionResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Filters for the decision log.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DecisionQuery {
    /// Maximum number of entries. Default: 100.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Filter,
    /// Only decisions for this user.
    #[param(value_type = Option<String>)]
    user_id: Filter,
    /// Only decisions for this endpoint.
    #[param(value_type = Option<String>)]
    endpoint: Filter,
    /// Only decisions for this address, API key or other identity.
    #[param(value_type = Option<String>)]
    identifier: Filter,
    /// Only decisions whose reported limit is this rule.
    #[param(value_type = Option<String>)]
    rule: Filter,
    /// Only decisions since this time: RFC 3339, or seconds since the epoch.
    #[param(value_type = Option<String>)]
    since: Since,
    /// `true`: only allowed requests. `false`: only denied requests.
    allowed: Option<bool>,
}

/// List decisions, newest first
#[utoipa::path(
    get,
    path = "/api/v1/logs",
    operation_id = "list_decisions",
    tag = "Logs",
    params(DecisionQuery),
    responses((status = 200, description = "One page of decisions.", body = DecisionListResponse)),
)]
pub(crate) async fn list(managed: Managed, Query(query): Query<DecisionQuery>) -> Result<Response, ApiError> {
    let (after, PageLimit(limit)) = (query.cursor.number()?, query.limit);
    let filter = DecisionFilter {
        user_id: query.user_id.0,
        endpoint: query.endpoint.0,
        identifier: query.identifier.0,
        rule: query.rule.0,
        since: query.since.0,
        allowed: query.allowed,
    };
    let found = managed.live.catalog.decision_page(filter, after, limit).await?;
    let full = found.len() == limit;
    let next_cursor = found.last().filter(|_| full).map(|(number, _)| number.to_string());
    let decisions = found.iter().map(|(_, record)| DecisionResponse::new(record)).collect();
    Ok(json(StatusCode::OK, &DecisionListResponse { decisions, next_cursor }))
}

/// The allowed and denied requests of one identifier.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageRecord)]
struct UsageResponse<'a> {
    dimension: &'a str,
    identifier: &'a str,
    allowed: u64,
    blocked: u64,
    #[schema(value_type = value::Time)]
    last_seen: String,
}

impl<'a> UsageResponse<'a> {
    fn new(record: &'a UsageRecord) -> Self {
        Self {
            dimension: &record.dimension,
            identifier: &record.identifier,
            allowed: record.allowed,
            blocked: record.blocked,
            last_seen: rfc3339(record.start),
        }
    }
}

/// The identifiers with the most requests.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageList)]
struct UsageListResponse<'a> {
    #[schema(value_type = value::Time)]
    since: String,
    usage: Vec<UsageResponse<'a>>,
}

/// Filters for usage. There is one page; `limit` sets its length.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Maximum number of entries. Default: 100.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// Only identifiers of this dimension.
    #[param(value_type = Option<String>)]
    dimension: Filter,
    /// Only this identifier.
    #[param(value_type = Option<String>)]
    identifier: Filter,
    /// Start of the period: RFC 3339, or seconds since the epoch. Default: one hour ago.
    #[param(value_type = Option<String>)]
    since: Since,
}

/// List the identifiers with the most requests
#[utoipa::path(
    get,
    path = "/api/v1/usage",
    operation_id = "list_usage",
    tag = "Logs",
    params(UsageQuery),
    responses((status = 200, description = "Identifiers, most requests first.", body = UsageListResponse)),
)]
pub(crate) async fn usage(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Query(query): Query<UsageQuery>,
) -> Result<Response, ApiError> {
    let hour = Period::Hour.length();
    let an_hour_ago = Timestamp::from_micros(now().as_micros().saturating_sub(hour.as_micros() as u64));
    let since = query.since.0.unwrap_or(an_hour_ago);
    // Recent usage is summed from minutes, older usage from hours.
    let recent = now().saturating_since(since) <= Duration::from_secs(6 * 3_600);
    let period = if recent { Period::Minute } else { Period::Hour };
    let invalid = |field| move |invalid: Invalid| ApiError::input(field, invalid.reason());
    let (dimension, identifier) = (query.dimension.0, query.identifier.0);
    let dimension =
        dimension.as_deref().map(identity::dimension).transpose().map_err(invalid("dimension"))?;
    // An address is looked up in the form in which it is counted.
    let identifier = match (dimension, identifier) {
        (Some(identity::IP), Some(text)) => {
            let counted = identity::identifier(identity::IP, &text, shared.limiter.ipv6_prefix());
            Some(counted.map_err(invalid("identifier"))?.into_owned())
        }
        (_, text) => text,
    };
    let filter = UsageFilter { dimension: dimension.map(str::to_owned), identifier };
    let found = managed.live.catalog.usage(period, filter, since, query.limit.0).await?;
    let usage = found.iter().map(UsageResponse::new).collect();
    Ok(json(StatusCode::OK, &UsageListResponse { since: rfc3339(period.start_of(since)), usage }))
}
