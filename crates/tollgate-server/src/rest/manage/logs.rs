//! `GET /api/v1/logs` and `GET /api/v1/usage`: what was decided, and for whom how often.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::Serialize;
use tollgate::Timestamp;
use tollgate_catalog::{DecisionFilter, DecisionRecord, Period, UsageFilter, UsageRecord};

use super::{Managed, rfc3339};
use crate::app::Shared;
use crate::profiles::now;
use crate::respond::ApiError;
use crate::rest::json;

#[derive(Debug, Serialize)]
struct DecisionResponse<'a> {
    at: String,
    request_id: Option<&'a str>,
    user_id: Option<&'a str>,
    dimension: &'a str,
    identifier: &'a str,
    endpoint: &'a str,
    method: Option<&'a str>,
    allowed: bool,
    rule: Option<&'a str>,
    reason: Option<&'a str>,
    cost: u64,
    limit: Option<u64>,
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

#[derive(Debug, Serialize)]
struct DecisionListResponse<'a> {
    decisions: Vec<DecisionResponse<'a>>,
    next_cursor: Option<String>,
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let page = managed.page(&["user_id", "endpoint", "since", "allowed"])?;
    let after = page.number_cursor()?;
    let allowed = match page.text("allowed").as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(ApiError::input("allowed", "must be true or false")),
    };
    let filter = DecisionFilter {
        user_id: page.text("user_id"),
        endpoint: page.text("endpoint"),
        since: page.time("since")?,
        allowed,
    };
    let found = managed.live.catalog.decision_page(filter, after, page.limit).await?;
    let full = found.len() == page.limit;
    let next_cursor = found.last().filter(|_| full).map(|(number, _)| number.to_string());
    let decisions = found.iter().map(|(_, record)| DecisionResponse::new(record)).collect();
    Ok(json(StatusCode::OK, &DecisionListResponse { decisions, next_cursor }))
}

#[derive(Debug, Serialize)]
struct UsageResponse<'a> {
    dimension: &'a str,
    identifier: &'a str,
    allowed: u64,
    blocked: u64,
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

#[derive(Debug, Serialize)]
struct UsageListResponse<'a> {
    since: String,
    usage: Vec<UsageResponse<'a>>,
}

/// The heaviest identifiers since a time; of the last hour unless it is given.
pub(crate) async fn usage(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let page = managed.page(&["dimension", "identifier", "since"])?;
    if page.cursor.is_some() {
        return Err(ApiError::input("cursor", "this list has one page; make it longer with limit"));
    }
    let hour = Period::Hour.length();
    let an_hour_ago = Timestamp::from_micros(now().as_micros().saturating_sub(hour.as_micros() as u64));
    let since = page.time("since")?.unwrap_or(an_hour_ago);
    // Minutes for what is recent; what is longer ago is added up from hours.
    let recent = now().saturating_since(since) <= Duration::from_secs(6 * 3_600);
    let period = if recent { Period::Minute } else { Period::Hour };
    let filter = UsageFilter { dimension: page.text("dimension"), identifier: page.text("identifier") };
    let found = managed.live.catalog.usage(period, filter, since, page.limit).await?;
    let usage = found.iter().map(UsageResponse::new).collect();
    Ok(json(StatusCode::OK, &UsageListResponse { since: rfc3339(period.start_of(since)), usage }))
}
