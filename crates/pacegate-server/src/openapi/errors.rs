//! The error responses that operations share: one per status, in both formats.

use serde_json::{Value, json};

use super::json::Json;
use crate::respond::Rendering;

/// An error that many operations can return.
pub(super) struct SharedError {
    pub(super) status: &'static str,
    /// The name of its component.
    name: &'static str,
    code: &'static str,
    title: &'static str,
    description: &'static str,
    message: &'static str,
}

const fn shared(
    status: &'static str,
    name: &'static str,
    code: &'static str,
    title: &'static str,
    description: &'static str,
    message: &'static str,
) -> SharedError {
    SharedError { status, name, code, title, description, message }
}

/// Every status of an error. Operations may describe it more specifically.
pub(super) const ERRORS: [SharedError; 13] = [
    shared(
        "400",
        "InvalidInput",
        "INVALID_INPUT",
        "Bad Request",
        "The request is invalid; the error names the field.",
        "limit: must be between 1 and 1000000000, got 0",
    ),
    shared(
        "401",
        "Unauthenticated",
        "UNAUTHENTICATED",
        "Unauthorized",
        "The API key is missing or invalid.",
        "the API key is not valid",
    ),
    shared(
        "403",
        "Forbidden",
        "FORBIDDEN",
        "Forbidden",
        "The role of the key, or the address, does not permit this operation.",
        "this operation requires an API key with role admin",
    ),
    shared("404", "NotFound", "NOT_FOUND", "Not Found", "Not found.", "unknown path /api/v1/orders"),
    shared(
        "408",
        "RequestTimeout",
        "REQUEST_TIMEOUT",
        "Request Timeout",
        "The request timed out.",
        "the request timed out; send its body faster or retry",
    ),
    shared(
        "409",
        "Conflict",
        "CONFLICT",
        "Conflict",
        "The request conflicts with existing data.",
        "this rule is defined in the configuration file; change it there",
    ),
    shared(
        "412",
        "PreconditionFailed",
        "PRECONDITION_FAILED",
        "Precondition Failed",
        "The resource was changed since it was read.",
        "If-Match: not the current ETag; read the current state and retry",
    ),
    shared(
        "413",
        "PayloadTooLarge",
        "PAYLOAD_TOO_LARGE",
        "Payload Too Large",
        "The body is larger than 256 KiB.",
        "the body must be at most 262144 bytes",
    ),
    shared(
        "415",
        "UnsupportedMediaType",
        "UNSUPPORTED_MEDIA_TYPE",
        "Unsupported Media Type",
        "The content type of the body is not JSON.",
        "send JSON with the header Content-Type: application/json",
    ),
    shared(
        "422",
        "IdempotencyMismatch",
        "IDEMPOTENCY_MISMATCH",
        "Unprocessable Entity",
        "The idempotency key was used with a different request.",
        "idempotency_key: was used with a different request",
    ),
    shared(
        "429",
        "RateLimited",
        "RATE_LIMITED",
        "Too Many Requests",
        "The management rate limit of the key is exceeded, or too many invalid keys came from this address.",
        "management rate limit of this key exceeded",
    ),
    shared(
        "500",
        "InternalError",
        "INTERNAL_ERROR",
        "Internal Server Error",
        "An internal error occurred.",
        "an internal error occurred",
    ),
    shared(
        "503",
        "ServiceUnavailable",
        "SERVICE_UNAVAILABLE",
        "Service Unavailable",
        "A store or the catalog is unavailable.",
        "store unavailable; retry",
    ),
];

impl SharedError {
    /// Returns the name of the shared response among the components.
    pub(super) fn component(&self, rendering: Rendering) -> String {
        match rendering {
            Rendering::Envelope => self.name.to_owned(),
            Rendering::Flat => format!("Admin{}", self.name),
        }
    }

    /// Returns the shared response.
    pub(super) fn response(&self, rendering: Rendering) -> Json {
        let mut response = Json::from(json!({"description": self.description}));
        response.set("headers", self.headers());
        response.set("content", self.content(rendering));
        response
    }

    /// Returns the headers of responses with this error.
    pub(super) fn headers(&self) -> Value {
        let reference = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
        let mut headers = json!({"X-Request-Id": reference("X-Request-Id")});
        match self.status {
            "401" => headers["WWW-Authenticate"] = reference("WWW-Authenticate"),
            "429" | "503" => headers["Retry-After"] = reference("Retry-After"),
            _ => {}
        }
        headers
    }

    /// Returns the body, with its schema and an example.
    pub(super) fn content(&self, rendering: Rendering) -> Value {
        let (schema, example) = match rendering {
            Rendering::Envelope => ("Error", self.envelope()),
            Rendering::Flat => ("AdminError", self.flat()),
        };
        let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
        json!({"application/json": {"schema": schema, "example": example}})
    }

    fn envelope(&self) -> Value {
        let details = match self.message.split_once(": ") {
            Some((field, reason)) if !field.contains(' ') => json!({"field": field, "reason": reason}),
            _ => json!({}),
        };
        let request_id = "req_94916140000000000007";
        json!({"error": {"code": self.code, "message": self.message, "details": details, "request_id": request_id}})
    }

    fn flat(&self) -> Value {
        let status: u16 = self.status.parse().unwrap_or_default();
        let timestamp = "2026-11-16T04:54:28.105981Z";
        json!({"status": status, "error": self.title, "message": self.message, "timestamp": timestamp})
    }
}
