//! Errors as clients see them: the one mapping from an error to its HTTP status, code and gRPC
//! status.

use axum::response::{IntoResponse, Response};

use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use pacegate::{CheckError, InvalidLimit};
use pacegate_http::error::Details;
pub(crate) use pacegate_http::error::{Code, Envelope};
use serde::Serialize;
use tonic::metadata::MetadataValue;
use tonic::{Code as Grpc, Status};
use utoipa::ToSchema;

use crate::ad_hoc::{InvalidAdHoc, burst_reason, window_reason};
use crate::clock::{now, rfc3339};
use crate::openapi::vocabulary::Time;
use pacegate_http::server::PerSecond;

/// The error of a request, without internal details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The field and the reason.
    pub(crate) details: Option<(String, String)>,
    /// Seconds after which a retry can succeed, if known.
    pub(crate) retry_after: Option<u64>,
    /// Internal details for operators; never sent to clients.
    cause: Option<String>,
}

/// Maximum number of logged errors per second.
static LINES: PerSecond = PerSecond::new(10);

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None, retry_after: None, cause: None }
    }

    /// An error in a field of the request.
    pub(crate) fn field(code: Code, field: &str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let message = format!("{field}: {reason}");
        Self { code, message, details: Some((field.to_owned(), reason)), retry_after: None, cause: None }
    }

    /// Sets the time after which a retry can succeed.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Sets the internal details for operators.
    fn because(mut self, cause: String) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Logs the cause under the request's id, at a bounded rate, and removes it from the error.
    pub(crate) fn logged(mut self, request_id: &str) -> Self {
        if let Some(error) = self.cause.take()
            && LINES.admit()
        {
            let request_id = Some(request_id).filter(|id| !id.is_empty());
            match self.code {
                Code::InternalError => tracing::error!(request_id, error, "check failed"),
                _ => tracing::warn!(request_id, error, "store unavailable for a request"),
            }
        }
        self
    }

    /// An invalid-input error in a field.
    pub(crate) fn input(field: &str, reason: impl Into<String>) -> Self {
        Self::field(Code::InvalidInput, field, reason)
    }

    /// Returns the body of the error, with the request's id.
    pub(crate) fn envelope<'a>(&'a self, request_id: &'a str) -> Envelope<'a> {
        let details = match &self.details {
            Some((field, reason)) => Details { field: Some(field), reason: Some(reason) },
            None => Details::default(),
        };
        Envelope::new(self.code, &self.message, details, request_id)
    }

    /// Renders the response. Called at the edge, where the request's id is known.
    pub(crate) fn render(&self, request_id: &str, rendering: Rendering) -> Response {
        let body = match rendering {
            Rendering::Envelope => serde_json::to_vec(&self.envelope(request_id)),
            Rendering::Flat => serde_json::to_vec(&Flat {
                status: self.code.status().as_u16(),
                error: self.code.status().canonical_reason().unwrap_or_default(),
                message: &self.message,
                timestamp: rfc3339(now()),
            }),
        };
        let body = body.unwrap_or_default();
        let mut response = Response::new(body.into());
        *response.status_mut() = self.code.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::Unauthenticated {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The error as a gRPC status.
impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let error = error.logged("");
        let mut status = Self::new(Grpc::from_i32(error.code.grpc().into()), error.message);
        if let Some(seconds) = error.retry_after {
            status.metadata_mut().insert("retry-after", MetadataValue::from(seconds));
        }
        status
    }
}

/// The format of errors, which depends on the path of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rendering {
    /// The error envelope.
    Envelope,
    /// ThrottleX's format, under `/admin`.
    Flat,
}

impl Rendering {
    pub(crate) fn of(path: &str) -> Self {
        if path == "/admin" || path.starts_with("/admin/") { Self::Flat } else { Self::Envelope }
    }
}

/// The body of every error under `/admin`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminError)]
pub(crate) struct Flat<'a> {
    /// The HTTP status.
    status: u16,
    /// The reason phrase of that status.
    error: &'static str,
    message: &'a str,
    #[schema(value_type = Time)]
    timestamp: String,
}

/// Passes through the router as an extension of an empty response, because only the edge knows the
/// request's id.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = self.code.status();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<CheckError> for ApiError {
    fn from(error: CheckError) -> Self {
        let message = error.to_string();
        match error {
            CheckError::InvalidIdentifier { reason, .. } => Self::input("user_id", reason.reason()),
            CheckError::InvalidDimension { reason, .. } => Self::input("dimension", reason.reason()),
            CheckError::DuplicateDimension { .. } => Self::input("keys", message),
            CheckError::NoIdentity => Self::input("user_id", message),
            CheckError::InvalidTier(reason) => Self::input("tier", reason.reason()),
            CheckError::InvalidUnit { reason, .. } => Self::input("costs", reason.reason()),
            CheckError::InvalidEndpoint(reason) => Self::input("endpoint", reason.to_string()),
            CheckError::InvalidIdempotencyKey(invalid) => Self::input(invalid.field(), invalid.reason()),
            CheckError::UnknownPlan { .. } | CheckError::DuplicatePlan { .. } => {
                Self::input("plans", message)
            }
            CheckError::IdempotencyMismatch => {
                Self::field(Code::IdempotencyMismatch, "idempotency_key", message)
            }
            // Store errors name servers, so they are logged and not sent to clients.
            CheckError::Store(error) if error.is_outage() => {
                let message = "store unavailable; retry";
                Self::new(Code::ServiceUnavailable, message).because(error.to_string())
            }
            CheckError::Store(error) if error.is_retryable() => Self::new(Code::ServiceUnavailable, message),
            error => Self::new(Code::InternalError, "an internal error occurred").because(error.to_string()),
        }
    }
}

/// Returns the error for an invalid ad-hoc limit.
pub(crate) fn invalid_ad_hoc(error: InvalidAdHoc) -> ApiError {
    match error {
        InvalidAdHoc::Limit(error) => invalid_limit(error),
        InvalidAdHoc::Window(max) => {
            ApiError::field(Code::InvalidLimit, "window_seconds", window_reason(max))
        }
        InvalidAdHoc::Burst(max) => ApiError::field(Code::InvalidLimit, "burst_capacity", burst_reason(max)),
    }
}

/// Returns the error for an invalid limit in a request, whose fields have other names than those in
/// configuration files.
pub(crate) fn invalid_limit(error: InvalidLimit) -> ApiError {
    let field = match error.field() {
        "burst" => "burst_capacity",
        "window" => "window_seconds",
        other => other,
    };
    ApiError::field(Code::InvalidLimit, field, error.reason())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_the_same_over_http_and_grpc() {
        let error = ApiError::new(Code::RateLimited, "what happened").retry_after(7);
        let response = error.render("req_1", Rendering::Envelope);
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (429, &"7".parse().unwrap())
        );
        let over_grpc = Status::from(error);
        assert_eq!((over_grpc.code(), over_grpc.message()), (Grpc::ResourceExhausted, "what happened"));
        assert_eq!(over_grpc.metadata().get("retry-after").unwrap(), "7");
    }

    #[test]
    fn message_names_the_invalid_field() {
        let status = Status::from(ApiError::input("cost", "must be a number"));
        assert_eq!((status.code(), status.message()), (Grpc::InvalidArgument, "cost: must be a number"));
        assert!(status.metadata().get("retry-after").is_none());
    }
}
