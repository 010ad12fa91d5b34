//! Why a store could not decide, classified by what a caller can do about it.

use std::error::Error;
use std::sync::Arc;

use thiserror::Error;

/// The error of a store that could not decide. A denial is not an error: it is an outcome.
///
/// ```
/// use pacegate_store::StoreError;
///
/// let error = StoreError::unavailable("connection refused");
/// assert!(error.is_outage());
/// ```
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct StoreError {
    kind: Kind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// One bit for each charge that needs a new key which the store rejects.
    new_keys: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Overloaded,
    Full,
    OverBudget,
    Unanswered,
    Unavailable,
    TimedOut,
    Uncertain,
    Rejected,
    Foreign,
}

impl StoreError {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, new_keys: 0 }
    }

    /// The store is healthy but has reached one of its bounds; nothing was charged.
    pub fn overloaded() -> Self {
        Self::new(Kind::Overloaded, "maximum number of keys reached")
    }

    /// The store is out of memory for the new keys of the charges at `indices`; nothing was
    /// charged. It still decides for existing keys.
    pub fn full(message: impl Into<String>, indices: impl IntoIterator<Item = usize>) -> Self {
        Self { new_keys: bits(indices), ..Self::new(Kind::Full, message) }
    }

    /// This process has used up its budget of new keys, and the charges at `indices` need new ones;
    /// nothing was charged.
    pub fn over_budget(indices: impl IntoIterator<Item = usize>) -> Self {
        let message = "new_keys_per_second exceeded";
        Self { new_keys: bits(indices), ..Self::new(Kind::OverBudget, message) }
    }

    /// The store broke its contract: it returned fewer outcomes than commands, or the outcome of
    /// another action.
    pub fn missing_outcome() -> Self {
        Self::new(Kind::Unanswered, "the store returned no outcome for a command")
    }

    /// The store cannot be reached or is not operational; the command did not run.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// There was no response in time; the command may have run.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Kind::TimedOut, message)
    }

    /// The connection was lost before the response; the command may have run.
    pub fn uncertain(message: impl Into<String>) -> Self {
        Self::new(Kind::Uncertain, message)
    }

    /// The store rejects our requests until an operator acts, for example because of a wrong
    /// password or a missing permission.
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::new(Kind::Rejected, message)
    }

    /// The key of the command holds a value that no version of Pacegate wrote.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self::new(Kind::Foreign, message)
    }

    /// A copy of the error without its source, for another caller that it affects.
    #[must_use]
    pub fn without_source(&self) -> Self {
        Self { new_keys: self.new_keys, ..Self::new(self.kind, self.message.as_str()) }
    }

    /// The same error for a command in which the affected charges have these `indices`.
    #[must_use]
    pub(crate) fn at(mut self, indices: &[usize]) -> Self {
        if self.rejects_new_keys() {
            let own = indices.iter().enumerate().filter(|(index, _)| self.is_new_key(*index));
            self.new_keys = bits(own.map(|(_, index)| *index));
        }
        self
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Whether the command did not run and may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, Kind::Overloaded | Kind::Full | Kind::OverBudget | Kind::Unavailable)
    }

    /// Whether the store decides for existing keys but rejects the new one that this command needs.
    pub fn rejects_new_keys(&self) -> bool {
        matches!(self.kind, Kind::Full | Kind::OverBudget)
    }

    /// Whether the store is out of memory for new keys.
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Whether the charge at `index` needs a new key which the store rejects.
    pub fn is_new_key(&self, index: usize) -> bool {
        self.new_keys == u64::MAX || (index < 64 && self.new_keys & (1 << index) != 0)
    }

    /// Whether the command may have run with an unknown outcome.
    pub fn may_have_run(&self) -> bool {
        matches!(self.kind, Kind::Unanswered | Kind::TimedOut | Kind::Uncertain)
    }

    /// Whether the store has reached one of its bounds.
    pub fn is_overloaded(&self) -> bool {
        self.kind == Kind::Overloaded
    }

    /// Whether the store did not respond in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether the store as a whole is unavailable, as opposed to this one command.
    pub fn is_outage(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::TimedOut | Kind::Uncertain | Kind::Unanswered)
    }

    /// Whether retrying is pointless: an operator has to change the configuration, the store or its
    /// data.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Rejected | Kind::Foreign)
    }

    /// Whether it affects the whole store until an operator acts, not just one key.
    pub fn is_rejection(&self) -> bool {
        self.kind == Kind::Rejected
    }
}

/// One bit per index; all bits if an index is beyond the last bit.
fn bits(indices: impl IntoIterator<Item = usize>) -> u64 {
    indices.into_iter().fold(0, |bits, index| if index < 64 { bits | 1 << index } else { u64::MAX })
}
