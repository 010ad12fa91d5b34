//! Resolvers that wrap others: a fallback, and another dimension.

use super::{Identity, RequestHead, Resolve};
use crate::error::{InvalidLayer, Unresolved};

/// Uses a second resolver if the first finds nothing. See [`Resolve::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

impl<A: Resolve, B: Resolve> Resolve for Or<A, B> {
    fn dimension(&self) -> &str {
        self.first.dimension()
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        match self.first.resolve(request) {
            Err(unresolved) if unresolved.is_missing() => self.second.resolve(request),
            other => other,
        }
    }

    fn validate(&self) -> Result<(), InvalidLayer> {
        self.first.validate()?;
        self.second.validate()
    }
}

/// Counts the result of a resolver in another dimension. See [`Resolve::in_dimension`].
#[derive(Clone, Debug)]
pub struct InDimension<R> {
    pub(super) resolver: R,
    pub(super) dimension: Box<str>,
}

impl<R: Resolve> Resolve for InDimension<R> {
    fn dimension(&self) -> &str {
        &self.dimension
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        Ok(self.resolver.resolve(request)?.in_dimension(&self.dimension))
    }

    fn validate(&self) -> Result<(), InvalidLayer> {
        self.resolver.validate()
    }
}
