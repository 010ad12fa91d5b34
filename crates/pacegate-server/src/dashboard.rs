//! The dashboard: a page at `/` and its files, all of them inside the binary.
//!
//! The page is static. It loads all data from the REST API with the key of the user who signed in.
//! There is no build step and no external resource; the browser gets the files in `dashboard/`.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use axum::routing::{MethodRouter, get};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};
use pacegate_core::hexadecimal;
use sha2::{Digest, Sha256};

use crate::app::Shared;

/// Allows the page's own scripts, styles and service. Forbids parsing text as markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const ICON: &str = "image/svg+xml";

/// The path, content type and content of each file.
const FILES: [(&str, &str, &str); 18] = [
    ("/", HTML, include_str!("dashboard/index.html")),
    ("/dashboard/style.css", STYLE, include_str!("dashboard/style.css")),
    ("/dashboard/parts.css", STYLE, include_str!("dashboard/parts.css")),
    ("/dashboard/icon.svg", ICON, include_str!("dashboard/icon.svg")),
    ("/dashboard/main.js", SCRIPT, include_str!("dashboard/main.js")),
    ("/dashboard/api.js", SCRIPT, include_str!("dashboard/api.js")),
    ("/dashboard/ui.js", SCRIPT, include_str!("dashboard/ui.js")),
    ("/dashboard/words.js", SCRIPT, include_str!("dashboard/words.js")),
    ("/dashboard/stream.js", SCRIPT, include_str!("dashboard/stream.js")),
    ("/dashboard/chart.js", SCRIPT, include_str!("dashboard/chart.js")),
    ("/dashboard/live.js", SCRIPT, include_str!("dashboard/live.js")),
    ("/dashboard/rules.js", SCRIPT, include_str!("dashboard/rules.js")),
    ("/dashboard/rule_form.js", SCRIPT, include_str!("dashboard/rule_form.js")),
    ("/dashboard/lookup.js", SCRIPT, include_str!("dashboard/lookup.js")),
    ("/dashboard/log.js", SCRIPT, include_str!("dashboard/log.js")),
    ("/dashboard/try.js", SCRIPT, include_str!("dashboard/try.js")),
    ("/dashboard/audit.js", SCRIPT, include_str!("dashboard/audit.js")),
    ("/dashboard/keys.js", SCRIPT, include_str!("dashboard/keys.js")),
];

/// Returns the routes of all files.
pub(crate) fn routes() -> impl Iterator<Item = (&'static str, MethodRouter<Arc<Shared>>)> {
    FILES.into_iter().map(|(path, kind, text)| {
        let etag = etag(text);
        (path, get(move |headers: HeaderMap| async move { serve(kind, text, &etag, &headers) }))
    })
}

/// A hash of the content, so that a browser downloads it again only after an update of the service.
fn etag(text: &str) -> HeaderValue {
    let digits = hexadecimal(&Sha256::digest(text.as_bytes())[..16]);
    HeaderValue::try_from(format!("\"{digits}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

fn serve(kind: &'static str, text: &'static str, etag: &HeaderValue, request: &HeaderMap) -> Response {
    let known = request.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_known = known == "*"
        || known.split(',').any(|known| known.trim().trim_start_matches("W/").as_bytes() == etag.as_bytes());
    let body = if is_known { Body::empty() } else { Body::from(text) };
    let mut response = Response::new(body);
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(ETAG, etag.clone());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
