//! The management API: rules, users, overrides, plans, and the same things in the forms of the source systems. What they share is here.

pub(super) mod admin;
pub(super) mod audit;
pub(super) mod config;
pub(super) mod keys;
pub(super) mod logs;
pub(super) mod overrides;
pub(super) mod plans;
pub(super) mod policies;
mod rule_wire;
pub(super) mod rules;
pub(super) mod users;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Response;
use hyper::header::{ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use jiff::Timestamp as Time;
use pacegate::Timestamp;
use pacegate::identity::check_identifier;
use pacegate_catalog::{Actor, CatalogError, Expected};

use super::read_json;
use crate::app::Shared;
use crate::auth::{Need, actor};
use crate::bodies::Gathered;
use crate::live::Live;
use crate::peer::Peer;
use crate::respond::{ApiError, Code};

/// How many entries a page has unless the request says otherwise, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Names and values of a query, decoded.
type Parameters<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// A request by somebody who may manage, and the rules it is about.
pub(super) struct Managed {
    pub(super) live: Arc<Live>,
    pub(super) actor: Actor,
    pub(super) headers: HeaderMap,
    pub(super) query: Option<String>,
}

impl Managed {
    /// Refuses whoever may not manage.
    pub(super) async fn new(shared: &Shared, request: Request<Body>) -> Result<Self, ApiError> {
        Self::of(shared, request.into_parts().0).await
    }

    /// As [`new`](Self::new), with the whole body, which must be JSON.
    pub(super) async fn with_json(
        shared: &Shared,
        request: Request<Body>,
    ) -> Result<(Self, Gathered), ApiError> {
        let (parts, body) = request.into_parts();
        let peer = parts.extensions.get::<Peer>().cloned();
        let managed = Self::of(shared, parts).await?;
        let mut request = Request::new(body);
        *request.headers_mut() = managed.headers.clone();
        let (_, body) = read_json(shared, request, peer.as_ref()).await?;
        Ok((managed, body))
    }

    async fn of(shared: &Shared, parts: Parts) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>();
        let need = if parts.method.is_safe() { Need::Read } else { Need::Write };
        let key_id = shared.gate.admit(&parts.headers, peer, need).await?;
        let actor = actor(key_id, peer, &parts.headers);
        let live = shared.live.clone().ok_or_else(|| {
            ApiError::new(Code::ServiceUnavailable, "this service has no catalog, so nothing can be changed")
        })?;
        let query = parts.uri.query().map(str::to_owned);
        Ok(Self { live, actor, headers: parts.headers, query })
    }

    /// The change is made; now it comes into force here. Elsewhere it does within two seconds.
    pub(super) async fn in_force(&self) {
        if let Err(error) = self.live.refresh().await {
            tracing::error!(%error, "a change is kept, but comes into force only when the catalog answers again");
        }
    }

    /// The parameters of the query, which must all be known.
    pub(super) fn parameters(&self, known: &[&str]) -> Result<Parameters<'_>, ApiError> {
        let query = self.query.as_deref().unwrap_or_default();
        let parameters: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        if let Some((name, _)) = parameters.iter().find(|(name, _)| !known.contains(&&**name)) {
            let name: String = name.chars().take(64).collect();
            let reason = if known.is_empty() {
                "unknown parameter; there are none".to_owned()
            } else {
                format!("unknown parameter; known are {}", known.join(", "))
            };
            return Err(ApiError::input(&name, reason));
        }
        Ok(parameters)
    }

    /// `limit`, `cursor` and the filters that a list has.
    pub(super) fn page(&self, filters: &[&str]) -> Result<Page, ApiError> {
        let known = [&["limit", "cursor"], filters].concat();
        let mut page = Page { limit: PAGE_DEFAULT, cursor: None, filters: Vec::new() };
        for (name, value) in self.parameters(&known)? {
            match &*name {
                "limit" => {
                    let number = value.parse().ok().filter(|number| (1..=PAGE_MAX).contains(number));
                    page.limit = number.ok_or_else(|| {
                        ApiError::input("limit", format!("must be a whole number between 1 and {PAGE_MAX}"))
                    })?;
                }
                "cursor" => page.cursor = Some(value.into_owned()).filter(|cursor| !cursor.is_empty()),
                _ => page.filters.push((name.into_owned(), value.into_owned())),
            }
        }
        Ok(page)
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
        version: Option<i64>,
        updated_at: Option<&str>,
        current: Option<(i64, Timestamp)>,
    ) -> Result<Option<Expected>, ApiError> {
        let by_header = self.expected()?;
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

/// Which part of a list is wanted.
pub(super) struct Page {
    pub(super) limit: usize,
    pub(super) cursor: Option<String>,
    filters: Vec<(String, String)>,
}

impl Page {
    /// The cursor of lists that are ordered by a number.
    pub(super) fn number_cursor(&self) -> Result<Option<i64>, ApiError> {
        let number = self.cursor.as_deref().map(str::parse).transpose();
        number.map_err(|_| ApiError::input("cursor", "is not one that this list gave out"))
    }

    /// A filter as it was given, unless it is empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let found = self.filters.iter().rfind(|(own, _)| own == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    }

    /// A filter that is yes or no.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        let found = self.filters.iter().rfind(|(own, _)| own == name);
        let flag = found.map(|(_, value)| value.parse::<bool>()).transpose();
        flag.map_err(|_| ApiError::input(name, "must be true or false"))
    }

    /// A filter that is a time: RFC 3339, or seconds since the epoch.
    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let micros = match text.parse::<u64>() {
            Ok(seconds) => seconds.checked_mul(1_000_000),
            Err(_) => text.parse::<Time>().ok().and_then(|time| u64::try_from(time.as_microsecond()).ok()),
        };
        let reason = "must be a time like 2030-01-31T12:00:00Z, or seconds since 1970";
        micros.map(|micros| Some(Timestamp::from_micros(micros))).ok_or_else(|| ApiError::input(name, reason))
    }
}

/// A parameter of the path.
pub(super) type PathParts = Result<Path<Vec<String>>, PathRejection>;

/// The parts of the path that are variable, decoded.
pub(super) fn path_parts(path: PathParts) -> Result<Vec<String>, ApiError> {
    path.map(|Path(parts)| parts).map_err(|_| ApiError::input("path", "is not valid UTF-8"))
}

/// The only variable part of the path.
pub(super) fn path_part(path: PathParts) -> Result<String, ApiError> {
    Ok(path_parts(path)?.into_iter().next().unwrap_or_default())
}

/// The user that the path names, if somebody can be called that.
pub(super) fn path_user(path: PathParts) -> Result<String, ApiError> {
    let user_id = path_part(path)?;
    match check_identifier(&user_id) {
        Ok(()) => Ok(user_id),
        Err(invalid) => Err(ApiError::input("user_id", invalid.reason())),
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
    let micros = |text: &str| text.parse::<Time>().ok().map(|time| time.as_microsecond());
    unchanged(field, sent.map(micros), i64::try_from(own.as_micros()).ok())
}

/// Adds the version as an ETag.
pub(super) fn with_etag(mut response: Response, version: i64) -> Response {
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

/// A time as RFC 3339 has it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let at = Time::from_microsecond(i64::try_from(at.as_micros()).unwrap_or(i64::MAX));
    at.unwrap_or(Time::MAX).to_string()
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
