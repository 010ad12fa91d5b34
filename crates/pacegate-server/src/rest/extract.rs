//! Extractors of the handlers. The admitted caller comes first in every handler, so that no other
//! part of a request is read before its caller is admitted.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path};
use hyper::Request;
use hyper::http::request::Parts;
use pacegate::Timestamp;
use pacegate::identity::check_identifier;
use pacegate_catalog::Actor;
use serde::de::{DeserializeOwned, Error, Unexpected};
use serde::{Deserialize, Deserializer};
use utoipa::IntoParams;

use super::decode::{Count, Whole, read_object, read_query};
use super::{read_json, read_json_of};
use crate::app::Shared;
use crate::auth::{Caller, Need, actor};
use crate::clock::parse_rfc3339;
use crate::peer::{Peer, peer};
use crate::respond::{ApiError, Code};
use pacegate_http::server::Gathered;

/// A caller that may read.
pub(super) struct Reader(pub(super) Caller);

impl FromRequestParts<Arc<Shared>> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>();
        shared.gate.admit_caller(&parts.headers, peer, Need::Read).await.map(Self)
    }
}

/// A caller that may use the method of its request, as an actor for the audit trail.
pub(super) struct Admitted(pub(super) Actor);

impl FromRequestParts<Arc<Shared>> for Admitted {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let peer = parts.extensions.get::<Peer>();
        let need = if parts.method.is_safe() { Need::Read } else { Need::Write };
        let key_id = shared.gate.admit(&parts.headers, peer, need).await?;
        Ok(Self(actor(key_id, peer, &parts.headers)))
    }
}

/// The whole body of a request with a JSON content type.
pub(super) struct JsonBody(pub(super) Gathered);

impl FromRequest<Arc<Shared>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let peer = peer(&request).cloned();
        let (_, body) = read_json(shared, request, peer.as_ref()).await?;
        Ok(Self(body))
    }
}

/// The object in the body of a request.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let JsonBody(body) = JsonBody::from_request(request, shared).await?;
        read_object(&body).map(Self)
    }
}

/// Maximum size of the body of an import, which only callers with an admin key can send.
const LARGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// As [`Json`], for a body of up to 4 MiB.
pub(super) struct LargeJson<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Shared>> for LargeJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let peer = peer(&request).cloned();
        let (_, body) = read_json_of(shared, request, peer.as_ref(), LARGE_BYTES_MAX).await?;
        read_object(&body).map(Self)
    }
}

/// The last variable of the path: an id, a name or a key.
pub(super) struct Id(pub(super) String);

impl FromRequestParts<Arc<Shared>> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        Ok(Self(variables(parts, shared).await?.pop().unwrap_or_default()))
    }
}

/// The user in the path.
pub(super) struct UserId(pub(super) String);

impl FromRequestParts<Arc<Shared>> for UserId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let user_id = variables(parts, shared).await?.into_iter().next().unwrap_or_default();
        match check_identifier(&user_id) {
            Ok(()) => Ok(Self(user_id)),
            Err(invalid) => Err(ApiError::input("user_id", invalid.reason())),
        }
    }
}

/// The user and the endpoint in the path, as sent.
pub(super) struct UserEndpoint {
    pub(super) user_id: String,
    pub(super) endpoint: String,
}

impl FromRequestParts<Arc<Shared>> for UserEndpoint {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let mut variables = variables(parts, shared).await?.into_iter();
        let user_id = variables.next().unwrap_or_default();
        // If nothing follows the user's slash, the endpoint is that slash.
        Ok(Self { user_id, endpoint: variables.next().unwrap_or_else(|| "/".to_owned()) })
    }
}

/// Returns the variables of the path, decoded.
pub(super) async fn variables(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Vec<String>, ApiError> {
    let path = Path::from_request_parts(parts, shared).await;
    path.map(|Path(variables)| variables).map_err(|_| ApiError::input("path", "is not valid UTF-8"))
}

/// The parameters of the query.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Shared>> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Shared>) -> Result<Self, ApiError> {
        let query = read_query(parts.uri.query().unwrap_or_default());
        query.map(Self).map_err(|mut error: ApiError| {
            // The `limit` of a list is not a rate limit.
            error.code = Code::InvalidInput;
            error
        })
    }
}

/// The requested page of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Maximum number of entries. Default: 100.
    #[serde(default)]
    #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    pub(super) limit: PageLimit,
    /// The `next_cursor` of the previous page.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub(super) cursor: Filter,
}

/// No parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParameters {}

/// Maximum number of entries of a page.
#[derive(Clone, Copy)]
pub(super) struct PageLimit(pub(super) usize);

impl PageLimit {
    pub(super) const MAX: usize = 1_000;
}

impl Default for PageLimit {
    fn default() -> Self {
        Self(100)
    }
}

impl<'de> Deserialize<'de> for PageLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Whole(number) = Count::deserialize(deserializer)?;
        let limit = usize::try_from(number).ok().filter(|limit| (1..=Self::MAX).contains(limit));
        let expected = format!("a whole number between 1 and {}", Self::MAX);
        limit.map(Self).ok_or_else(|| D::Error::invalid_value(Unexpected::Unsigned(number), &&*expected))
    }
}

/// A parameter without effect if it is empty.
#[derive(Default)]
pub(super) struct Filter(pub(super) Option<String>);

impl Filter {
    /// Parses the cursor of a list that is ordered by number.
    pub(super) fn number(&self) -> Result<Option<i64>, ApiError> {
        self.0.as_deref().map(str::parse).transpose().map_err(|_| invalid_cursor())
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(Self(Some(text).filter(|text| !text.is_empty())))
    }
}

/// The optional start time of a list.
#[derive(Default)]
pub(super) struct Since(pub(super) Option<Timestamp>);

impl<'de> Deserialize<'de> for Since {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Filter(Some(text)) = Filter::deserialize(deserializer)? else { return Ok(Self(None)) };
        let time = match text.parse::<u64>() {
            Ok(seconds) => seconds.checked_mul(1_000_000).map(Timestamp::from_micros),
            Err(_) => parse_rfc3339(&text),
        };
        let expected = &"a time such as \"2030-01-31T12:00:00Z\" or seconds since the epoch";
        match time {
            Some(time) => Ok(Self(Some(time))),
            None => Err(D::Error::invalid_value(Unexpected::Str(&text), expected)),
        }
    }
}

/// The error for a cursor that this list never returned.
pub(super) fn invalid_cursor() -> ApiError {
    ApiError::input("cursor", "not a cursor of this list; use next_cursor of the previous page")
}
