//! Where a request goes, as the router has it.

use std::borrow::Cow;

use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::Unresolved;

/// The dimension of [`route`], which stands last in a composition.
pub(super) const DIMENSION: &str = "route";

/// Counts by route, in dimension `route`. Made by [`route`].
#[derive(Clone, Copy, Debug)]
pub struct Route;

/// Counts by the route that matched (`/users/{id}`), which axum says (cargo feature `axum`); where no route is known, by the path, normalised so that
/// all spellings of a path are one. It is a part of a key more often than one of its own: `principal(…).and(route())`.
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
