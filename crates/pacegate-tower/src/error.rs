//! What can be wrong with a layer when it is built, and with a request when it comes.

use pacegate::{Invalid, InvalidLimit};
use thiserror::Error;

/// A layer that cannot be what it is. It is found out when the layer is built, before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// Nobody said whom requests are counted for.
    #[error("the layer has no resolver; add one, such as `.by(address())`")]
    NoResolver,
    /// The layer's own limit has numbers that are not valid.
    #[error("ad-hoc limit: {0}")]
    InvalidLimit(InvalidLimit),
    /// The limiter has no plan of that name.
    #[error("unknown plan `{name}`")]
    UnknownPlan {
        /// The name.
        name: Box<str>,
    },
    /// A plan is named twice, which would charge it twice.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: Box<str>,
    },
    /// The dimension is not a word in lower case.
    #[error("dimension `{dimension}`: {}", reason.reason())]
    InvalidDimension {
        /// The dimension.
        dimension: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
    /// Two resolvers count in the same dimension.
    #[error("duplicate dimension `{dimension}`: two resolvers use it; change one with `in_dimension`")]
    DuplicateDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// No header can have this name.
    #[error("`{name}` is not a valid header name")]
    InvalidHeader {
        /// The name.
        name: Box<str>,
    },
    /// What requests without a key are counted as cannot be counted by.
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
    /// The request does not say.
    #[error("{what} is missing")]
    Missing {
        /// What is missing.
        what: String,
        /// Whether it says who the client is, so that the answer is 401 rather than 400.
        credential: bool,
    },
    /// The server did not say, which no client can help.
    #[error("{what} is unknown: {remedy}")]
    NotProvided {
        /// What is not known.
        what: &'static str,
        /// What the program has to do.
        remedy: &'static str,
    },
    /// The request says something that nobody can be counted by.
    #[error("{field}: {reason}")]
    Invalid {
        /// Where.
        field: String,
        /// What it must be.
        reason: String,
    },
}

impl Unresolved {
    /// Whether there is nothing, rather than something that cannot be used.
    pub fn is_missing(&self) -> bool {
        !matches!(self, Self::Invalid { .. })
    }
}
