//! A denial over gRPC: HTTP 200 with the status in headers, which replace the trailers, and no
//! body.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::Denial;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Characters that a gRPC message must escape: everything but printable ASCII, and `%`.
const ESCAPED: AsciiSet = CONTROLS.add(b'%');

pub(super) fn respond(denial: &Denial<'_>, content_type: &HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type.clone());
    headers.insert(STATUS, HeaderValue::from(u16::from(denial.kind().grpc())));
    if let Ok(message) = HeaderValue::try_from(utf8_percent_encode(&denial.message(), &ESCAPED).to_string()) {
        headers.insert(MESSAGE, message);
    }
    response
}
