//! What can be wrong with a layer when it is built, and with a request when it comes.

use thiserror::Error;

/// A layer that cannot be what it is. It is found out when the layer is built, before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// Nobody said whom requests are counted for.
    #[error("a layer needs a resolver: say `.by(address())` or another one")]
    NoResolver,
    /// The limiter has no plan of that name.
    #[error("there is no plan `{name}`")]
    UnknownPlan {
        /// The name.
        name: Box<str>,
    },
    /// A plan is named twice, which would charge it twice.
    #[error("plan `{name}` is named twice")]
    DuplicatePlan {
        /// The name.
        name: Box<str>,
    },
    /// The dimension is not a word.
    #[error("dimension `{dimension}` must be 1 to 64 letters, digits, `_`, `-` or `.`")]
    InvalidDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// Two resolvers count in the same dimension.
    #[error("two resolvers count in dimension `{dimension}`; name another one with `in_dimension`")]
    DuplicateDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// No header can have this name.
    #[error("`{name}` cannot be the name of a header")]
    InvalidHeader {
        /// The name.
        name: Box<str>,
    },
    /// IPv6 addresses cannot be counted by that many bits.
    #[error("an IPv6 prefix has 1 to 128 bits, not {bits}")]
    InvalidPrefix {
        /// How many were asked for.
        bits: u8,
    },
    /// What requests without a key are counted as cannot be counted by.
    #[error(
        "`{identifier}` cannot be counted by: it must be 1 to 1024 bytes long and have no control characters"
    )]
    InvalidIdentifier {
        /// The identifier.
        identifier: Box<str>,
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
    #[error("{what} is not known: {remedy}")]
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
