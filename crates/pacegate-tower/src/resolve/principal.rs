//! The user that the program has authenticated.

use std::fmt;
use std::marker::PhantomData;

use super::{Identifier, Identity, RequestHead, Resolve};
use crate::error::Unresolved;

const DIMENSION: &str = "user";

/// Counts by an extension of the request that the program's authentication has set, in the
/// dimension `user`. Created by [`principal`].
#[derive(Clone)]
pub struct Principal<T, F> {
    identify: F,
    extension: PhantomData<fn() -> T>,
}

/// Counts by the extension `T` of the request. The layer that authenticates must be outside of this
/// one. A request without the extension has no key.
///
/// ```
/// use pacegate_tower::resolve::principal;
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
/// let by_user = principal(|user: &User| user.id.into());
/// ```
pub fn principal<T, F>(identify: F) -> Principal<T, F>
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T) -> Identifier<'a> + Send + Sync + 'static,
{
    Principal { identify, extension: PhantomData }
}

impl<T, F> Resolve for Principal<T, F>
where
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a T) -> Identifier<'a> + Send + Sync + 'static,
{
    fn dimension(&self) -> &str {
        DIMENSION
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let principal = request.extensions.get::<T>();
        let principal = principal
            .ok_or_else(|| Unresolved::Missing { what: "an authenticated user".into(), credential: true })?;
        Ok(Identity::new(DIMENSION, (self.identify)(principal)))
    }
}

impl<T, F> fmt::Debug for Principal<T, F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Principal").finish_non_exhaustive()
    }
}
