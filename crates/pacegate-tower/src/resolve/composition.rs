//! One key from several parts, in a canonical form.

use std::fmt;

use compact_str::CompactString;
use pacegate::identity;

use super::route::DIMENSION as ROUTE;
use super::{Identifier, Identity, RequestHead, Resolve, check_dimensions};
use crate::error::{InvalidLayer, Unresolved};

const DIMENSION: &str = "key";

/// Combines the results of several resolvers into one key, in the dimension `key`:
/// `user:123|route:/v1/pay`. Created by [`Resolve::and`].
///
/// Parts are written as `dimension:identifier` and sorted by dimension, with the route last. The
/// order in which a program adds them does not matter. `%` and `|` inside an identifier are escaped
/// as `%25` and `%7C`, so an identifier cannot imitate another key. If one part is missing, the
/// whole key is missing.
///
/// ```
/// use pacegate_tower::resolve::{Resolve, api_key, route};
///
/// let by_key_and_route = route().and(api_key());
/// ```
pub struct Composition {
    parts: Vec<Box<dyn Resolve>>,
}

impl Composition {
    pub(super) fn new(part: impl Resolve) -> Self {
        Self { parts: vec![Box::new(part)] }
    }

    /// Adds a part.
    #[must_use]
    pub fn and(mut self, part: impl Resolve) -> Self {
        self.parts.push(Box::new(part));
        self.parts.sort_by(|a, b| rank(a.dimension()).cmp(&rank(b.dimension())));
        self
    }
}

/// The sort key of a part.
fn rank(dimension: &str) -> (bool, &str) {
    (dimension == ROUTE, dimension)
}

/// Appends one part.
fn write_part(key: &mut CompactString, dimension: &str, identifier: &str) {
    if !key.is_empty() {
        key.push('|');
    }
    key.push_str(dimension);
    key.push(':');
    let mut rest = identifier;
    while let Some(index) = rest.find(['%', '|']) {
        let (before, after) = rest.split_at(index);
        key.push_str(before);
        key.push_str(if after.starts_with('%') { "%25" } else { "%7C" });
        rest = &after[1..];
    }
    key.push_str(rest);
}

impl Resolve for Composition {
    fn dimension(&self) -> &str {
        DIMENSION
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let mut key = CompactString::const_new("");
        for part in &self.parts {
            let identity = part.resolve(request)?;
            let invalid = |invalid: identity::Invalid| Unresolved::Invalid {
                field: identity.dimension().to_owned(),
                reason: invalid.reason().to_owned(),
            };
            let dimension = identity::dimension(identity.dimension()).map_err(invalid)?;
            let identifier = identity::identifier(dimension, identity.identifier(), request.ipv6_prefix);
            write_part(&mut key, dimension, &identifier.map_err(invalid)?);
        }
        Ok(Identity::new(DIMENSION, Identifier::of(key)))
    }

    fn validate(&self) -> Result<(), InvalidLayer> {
        check_dimensions(self.parts.iter().map(|part| &**part))
    }
}

impl fmt::Debug for Composition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.parts.iter().map(|part| part.dimension())).finish()
    }
}
