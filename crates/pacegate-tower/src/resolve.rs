//! Resolvers: find the identity that a request is charged to.

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

/// The parts of a request that resolvers can use: everything but the body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// The URI.
    pub uri: &'a Uri,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The extensions that servers, routers and outer layers have set.
    pub extensions: &'a Extensions,
    /// Number of leading bits by which the limiter counts IPv6 addresses.
    pub ipv6_prefix: u8,
    /// How the limiter normalises and compares paths.
    pub paths: PathOptions,
}

impl<'a> RequestHead<'a> {
    /// Returns the head of a request, for a limiter with the default IPv6 prefix and path options.
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

    /// Returns the path as the client sent it, also inside a nested axum router, which strips its
    /// prefix from the URI.
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

/// Finds the identity that a request is charged to.
///
/// An implementation must return the same identity for the same request, must not block, and must
/// return different identities for callers that are limited separately. Do not use values that a
/// client can choose freely: a client that sends a new value with each request would never be
/// limited.
pub trait Resolve: Send + Sync + 'static {
    /// Returns the dimension: `ip`, `user`, `apikey` or a custom word. Rules refer to it.
    fn dimension(&self) -> &str;

    /// Returns the identity of a request.
    ///
    /// # Errors
    /// [`Unresolved`] if the request has no identity, or an invalid one.
    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved>;

    /// Validates the resolver. A layer with an invalid resolver is not built.
    ///
    /// # Errors
    /// [`InvalidLayer`] if the resolver is not valid.
    fn validate(&self) -> Result<(), InvalidLayer> {
        Ok(())
    }

    /// Combines both results into one key, in the dimension `key`: `user:123|route:/v1/pay`. See
    /// [`Composition`].
    fn and(self, other: impl Resolve) -> Composition
    where
        Self: Sized,
    {
        Composition::new(self).and(other)
    }

    /// Uses `other` if this resolver finds nothing, for example the address of a user who is not
    /// signed in. An invalid value is still an error.
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
        InDimension { resolver: self, dimension: canonical_dimension(dimension) }
    }
}

/// The canonical form of a dimension. Invalid dimensions are rejected when the layer is built.
fn canonical_dimension(dimension: &str) -> Box<str> {
    identity::dimension(dimension).unwrap_or(dimension).into()
}

/// Rejects resolvers with the same dimension, or with an invalid one.
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
