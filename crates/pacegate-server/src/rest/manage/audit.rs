//! `GET /api/v1/audit`: who changed what, before and after.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate_catalog::{AuditFilter, AuditRecord};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Managed, rfc3339};
use crate::app::Shared;
use crate::openapi::parameters::PageParameters;
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::json;

/// One change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
struct AuditResponse<'a> {
    sequence: i64,
    #[schema(value_type = value::Time)]
    at: String,
    /// The id of the key; `configured` for the one in `PACEGATE_ADMIN_KEY`.
    actor: &'a str,
    #[schema(required = true)]
    address: Option<&'a str>,
    #[schema(required = true)]
    request_id: Option<&'a str>,
    action: &'a str,
    subject: &'a str,
    #[schema(required = true)]
    user_id: Option<&'a str>,
    /// Null for what was not there.
    #[schema(required = true, value_type = Option<Object>)]
    before: Option<&'a RawValue>,
    /// Null for what is gone.
    #[schema(required = true, value_type = Option<Object>)]
    after: Option<&'a RawValue>,
    /// Of this record and the one before, so that none can be changed unseen.
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

/// Who changed what.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditList)]
struct AuditListResponse<'a> {
    records: Vec<AuditResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Who changed what, before and after
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "list_audit",
    tag = "Logs",
    params(
        PageParameters,
        ("user" = Option<String>, Query, description = "changes about this user only"),
        ("actor" = Option<String>, Query, description = "changes made with this key only, by its id"),
        ("since" = Option<String>, Query, description = "a time as RFC 3339 has it, or seconds since the epoch"),
    ),
    responses((status = 200, description = "One page of changes.", body = AuditListResponse)),
)]
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
