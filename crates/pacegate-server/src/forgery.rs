//! Requests that a page of another site can have a browser send. Browsers show a client certificate
//! with them unasked, as they do with cookies; an API key they do not know.

use hyper::{Method, Request};

use crate::auth::presented;
use crate::peer::{Identity, Peer};
use crate::respond::{ApiError, Code};
use crate::rest::{has_content_type, says_json};

/// Whether a change is authenticated by a certificate alone, and has a form that browsers send to other
/// sites without asking the service first (a preflight, which it never allows): POST with the content
/// type of a form, or none.
pub(crate) fn is_possible<B>(request: &Request<B>, peer: &Peer) -> bool {
    let (method, headers) = (request.method(), request.headers());
    let by_certificate = matches!(peer.identity.as_deref(), Some(Identity { role: Some(_), .. }));
    let is_form = match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => !says_json(headers),
        // Browsers ask first for other methods; one that a form was made for is refused all the same.
        _ => has_content_type(headers) && !says_json(headers),
    };
    by_certificate && is_form && presented(headers).is_none()
}

/// The answer to such a request.
pub(crate) fn refusal() -> ApiError {
    ApiError::new(
        Code::UnsupportedMediaType,
        "changes authenticated by a client certificate need the header Content-Type: application/json",
    )
}
