//! `GET /api/v1/audit`: who changed what, before and after.

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

/// Which changes are wanted.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// How many entries at most; 100 unless given.
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    limit: PageLimit,
    /// Where to go on: what the page before said.
    #[param(value_type = Option<String>)]
    cursor: Filter,
    /// Changes about this user only.
    #[param(value_type = Option<String>)]
    user: Filter,
    /// Changes made with this key only, by its id.
    #[param(value_type = Option<String>)]
    actor: Filter,
    /// A time as RFC 3339 has it, or seconds since the epoch.
    #[param(value_type = Option<String>)]
    since: Since,
}

/// Who changed what, before and after
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
