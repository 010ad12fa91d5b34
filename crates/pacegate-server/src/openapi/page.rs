//! `GET /docs`: a self-contained page that shows the OpenAPI document.

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use sha2::{Digest, Sha256};

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page and its content security policy: its own script and style, and requests to this
/// service.
static PAGE: LazyLock<(Bytes, HeaderValue)> = LazyLock::new(|| {
    let page = FRAME.replace("{{style}}", STYLE).replace("{{script}}", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        base64(&Sha256::digest(SCRIPT)),
        base64(&Sha256::digest(STYLE)),
    );
    let strictest = HeaderValue::from_static("default-src 'none'");
    (Bytes::from(page), HeaderValue::try_from(policy).unwrap_or(strictest))
});

/// Get this documentation as an HTML page
///
/// It loads nothing from other hosts, and works offline.
#[utoipa::path(
    get,
    path = "/docs",
    operation_id = "docs",
    tag = "Service",
    security(()),
    responses((status = 200, description = "The page.", body = String, content_type = "text/html")),
)]
pub(crate) async fn page() -> Response {
    let (page, policy) = &*PAGE;
    let mut response = Response::new(Body::from(page.clone()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Encodes bytes as base64, for the hash of a script.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(group);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_matches_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
