//! A custom function.

use std::fmt;

use super::{Identifier, Identity, RequestHead, Resolve, canonical_dimension};
use crate::error::Unresolved;

/// Counts by the result of a function. Created by [`resolver`].
#[derive(Clone)]
pub struct Function<F> {
    dimension: Box<str>,
    find: F,
}

/// Counts in `dimension` by the result of `find`; `None` means that the request has no key.
///
/// ```
/// use pacegate_tower::resolve::resolver;
///
/// let by_host = resolver("host", |request| request.uri.host().map(Into::into));
/// ```
pub fn resolver<F>(dimension: &str, find: F) -> Function<F>
where
    F: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>> + Send + Sync + 'static,
{
    Function { dimension: canonical_dimension(dimension), find }
}

impl<F> Resolve for Function<F>
where
    F: for<'a> Fn(&RequestHead<'a>) -> Option<Identifier<'a>> + Send + Sync + 'static,
{
    fn dimension(&self) -> &str {
        &self.dimension
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let found = (self.find)(request);
        let missing = || Unresolved::Missing { what: format!("`{}`", self.dimension), credential: false };
        Ok(Identity::new(&self.dimension, found.ok_or_else(missing)?))
    }
}

impl<F> fmt::Debug for Function<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Function").field("dimension", &self.dimension).finish_non_exhaustive()
    }
}
