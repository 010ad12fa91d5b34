//! From a request to whom it is counted for: one file for each way to find out.

pub(crate) mod address;
pub(crate) mod composition;
mod forwarded;
pub(crate) mod function;
pub(crate) mod header;
mod identifier;
pub(crate) mod other;
pub(crate) mod principal;
pub(crate) mod route;

use http::{Extensions, HeaderMap, Method, Request, Uri};
use pacegate::{PathOptions, identity};

use crate::error::{InvalidLayer, Unresolved};

pub use address::{Address, ForwardedHeader, address};
pub use composition::Composition;
pub use function::{Function, resolver};
pub use header::{Header, api_key, header};
pub use identifier::{Identifier, Identity};
pub use other::{InDimension, Or};
pub use principal::{Principal, principal};
pub use route::{Route, route};

/// What resolvers see of a request: everything but its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// Where it goes.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What servers, routers and middleware before this one know about it.
    pub extensions: &'a Extensions,
    /// By how many bits the limiter counts IPv6 addresses.
    pub ipv6_prefix: u8,
    /// How the limiter compares the spellings of a path.
    pub paths: PathOptions,
}

impl<'a> RequestHead<'a> {
    /// The head of a request, for a limiter that counts IPv6 addresses by 64 bits and compares paths as usual.
    #[inline]
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            ipv6_prefix: identity::IPV6_PREFIX,
            paths: PathOptions::default(),
        }
    }

    /// The path as the client sent it, also inside a nested axum router, which cuts its own prefix off the URI.
    pub fn path(&self) -> &'a str {
        #[cfg(feature = "axum")]
        let uri =
            self.extensions.get::<axum::extract::OriginalUri>().map_or(self.uri, |original| &original.0);
        #[cfg(not(feature = "axum"))]
        let uri = self.uri;
        // Only a CONNECT request has none.
        if uri.path().is_empty() { "/" } else { uri.path() }
    }
}

/// Finds whom a request is counted for.
///
/// Implementers owe: the same request gives the same identity, nothing waits, and no two callers share an identity that are to be counted
/// apart. What a client can choose freely is not an identity: whoever sends a new value each time is never limited.
pub trait Resolve: Send + Sync + 'static {
    /// What is counted: `ip`, `user`, `apikey` or a word of one's own. Rules are matched by it.
    fn dimension(&self) -> &str;

    /// Whom this request is counted for.
    ///
    /// # Errors
    /// [`Unresolved`] when the request does not say, or says something that nobody can be counted by.
    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved>;

    /// Says what is wrong with the resolver itself; a layer is not built with such a one.
    ///
    /// # Errors
    /// [`InvalidLayer`].
    fn validate(&self) -> Result<(), InvalidLayer> {
        Ok(())
    }

    /// Makes one key out of what both find, in dimension `key`: `user:123|route:/v1/pay`. See [`Composition`].
    fn and(self, other: impl Resolve) -> Composition
    where
        Self: Sized,
    {
        Composition::new(self).and(other)
    }

    /// Asks `other` where this one finds nothing, such as the address of whoever is not signed in. What is there but cannot be used stays an error.
    fn or<R: Resolve>(self, other: R) -> Or<Self, R>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }

    /// Counts in another dimension.
    fn in_dimension(self, dimension: &str) -> InDimension<Self>
    where
        Self: Sized,
    {
        InDimension { resolver: self, dimension: spelled(dimension) }
    }
}

/// The one spelling of a dimension. What is not one is refused when the layer is built.
fn spelled(dimension: &str) -> Box<str> {
    identity::dimension(dimension).unwrap_or(dimension).into()
}

/// Refuses resolvers that count in the same dimension, or in none that there can be.
pub(crate) fn check_dimensions<'a>(
    resolvers: impl Iterator<Item = &'a dyn Resolve>,
) -> Result<(), InvalidLayer> {
    let mut known: Vec<&str> = Vec::new();
    for resolver in resolvers {
        resolver.validate()?;
        let given = resolver.dimension();
        let dimension = identity::dimension(given)
            .map_err(|reason| InvalidLayer::InvalidDimension { dimension: given.into(), reason })?;
        if known.contains(&dimension) {
            return Err(InvalidLayer::DuplicateDimension { dimension: dimension.into() });
        }
        known.push(dimension);
    }
    Ok(())
}
