//! `GET /api/v1/logs` and `GET /api/v1/usage`: what was decided, and for whom how often.

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

/// What was decided, the newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DecisionList)]
struct DecisionListResponse<'a> {
    decisions: Vec<DecisionResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Which decisions are wanted.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DecisionQuery {
    /// How many entries at most; 100 unless given.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// Where to go on: what the page before said.
    #[param(value_type = Option<String>)]
    cursor: Filter,
    /// Decisions about this user only.
    #[param(value_type = Option<String>)]
    user_id: Filter,
    /// Decisions at this endpoint only.
    #[param(value_type = Option<String>)]
    endpoint: Filter,
    /// A time as RFC 3339 has it, or seconds since the epoch.
    #[param(value_type = Option<String>)]
    since: Since,
    /// Only those allowed, or only those denied.
    allowed: Option<bool>,
}

/// What was decided
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
        since: query.since.0,
        allowed: query.allowed,
    };
    let found = managed.live.catalog.decision_page(filter, after, limit).await?;
    let full = found.len() == limit;
    let next_cursor = found.last().filter(|_| full).map(|(number, _)| number.to_string());
    let decisions = found.iter().map(|(_, record)| DecisionResponse::new(record)).collect();
    Ok(json(StatusCode::OK, &DecisionListResponse { decisions, next_cursor }))
}

/// How often an identifier was allowed and denied.
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

/// Who asked most.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageList)]
struct UsageListResponse<'a> {
    #[schema(value_type = value::Time)]
    since: String,
    usage: Vec<UsageResponse<'a>>,
}

/// Which usage is wanted. This list has one page, which `limit` makes longer.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// How many entries at most; 100 unless given.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// Identifiers of this dimension only.
    #[param(value_type = Option<String>)]
    dimension: Filter,
    /// This identifier only.
    #[param(value_type = Option<String>)]
    identifier: Filter,
    /// A time as RFC 3339 has it, or seconds since the epoch.
    #[param(value_type = Option<String>)]
    since: Since,
}

/// The heaviest identifiers since a time
///
/// Of the last hour unless `since` is given.
#[utoipa::path(
    get,
    path = "/api/v1/usage",
    operation_id = "list_usage",
    tag = "Logs",
    params(UsageQuery),
    responses((status = 200, description = "The heaviest first.", body = UsageListResponse)),
)]
pub(crate) async fn usage(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Query(query): Query<UsageQuery>,
) -> Result<Response, ApiError> {
    let hour = Period::Hour.length();
    let an_hour_ago = Timestamp::from_micros(now().as_micros().saturating_sub(hour.as_micros() as u64));
    let since = query.since.0.unwrap_or(an_hour_ago);
    // Minutes for what is recent; what is longer ago is added up from hours.
    let recent = now().saturating_since(since) <= Duration::from_secs(6 * 3_600);
    let period = if recent { Period::Minute } else { Period::Hour };
    let invalid = |field| move |invalid: Invalid| ApiError::input(field, invalid.reason());
    let (dimension, identifier) = (query.dimension.0, query.identifier.0);
    let dimension =
        dimension.as_deref().map(identity::dimension).transpose().map_err(invalid("dimension"))?;
    // An address is looked up as it is counted.
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
