//! Errors as clients see them: the mapping from a code to its HTTP status, name and gRPC status,
//! and the error body.

use http::StatusCode;
use serde::Serialize;

/// The codes of the error model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ErrorCode, rename_all = "SCREAMING_SNAKE_CASE"))]
#[allow(missing_docs, reason = "the table below defines each code")]
pub enum Code {
    InvalidInput,
    InvalidLimit,
    InvalidStrategy,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    Conflict,
    PreconditionFailed,
    IdempotencyMismatch,
    RateLimited,
    InternalError,
    ServiceUnavailable,
    Overloaded,
    BadGateway,
    GatewayTimeout,
}

impl Code {
    const fn row(self) -> (u16, &'static str, u8) {
        match self {
            Self::InvalidInput => (400, "INVALID_INPUT", 3),
            Self::InvalidLimit => (400, "INVALID_LIMIT", 3),
            Self::InvalidStrategy => (400, "INVALID_STRATEGY", 3),
            Self::Unauthenticated => (401, "UNAUTHENTICATED", 16),
            Self::Forbidden => (403, "FORBIDDEN", 7),
            Self::NotFound => (404, "NOT_FOUND", 5),
            Self::MethodNotAllowed => (405, "METHOD_NOT_ALLOWED", 12),
            Self::RequestTimeout => (408, "REQUEST_TIMEOUT", 4),
            Self::PayloadTooLarge => (413, "PAYLOAD_TOO_LARGE", 11),
            Self::UnsupportedMediaType => (415, "UNSUPPORTED_MEDIA_TYPE", 3),
            Self::Conflict => (409, "CONFLICT", 6),
            Self::PreconditionFailed => (412, "PRECONDITION_FAILED", 9),
            Self::IdempotencyMismatch => (422, "IDEMPOTENCY_MISMATCH", 9),
            Self::RateLimited => (429, "RATE_LIMITED", 8),
            Self::InternalError => (500, "INTERNAL_ERROR", 13),
            Self::ServiceUnavailable => (503, "SERVICE_UNAVAILABLE", 14),
            Self::Overloaded => (503, "OVERLOADED", 14),
            Self::BadGateway => (502, "BAD_GATEWAY", 14),
            Self::GatewayTimeout => (504, "GATEWAY_TIMEOUT", 4),
        }
    }

    /// Returns the HTTP status.
    pub fn status(self) -> StatusCode {
        // A test ensures that every row has a valid status.
        StatusCode::from_u16(self.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the name in error bodies.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the gRPC status code.
    pub const fn grpc(self) -> u8 {
        self.row().2
    }
}

/// The body of every error.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Error))]
pub struct Envelope<'a> {
    /// The error.
    pub error: ErrorBody<'a>,
}

/// The error.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody<'a> {
    #[cfg_attr(feature = "openapi", schema(value_type = Code))]
    #[allow(missing_docs, reason = "a description would be merged with the schema of the code")]
    pub code: &'static str,
    #[allow(missing_docs, reason = "as above")]
    pub message: &'a str,
    #[allow(missing_docs, reason = "as above")]
    pub details: Details<'a>,
    /// Same as the header `X-Request-Id`.
    pub request_id: &'a str,
}

/// The invalid field and the reason; empty if the error concerns no field.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ErrorDetails))]
pub struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    #[allow(missing_docs, reason = "documented on the struct")]
    pub field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    #[allow(missing_docs, reason = "documented on the struct")]
    pub reason: Option<&'a str>,
}

impl<'a> Envelope<'a> {
    /// Creates the body of an error for the request with this id.
    pub fn new(code: Code, message: &'a str, details: Details<'a>, request_id: &'a str) -> Self {
        Self { error: ErrorBody { code: code.name(), message, details, request_id } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that clients rely on, in the order of the codes, so that a new code fails the
    /// test.
    const TABLE: [(Code, u16, &str, u8); 19] = [
        (Code::InvalidInput, 400, "INVALID_INPUT", 3),
        (Code::InvalidLimit, 400, "INVALID_LIMIT", 3),
        (Code::InvalidStrategy, 400, "INVALID_STRATEGY", 3),
        (Code::Unauthenticated, 401, "UNAUTHENTICATED", 16),
        (Code::Forbidden, 403, "FORBIDDEN", 7),
        (Code::NotFound, 404, "NOT_FOUND", 5),
        (Code::MethodNotAllowed, 405, "METHOD_NOT_ALLOWED", 12),
        (Code::RequestTimeout, 408, "REQUEST_TIMEOUT", 4),
        (Code::PayloadTooLarge, 413, "PAYLOAD_TOO_LARGE", 11),
        (Code::UnsupportedMediaType, 415, "UNSUPPORTED_MEDIA_TYPE", 3),
        (Code::Conflict, 409, "CONFLICT", 6),
        (Code::PreconditionFailed, 412, "PRECONDITION_FAILED", 9),
        (Code::IdempotencyMismatch, 422, "IDEMPOTENCY_MISMATCH", 9),
        (Code::RateLimited, 429, "RATE_LIMITED", 8),
        (Code::InternalError, 500, "INTERNAL_ERROR", 13),
        (Code::ServiceUnavailable, 503, "SERVICE_UNAVAILABLE", 14),
        (Code::Overloaded, 503, "OVERLOADED", 14),
        (Code::BadGateway, 502, "BAD_GATEWAY", 14),
        (Code::GatewayTimeout, 504, "GATEWAY_TIMEOUT", 4),
    ];

    #[test]
    fn codes_have_the_statuses_that_clients_rely_on() {
        for (index, (code, status, name, grpc)) in TABLE.into_iter().enumerate() {
            assert_eq!(code as usize, index);
            assert_eq!((code.status().as_u16(), code.name(), code.grpc()), (status, name, grpc));
        }
        assert_eq!(TABLE.len(), Code::GatewayTimeout as usize + 1);
    }
}
