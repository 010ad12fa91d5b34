//! The management API: rules, users, overrides, plans, keys and logs. What its handlers share is here.
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

/// A caller that may manage, and the catalog and rules that it manages.
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
            ApiError::new(Code::ServiceUnavailable, "this service has no catalog, so nothing can be changed")
        })?;
        Ok(Self { live, actor, headers: parts.headers.clone() })
    }
}

/// The condition of a change, for the document; [`Managed::expected`] reads it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only its description is used")]
pub(super) struct IfMatch {
    /// The ETag that was read, or `*`; 412 if it is not the current one.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// What a change is about: what this node has cached about it is looked up again.
pub(super) enum Subject<'a> {
    Rules,
    User(&'a str),
    Keys,
}

impl Managed {
    /// Makes a change, which the catalog records together with its actor, and puts it in force on
    /// this node. Other nodes follow within two seconds.
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
            tracing::error!(%error, "a change is kept, but comes into force only when the catalog answers again");
        }
        match subject {
            Subject::Rules => {}
            Subject::User(user_id) => self.live.profiles.forget(user_id),
            Subject::Keys => self.live.keys.forget(),
        }
        Ok(changed)
    }

    /// What `If-Match` demands of the resource; `None` without that header.
    pub(super) fn expected(&self) -> Result<Option<Expected>, ApiError> {
        let Some(value) = self.headers.get(IF_MATCH) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Some(Expected::Present));
        }
        let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        // Whatever we never gave out as an ETag matches nothing.
        let version = version.and_then(|text| text.parse().ok());
        version.map(|version| Some(Expected::Version(version))).ok_or_else(|| {
            ApiError::field(
                Code::PreconditionFailed,
                "If-Match",
                "is not the current ETag; read the current state and try again",
            )
        })
    }

    /// The version that a change expects: by `If-Match`, or by a body that was read and is sent back. `version` and
    /// `updated_at` are those of the body; `current` is what they are now, if the record exists.
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
            return Err(ApiError::input("version", "differs from If-Match"));
        }
        let expected = version.map(Expected::Version).or(by_header);
        let (Some(updated_at), Some((version, own))) = (updated_at, current) else { return Ok(expected) };
        // A body of an older version is outdated, not edited: the catalog answers that with 412.
        if matches!(expected, None | Some(Expected::Present)) || expected == Some(Expected::Version(version))
        {
            unchanged_time("updated_at", Some(updated_at), own)?;
            return Ok(Some(Expected::Version(version)));
        }
        Ok(expected)
    }

    /// Whether the client has this version already.
    pub(super) fn has_already(&self, version: i64) -> bool {
        let etag = format!("\"{version}\"");
        let known = self.headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
        known == "*" || known.split(',').any(|known| known.trim().trim_start_matches("W/") == etag)
    }
}

/// Refuses a field of the server that the client changed; one that was left out is unchanged.
pub(super) fn unchanged<T: PartialEq>(field: &str, sent: Option<T>, own: T) -> Result<(), ApiError> {
    if sent.is_none_or(|sent| sent == own) {
        return Ok(());
    }
    Err(ApiError::input(field, "is set by the server; send the current value or leave it out"))
}

/// As [`unchanged`], for a time, whose text may have been rewritten on the way.
pub(super) fn unchanged_time(field: &str, sent: Option<&str>, own: Timestamp) -> Result<(), ApiError> {
    unchanged(field, sent.map(parse_rfc3339), Some(own))
}

/// A response that shows a record, with its version as the ETag.
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

/// An answer without a body.
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
        // What databases say is not the client's business.
        tracing::error!(%error, "the catalog could not do what a request asks for");
        if error.is_uncertain() {
            let message = "the catalog was lost in the middle of the change; see whether it was made before trying again";
            return Self::new(Code::ServiceUnavailable, message);
        }
        if error.is_unavailable() {
            let message = "the catalog does not answer or cannot be written; nothing was changed; try again";
            return Self::new(Code::ServiceUnavailable, message);
        }
        Self::new(Code::InternalError, "the catalog could not do that; nothing was changed")
    }
}
