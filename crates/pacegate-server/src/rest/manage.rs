//! The management API: rules, users, overrides, plans, keys and logs. This module has what its
//! handlers share.
//!
//! A handler takes the admitted caller, the path, the query and the body as arguments
//! ([`extract`](super::extract)); every write goes through [`Managed::change`].

pub(super) mod audit;
pub(super) mod config;
pub(super) mod identities;
pub(super) mod keys;
pub(super) mod logs;
pub(super) mod overrides;
pub(super) mod plans;
pub(super) mod rule_wire;
pub(super) mod rules;
pub(super) mod user_import;
pub(super) mod users;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use hyper::header::{ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use pacegate::Timestamp;
use pacegate_catalog::{Actor, Catalog, CatalogError, Expected};
use serde::Serialize;
use utoipa::IntoParams;

use super::decode::{Integer, Whole};
use super::extract::Admitted;
use super::json;
use crate::app::Shared;
use crate::clock::parse_rfc3339;
use crate::live::Live;
use crate::respond::{ApiError, Code};

/// A caller that may manage the service, and the catalog and rules it manages.
pub(super) struct Managed {
    pub(super) live: Arc<Live>,
    pub(super) actor: Actor,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<Shared>> for Managed {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let Admitted(actor) = Admitted::from_request_parts(parts, shared).await?;
        let live = shared.live.clone().ok_or_else(|| {
            ApiError::new(
                Code::ServiceUnavailable,
                "this service has no catalog; configure one to use the management API",
            )
        })?;
        Ok(Self { live, actor, headers: parts.headers.clone() })
    }
}

/// The condition of a change, for the OpenAPI document; [`Managed::expected`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct IfMatch {
    /// The ETag that was read, or `*`. 412 if it is not current.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// The subject of a change; this node refreshes what it has cached about it.
pub(super) enum Subject<'a> {
    Rules,
    User(&'a str),
    Users(&'a [String]),
    Keys,
}

impl Managed {
    /// Makes a change, which the catalog records with its actor, and applies it on this node. Other
    /// nodes follow within two seconds.
    pub(super) async fn change<'a, T, F>(
        &'a self,
        subject: Subject<'_>,
        write: impl FnOnce(&'a Catalog, &'a Actor) -> F,
    ) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, CatalogError>>,
    {
        let changed = write(&self.live.catalog, &self.actor).await?;
        if let Err(error) = self.live.refresh().await {
            tracing::error!(%error, "change stored; it takes effect when the catalog is available again");
        }
        match subject {
            Subject::Rules => {}
            Subject::User(user_id) => self.live.profiles.invalidate(user_id),
            Subject::Users(users) => users.iter().for_each(|user_id| self.live.profiles.invalidate(user_id)),
            Subject::Keys => self.live.keys.invalidate(),
        }
        Ok(changed)
    }

    /// Returns the version that `If-Match` requires; `None` without that header.
    pub(super) fn expected(&self) -> Result<Option<Expected>, ApiError> {
        let Some(value) = self.headers.get(IF_MATCH) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Some(Expected::Present));
        }
        let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        // A value that was never issued as an ETag matches nothing.
        let version = version.and_then(|text| text.parse().ok());
        version.map(|version| Some(Expected::Version(version))).ok_or_else(|| {
            ApiError::field(
                Code::PreconditionFailed,
                "If-Match",
                "not the current ETag; read the current state and retry",
            )
        })
    }

    /// Returns the version that a change expects, from `If-Match` or from a body that was read and
    /// sent back. `version` and `updated_at` are those of the body; `current` has their current
    /// values if the record exists.
    pub(super) fn expected_by(
        &self,
        version: Option<Integer>,
        updated_at: Option<&str>,
        current: Option<(i64, Timestamp)>,
    ) -> Result<Option<Expected>, ApiError> {
        let by_header = self.expected()?;
        let version = version.map(|Whole(version)| version);
        if let (Some(Expected::Version(header)), Some(version)) = (by_header, version)
            && header != version
        {
            return Err(ApiError::input("version", "must equal If-Match"));
        }
        let expected = version.map(Expected::Version).or(by_header);
        let (Some(updated_at), Some((version, own))) = (updated_at, current) else { return Ok(expected) };
        // A body of an earlier version is outdated, not edited: the catalog rejects it with 412.
        if matches!(expected, None | Some(Expected::Present)) || expected == Some(Expected::Version(version))
        {
            unchanged_time("updated_at", Some(updated_at), own)?;
            return Ok(Some(Expected::Version(version)));
        }
        Ok(expected)
    }

    /// Returns whether the client already has this version.
    pub(super) fn has_already(&self, version: i64) -> bool {
        let etag = format!("\"{version}\"");
        let known = self.headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
        known == "*" || known.split(',').any(|known| known.trim().trim_start_matches("W/") == etag)
    }
}

/// Rejects a changed read-only field; an omitted field counts as unchanged.
pub(super) fn unchanged<T: PartialEq>(field: &str, sent: Option<T>, own: T) -> Result<(), ApiError> {
    if sent.is_none_or(|sent| sent == own) {
        return Ok(());
    }
    Err(ApiError::input(field, "read-only field; send the current value or omit it"))
}

/// Like [`unchanged`], for a time, which may be written in several ways.
pub(super) fn unchanged_time(field: &str, sent: Option<&str>, own: Timestamp) -> Result<(), ApiError> {
    unchanged(field, sent.map(parse_rfc3339), Some(own))
}

/// Returns a response with a record, and its version as the ETag.
pub(super) fn shown(status: StatusCode, body: &impl Serialize, version: i64) -> Response {
    with_etag(json(status, body), version)
}

/// Adds the version as an ETag.
fn with_etag(mut response: Response, version: i64) -> Response {
    if let Ok(value) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

/// Returns a response without a body.
pub(super) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

impl From<CatalogError> for ApiError {
    fn from(error: CatalogError) -> Self {
        let message = error.to_string();
        if error.is_not_found() {
            return Self::new(Code::NotFound, message);
        }
        if error.is_conflict() {
            return Self::new(Code::Conflict, message);
        }
        if error.is_changed() {
            return Self::new(Code::PreconditionFailed, message);
        }
        if error.is_invalid() {
            return match error.field() {
                Some(field) => Self::input(field, error.reason()),
                None => Self::new(Code::InvalidInput, message),
            };
        }
        // Database errors are logged and never sent to clients.
        tracing::error!(%error, "catalog operation failed");
        if error.is_uncertain() {
            let message = "lost connection to the catalog during the change; check whether it was made before you retry";
            return Self::new(Code::ServiceUnavailable, message);
        }
        if error.is_unavailable() {
            let message = "catalog unavailable or not writable; nothing was changed; retry";
            return Self::new(Code::ServiceUnavailable, message);
        }
        Self::new(Code::InternalError, "the catalog operation failed; nothing was changed")
    }
}
