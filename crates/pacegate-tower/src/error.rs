//! Errors of a layer when it is built, and of requests without a key.

use pacegate::{Invalid, InvalidLimit};
use thiserror::Error;

/// A layer that is not valid. Reported when the layer is built, before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// The layer has no resolver.
    #[error("the layer has no resolver; add one, such as `.by(address())`")]
    NoResolver,
    /// The ad-hoc limit of the layer is not valid.
    #[error("ad-hoc limit: {0}")]
    InvalidLimit(InvalidLimit),
    /// The limiter has no plan with this name.
    #[error("unknown plan `{name}`")]
    UnknownPlan {
        /// The name.
        name: Box<str>,
    },
    /// The layer names a plan twice, which would charge it twice.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: Box<str>,
    },
    /// The dimension is not a lowercase word.
    #[error("dimension `{dimension}`: {}", reason.reason())]
    InvalidDimension {
        /// The dimension.
        dimension: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
    /// Two resolvers use the same dimension.
    #[error("duplicate dimension `{dimension}`: two resolvers use it; change one with `in_dimension`")]
    DuplicateDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// The name is not a valid header name.
    #[error("`{name}` is not a valid header name")]
    InvalidHeader {
        /// The name.
        name: Box<str>,
    },
    /// The identifier for requests without a key is not valid.
    #[error(
        "identifier `{identifier}` for requests without a key is not valid in dimension `{dimension}`: {}",
        reason.reason()
    )]
    InvalidIdentifier {
        /// The identifier.
        identifier: Box<str>,
        /// The dimension of the resolver.
        dimension: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
}

/// Why a request has no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unresolved {
    /// The request does not contain it.
    #[error("{what} is missing")]
    Missing {
        /// What is missing.
        what: String,
        /// Whether it identifies the client, so that the status is 401 instead of 400.
        credential: bool,
    },
    /// The server did not provide it. Clients cannot fix this.
    #[error("{what} is unknown: {remedy}")]
    NotProvided {
        /// What is unknown.
        what: &'static str,
        /// How to fix the program.
        remedy: &'static str,
    },
    /// The request contains an invalid value.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: String,
        /// What the value must be.
        reason: String,
    },
}

impl Unresolved {
    /// Whether the value is absent, in contrast to invalid.
    pub fn is_missing(&self) -> bool {
        !matches!(self, Self::Invalid { .. })
    }
}
