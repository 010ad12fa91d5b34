//! Why a store could not answer.

use thiserror::Error;

/// A store could not decide. A denial is not an error: it comes back as an outcome.
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct StoreError {
    kind: Kind,
}

#[derive(Debug, Error)]
enum Kind {
    #[error("the store holds as many keys as it may")]
    Overloaded,
    #[error("the store gave no answer to a command")]
    Unanswered,
}

impl StoreError {
    /// The store is healthy but at one of its bounds; nothing was charged.
    pub fn overloaded() -> Self {
        Self { kind: Kind::Overloaded }
    }

    /// The store broke its contract: fewer outcomes than commands.
    pub fn unanswered() -> Self {
        Self { kind: Kind::Unanswered }
    }

    /// Whether the same command may succeed later, and surely changed nothing so far.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            Kind::Overloaded => true,
            Kind::Unanswered => false,
        }
    }
}
