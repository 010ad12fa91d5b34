//! Responses to requests that do not pass: status, headers and body, over HTTP and gRPC.

mod grpc;
mod json;
mod problem;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pacegate::{CheckError, Decision, Reason};

use crate::body::ResponseBody;
use crate::error::Unresolved;
use crate::resolve::RequestHead;
use pacegate_http::error::Code;
use pacegate_http::headers::{Families, seconds_ceil};
use pacegate_http::request_id::{REQUEST_ID, is_usable};

/// `Retry-After` while a store is unavailable: stores are probed at least this often.
const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The format of the body of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `application/json`: `{"error": {"code": "RATE_LIMITED", …}, "limit": 10, "remaining": 0,
    /// "retry_after": 3, …}`
    #[default]
    Json,
    /// `application/problem+json` (RFC 9457), with the problem types of the IETF draft on rate
    /// limit headers.
    Problem,
}

/// Why a request does not pass.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Cause<'a> {
    /// A limit is exceeded.
    Limited(&'a Decision),
    /// The limit allows the request, but its queue is too long or has too many waiting requests.
    /// The charge was refunded.
    QueueFull(&'a Decision),
    /// The store is unavailable, and the limit fails closed.
    FailedClosed(&'a Decision),
    /// The request has no key.
    Unresolved(&'a Unresolved),
    /// The request could not be checked.
    Failed(&'a CheckError),
}

/// A request that does not pass, for custom responses.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'a> {
    cause: Cause<'a>,
    retry_after: Option<Duration>,
    request_id: &'a str,
}

impl<'a> Denial<'a> {
    /// A denial by the limiter.
    pub(crate) fn decided(decision: &'a Decision, caller: &'a Caller) -> Self {
        let (cause, retry_after) = if decision.failed_closed() {
            (Cause::FailedClosed(decision), Some(STORE_RETRY_AFTER))
        } else {
            (Cause::Limited(decision), decision.retry_after())
        };
        Self { cause, retry_after, request_id: caller.request_id() }
    }

    /// A request that would wait too long, or among too many others.
    pub(crate) fn queue_full(decision: &'a Decision, retry_after: Duration, caller: &'a Caller) -> Self {
        let retry_after = Some(retry_after);
        Self { cause: Cause::QueueFull(decision), retry_after, request_id: caller.request_id() }
    }

    pub(crate) fn unresolved(unresolved: &'a Unresolved, caller: &'a Caller) -> Self {
        let cause = Cause::Unresolved(unresolved);
        Self { cause, retry_after: None, request_id: caller.request_id() }
    }

    pub(crate) fn failed(error: &'a CheckError, caller: &'a Caller) -> Self {
        let retryable =
            matches!(error, CheckError::Store(error) if error.is_retryable() || error.is_outage());
        let retry_after = retryable.then_some(STORE_RETRY_AFTER);
        Self { cause: Cause::Failed(error), retry_after, request_id: caller.request_id() }
    }

    /// Returns why the request does not pass.
    pub fn cause(&self) -> Cause<'a> {
        self.cause
    }

    /// Returns the decision, if there is one.
    pub fn decision(&self) -> Option<&'a Decision> {
        match self.cause {
            Cause::Limited(decision) | Cause::QueueFull(decision) | Cause::FailedClosed(decision) => {
                Some(decision)
            }
            Cause::Unresolved(_) | Cause::Failed(_) => None,
        }
    }

    /// Returns the time after which a retry helps, if it is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        self.kind().status()
    }

    /// Returns the error code: `RATE_LIMITED`, `SERVICE_UNAVAILABLE`, `INVALID_INPUT`,
    /// `UNAUTHENTICATED` or `INTERNAL_ERROR`.
    pub fn code(&self) -> &'static str {
        self.kind().name()
    }

    fn kind(&self) -> Code {
        match self.cause {
            Cause::Limited(_) | Cause::QueueFull(_) => Code::RateLimited,
            Cause::FailedClosed(_) => Code::ServiceUnavailable,
            Cause::Unresolved(Unresolved::Missing { credential: true, .. }) => Code::Unauthenticated,
            Cause::Unresolved(Unresolved::NotProvided { .. }) => Code::InternalError,
            Cause::Unresolved(_) => Code::InvalidInput,
            Cause::Failed(error) if is_client_error(error) => Code::InvalidInput,
            Cause::Failed(_) if self.retry_after.is_some() => Code::ServiceUnavailable,
            Cause::Failed(_) => Code::InternalError,
        }
    }

    /// Returns one sentence for the client, without internal details.
    pub fn message(&self) -> String {
        let again = match self.retry_after {
            Some(wait) => format!("; retry in {} s", seconds_ceil(wait)),
            None => String::new(),
        };
        let name = self.decision().and_then(Decision::binding_limit).map_or("", |limit| &limit.name);
        match self.cause {
            Cause::Limited(decision) if is_never_allowed(decision) => {
                format!("the cost exceeds the capacity of rate limit `{name}`")
            }
            Cause::Limited(_) => format!("rate limit `{name}` exceeded{again}"),
            Cause::QueueFull(_) => format!("the queue of rate limit `{name}` is full{again}"),
            Cause::FailedClosed(_) => "store unavailable; this limit fails closed".to_owned(),
            // How to fix the server is for its log, not for clients.
            Cause::Unresolved(Unresolved::NotProvided { what, .. }) => format!("{what} is unknown"),
            Cause::Unresolved(unresolved) => unresolved.to_string(),
            Cause::Failed(error) if is_client_error(error) => error.to_string(),
            Cause::Failed(_) => "the request could not be checked".to_owned(),
        }
    }

    /// Returns the invalid field of the request, and why it is invalid.
    fn details(&self) -> Option<(String, String)> {
        match self.cause {
            Cause::Unresolved(Unresolved::Invalid { field, reason }) => Some((field.clone(), reason.clone())),
            Cause::Unresolved(Unresolved::Missing { what, .. }) => {
                Some((what.clone(), "is missing".to_owned()))
            }
            Cause::Failed(CheckError::InvalidIdentifier { dimension, reason }) => {
                Some((dimension.to_string(), reason.to_string()))
            }
            Cause::Failed(CheckError::InvalidEndpoint(reason)) => {
                Some(("path".to_owned(), reason.to_string()))
            }
            _ => None,
        }
    }
}

/// Whether the request itself is invalid.
pub(crate) fn is_client_error(error: &CheckError) -> bool {
    matches!(error, CheckError::InvalidIdentifier { .. } | CheckError::InvalidEndpoint(_))
}

fn is_never_allowed(decision: &Decision) -> bool {
    decision.binding().is_some_and(|answer| answer.reason == Some(Reason::CostExceedsLimit))
}

/// A custom response.
pub(crate) type Respond = Box<dyn Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync>;

/// Writes responses to requests that do not pass.
pub(crate) struct Responder {
    pub(crate) format: Format,
    pub(crate) own: Option<Respond>,
    pub(crate) families: Families,
}

impl Responder {
    /// Returns the complete response with all headers.
    pub(crate) fn respond<B: ResponseBody>(&self, denial: &Denial<'_>, caller: &Caller) -> Response<B> {
        let mut response = match (&caller.grpc, &self.own) {
            (Some(content_type), _) => grpc::respond(denial, content_type),
            (None, Some(own)) => own(denial),
            (None, None) => match self.format {
                Format::Json => answer(denial, "application/json", json::body(denial)),
                Format::Problem => answer(denial, "application/problem+json", problem::body(denial)),
            },
        };
        let headers = response.headers_mut();
        if let Some(decision) = denial.decision() {
            self.families.write(decision, headers);
        }
        if let Some(wait) = denial.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds_ceil(wait)));
        }
        if let Some(id) = &caller.request_id {
            headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
        }
        response.map(B::from_bytes)
    }
}

fn answer(denial: &Denial<'_>, content_type: &'static str, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = denial.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if denial.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Returns the id of a request, if it is safe to echo.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(REQUEST_ID).filter(|id| is_usable(id))
}

/// What is needed from a request for the response to it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The content type of a gRPC request.
    grpc: Option<HeaderValue>,
    pub(crate) request_id: Option<HeaderValue>,
}

impl Caller {
    pub(crate) fn of(request: &RequestHead<'_>) -> Self {
        let content_type = request.headers.get(CONTENT_TYPE);
        let grpc = content_type.filter(|value| value.as_bytes().starts_with(b"application/grpc"));
        Self { grpc: grpc.cloned(), request_id: request_id(request.headers).cloned() }
    }

    fn request_id(&self) -> &str {
        self.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default()
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Responder").field("format", &self.format).finish_non_exhaustive()
    }
}
