//! The path of a request: the counted path is the one that is forwarded.

use std::borrow::Cow;

use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use pacegate::{PathOptions, path::InvalidEndpoint};

use pacegate_http::error::{Code, Details};

use super::body::ProxyBody;
use super::forward::respond;

/// Why a path cannot be counted.
#[derive(Debug)]
pub(super) struct InvalidPath(InvalidEndpoint);

impl InvalidPath {
    pub(super) fn respond(&self, request_id: &str) -> Response<ProxyBody> {
        let reason = self.0.to_string();
        let details = Details { field: Some("path"), reason: Some(&reason) };
        respond(Code::InvalidInput, &format!("path: {reason}"), details, request_id)
    }
}

/// Replaces the path of a request by the counted path.
pub(super) fn to_counted<B>(request: &mut Request<B>, paths: PathOptions) -> Result<(), InvalidPath> {
    let uri = request.uri();
    // Neither `OPTIONS *` nor CONNECT has a path.
    if !uri.path().starts_with('/') {
        return Ok(());
    }
    let path = match paths.forwarded(uri.path()).map_err(InvalidPath)? {
        Cow::Borrowed(_) => return Ok(()),
        Cow::Owned(path) => path,
    };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = uri.clone().into_parts();
    // Both parts were valid before, and normalisation keeps them valid.
    let unusable = |_| InvalidPath(InvalidEndpoint::ControlCharacter);
    parts.path_and_query = Some(PathAndQuery::try_from(target).map_err(unusable)?);
    *request.uri_mut() =
        Uri::from_parts(parts).map_err(|_| InvalidPath(InvalidEndpoint::ControlCharacter))?;
    Ok(())
}
