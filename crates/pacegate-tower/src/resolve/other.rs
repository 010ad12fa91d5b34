//! Resolvers made of others: a second choice, and another dimension.

use super::{Identity, RequestHead, Resolve};
use crate::error::{InvalidLayer, Unresolved};

/// Asks a second resolver where the first finds nothing; see [`Resolve::or`].
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

/// Counts what a resolver finds in another dimension; see [`Resolve::in_dimension`].
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
