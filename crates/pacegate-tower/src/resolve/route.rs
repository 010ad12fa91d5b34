//! The route of a request.

use std::borrow::Cow;

use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::Unresolved;

/// The dimension of [`route`], which comes last in a composition.
pub(super) const DIMENSION: &str = "route";

/// Counts by route, in the dimension `route`. Created by [`route`].
#[derive(Clone, Copy, Debug)]
pub struct Route;

/// Counts by the matched route (`/users/{id}`, with the cargo feature `axum`), or else by the
/// normalised path. It is mostly used as part of a key: `principal(…).and(route())`.
pub fn route() -> Route {
    Route
}

impl Resolve for Route {
    fn dimension(&self) -> &str {
        DIMENSION
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        #[cfg(feature = "axum")]
        if let Some(matched) = request.extensions.get::<axum::extract::MatchedPath>() {
            return Ok(Identity::new(DIMENSION, matched.as_str()));
        }
        let path: Cow<'a, str> = request
            .paths
            .normalise(request.path())
            .map_err(|error| Unresolved::Invalid { field: "path".into(), reason: error.to_string() })?;
        Ok(Identity::new(DIMENSION, Identifier::from(path)))
    }
}
