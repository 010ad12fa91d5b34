//! Protection against cross-site request forgery. A page of another site can make a browser send a
//! request, and the browser adds a client certificate, as it adds cookies. It cannot add an API
//! key.

use hyper::{Method, Request};

use crate::auth::presented;
use crate::peer::{Identity, Peer};
use crate::respond::{ApiError, Code};
use crate::rest::{has_content_type, is_json};

/// Returns whether a change is authenticated by a certificate alone and is a request that browsers
/// send to other sites without a preflight (which the service never allows): POST with the content
/// type of a form, or none.
pub(crate) fn is_possible<B>(request: &Request<B>, peer: &Peer) -> bool {
    let (method, headers) = (request.method(), request.headers());
    let by_certificate = matches!(peer.identity.as_deref(), Some(Identity { role: Some(_), .. }));
    let is_form = match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => false,
        Method::POST => !is_json(headers),
        // Browsers send a preflight for other methods, but a form's content type is rejected
        // anyway.
        _ => has_content_type(headers) && !is_json(headers),
    };
    by_certificate && is_form && presented(headers).is_none()
}

/// The error for such a request.
pub(crate) fn rejection() -> ApiError {
    ApiError::new(
        Code::UnsupportedMediaType,
        "changes authenticated by a client certificate require the header Content-Type: application/json",
    )
}
