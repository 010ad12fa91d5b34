//! A refusal as gRPC has it: HTTP 200 with the status in headers that stand for trailers, and no body.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};

use super::Denial;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

pub(super) fn respond(denial: &Denial<'_>, content_type: &HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert(STATUS, HeaderValue::from(u16::from(denial.kind().grpc())));
    if let Ok(message) = HeaderValue::try_from(escape(&denial.message())) {
        headers.insert(MESSAGE, message);
    }
    response
}

/// Percent-encodes what gRPC has no room for in a message: everything but printable ASCII, and `%`.
fn escape(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
