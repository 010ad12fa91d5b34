//! The answers that operations share: one for each status, in both renderings.

use serde_json::{Value, json};

use super::json::Json;
use crate::respond::Rendering;

/// An error that many operations can answer with.
pub(super) struct SharedError {
    pub(super) status: &'static str,
    /// What its component is called.
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

/// Every status that errors have. Those that only some operations have are described there.
pub(super) const ERRORS: [SharedError; 13] = [
    shared(
        "400",
        "InvalidInput",
        "INVALID_INPUT",
        "Bad Request",
        "Something in the request is wrong; the field is named.",
        "limit: must be between 1 and 1000000000",
    ),
    shared(
        "401",
        "Unauthenticated",
        "UNAUTHENTICATED",
        "Unauthorized",
        "No key, or one that is not valid.",
        "the API key is not valid",
    ),
    shared(
        "403",
        "Forbidden",
        "FORBIDDEN",
        "Forbidden",
        "The key's role, or the address, may not do this.",
        "this operation needs a key of the role admin",
    ),
    shared("404", "NotFound", "NOT_FOUND", "Not Found", "It is not there.", "it is not there"),
    shared(
        "408",
        "RequestTimeout",
        "REQUEST_TIMEOUT",
        "Request Timeout",
        "The request took too long.",
        "the request took too long; send its body faster, or try again",
    ),
    shared(
        "409",
        "Conflict",
        "CONFLICT",
        "Conflict",
        "Something else is in the way.",
        "there is one already",
    ),
    shared(
        "412",
        "PreconditionFailed",
        "PRECONDITION_FAILED",
        "Precondition Failed",
        "It was changed since it was read.",
        "If-Match: is not the current ETag; read the current state and try again",
    ),
    shared(
        "413",
        "PayloadTooLarge",
        "PAYLOAD_TOO_LARGE",
        "Payload Too Large",
        "The body is larger than 256 KiB.",
        "the body must be at most 262144 bytes long",
    ),
    shared(
        "415",
        "UnsupportedMediaType",
        "UNSUPPORTED_MEDIA_TYPE",
        "Unsupported Media Type",
        "The body is not said to be JSON.",
        "send JSON with the header Content-Type: application/json",
    ),
    shared(
        "422",
        "IdempotencyMismatch",
        "IDEMPOTENCY_MISMATCH",
        "Unprocessable Entity",
        "The idempotency key came with another request.",
        "idempotency_key: was used with another request",
    ),
    shared(
        "429",
        "RateLimited",
        "RATE_LIMITED",
        "Too Many Requests",
        "The key has used up its management requests, or too many wrong keys were tried from this address.",
        "this key has used up its management requests",
    ),
    shared(
        "500",
        "InternalError",
        "INTERNAL_ERROR",
        "Internal Server Error",
        "Something is wrong inside.",
        "an internal error occurred",
    ),
    shared(
        "503",
        "ServiceUnavailable",
        "SERVICE_UNAVAILABLE",
        "Service Unavailable",
        "A store or the catalog does not answer.",
        "a store or the catalog does not answer; try again",
    ),
];

impl SharedError {
    /// What the shared answer is called among the components.
    pub(super) fn component(&self, rendering: Rendering) -> String {
        match rendering {
            Rendering::Envelope => self.name.to_owned(),
            Rendering::Flat => format!("Admin{}", self.name),
        }
    }

    /// The shared answer.
    pub(super) fn response(&self, rendering: Rendering) -> Json {
        let mut response = Json::from(json!({"description": self.description}));
        response.set("headers", self.headers());
        response.set("content", self.content(rendering));
        response
    }

    /// The headers that this error's answers have.
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

    /// The body, with its schema and an example.
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
