//! `GET /api/v1/audit`: who changed what, before and after.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_catalog::{AuditFilter, AuditRecord};

use super::{Managed, rfc3339};
use crate::app::Shared;
use crate::respond::ApiError;
use crate::rest::json;

#[derive(Debug, Serialize)]
struct AuditResponse<'a> {
    sequence: i64,
    at: String,
    actor: &'a str,
    address: Option<&'a str>,
    request_id: Option<&'a str>,
    action: &'a str,
    subject: &'a str,
    user_id: Option<&'a str>,
    before: Option<&'a RawValue>,
    after: Option<&'a RawValue>,
    hash: &'a str,
}

impl<'a> AuditResponse<'a> {
    fn new(record: &'a AuditRecord) -> Self {
        // Only the catalog writes these, as JSON.
        let json =
            |text: &'a Option<String>| text.as_deref().and_then(|text| serde_json::from_str(text).ok());
        Self {
            sequence: record.sequence,
            at: rfc3339(record.at),
            actor: &record.actor.key_id,
            address: record.actor.address.as_deref(),
            request_id: record.actor.request_id.as_deref(),
            action: &record.action,
            subject: &record.subject,
            user_id: record.user_id.as_deref(),
            before: json(&record.before),
            after: json(&record.after),
            hash: &record.hash,
        }
    }
}

#[derive(Debug, Serialize)]
struct AuditListResponse<'a> {
    records: Vec<AuditResponse<'a>>,
    next_cursor: Option<String>,
}

pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let page = managed.page(&["user", "actor", "since"])?;
    let after = page.number_cursor()?;
    let filter =
        AuditFilter { user: page.text("user"), actor: page.text("actor"), since: page.time("since")? };
    let records = managed.live.catalog.audit_page(filter, after, page.limit).await?;
    let full = records.len() == page.limit;
    let next_cursor = records.last().filter(|_| full).map(|last| last.sequence.to_string());
    let records = records.iter().map(AuditResponse::new).collect();
    Ok(json(StatusCode::OK, &AuditListResponse { records, next_cursor }))
}
