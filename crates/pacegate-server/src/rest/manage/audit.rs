//! `GET /api/v1/audit`: the audit trail, with the state before and after each change.

use axum::response::Response;
use hyper::StatusCode;
use pacegate_catalog::{AuditFilter, AuditRecord};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Managed;
use crate::clock::rfc3339;
use crate::openapi::vocabulary as value;
use crate::respond::ApiError;
use crate::rest::extract::{Filter, PageLimit, Query, Since};
use crate::rest::json;

/// One change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditRecord)]
struct AuditResponse<'a> {
    sequence: i64,
    #[schema(value_type = value::Time)]
    at: String,
    /// The id of the key; `configured` for the key in `PACEGATE_ADMIN_KEY`.
    actor: &'a str,
    #[schema(required = true)]
    address: Option<&'a str>,
    #[schema(required = true)]
    request_id: Option<&'a str>,
    action: &'a str,
    subject: &'a str,
    #[schema(required = true)]
    user_id: Option<&'a str>,
    /// Null for a creation.
    #[schema(required = true, value_type = Option<Object>)]
    before: Option<&'a RawValue>,
    /// Null for a deletion.
    #[schema(required = true, value_type = Option<Object>)]
    after: Option<&'a RawValue>,
    /// Hash of this record and the previous one, so that tampering is detected.
    hash: &'a str,
}

impl<'a> AuditResponse<'a> {
    fn new(record: &'a AuditRecord) -> Self {
        // The catalog writes these values as JSON.
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

/// Audit records, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditList)]
struct AuditListResponse<'a> {
    records: Vec<AuditResponse<'a>>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Filters for the audit trail.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// Maximum number of entries. Default: 100.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// The `next_cursor` of the previous page.
    #[param(value_type = Option<String>)]
    cursor: Filter,
    /// Only changes to this user.
    #[param(value_type = Option<String>)]
    user: Filter,
    /// Only changes made with this key, by its id.
    #[param(value_type = Option<String>)]
    actor: Filter,
    /// Only changes since this time: RFC 3339, or seconds since the epoch.
    #[param(value_type = Option<String>)]
    since: Since,
}

/// List audit records, newest first
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    operation_id = "list_audit",
    tag = "Logs",
    params(AuditQuery),
    responses((status = 200, description = "One page of changes.", body = AuditListResponse)),
)]
pub(crate) async fn list(managed: Managed, Query(query): Query<AuditQuery>) -> Result<Response, ApiError> {
    let (after, PageLimit(limit)) = (query.cursor.number()?, query.limit);
    let filter = AuditFilter { user: query.user.0, actor: query.actor.0, since: query.since.0 };
    let records = managed.live.catalog.audit_page(filter, after, limit).await?;
    let full = records.len() == limit;
    let next_cursor = records.last().filter(|_| full).map(|last| last.sequence.to_string());
    let records = records.iter().map(AuditResponse::new).collect();
    Ok(json(StatusCode::OK, &AuditListResponse { records, next_cursor }))
}
