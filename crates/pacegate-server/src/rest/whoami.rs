//! `GET /api/v1/whoami`: the caller's key and its role.

use axum::response::Response;
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::Reader;
use super::json;
use crate::openapi::vocabulary as value;

/// The caller.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Caller)]
struct WhoamiResponse<'a> {
    /// `configured` for the key in `PACEGATE_ADMIN_KEY`.
    key_id: &'a str,
    #[schema(value_type = value::RoleName)]
    role: &'static str,
    /// The version of the service.
    version: &'static str,
}

/// Get the caller's key and role
///
/// For programs that show only the operations that their key permits.
#[utoipa::path(
    get,
    path = "/api/v1/whoami",
    operation_id = "whoami",
    tag = "Service",
    responses((status = 200, description = "The caller's key and role.", body = WhoamiResponse)),
)]
pub(crate) async fn whoami(Reader(caller): Reader) -> Response {
    let body = WhoamiResponse {
        key_id: &caller.key_id,
        role: caller.role.name(),
        version: env!("CARGO_PKG_VERSION"),
    };
    json(StatusCode::OK, &body)
}
