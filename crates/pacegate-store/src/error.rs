//! Why a store could not answer, in questions that a caller can act on.

use std::error::Error;
use std::sync::Arc;

use thiserror::Error;

/// A store could not decide. A denial is not an error: it comes back as an outcome.
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
    /// One bit for each charge that needs a key that the store does not take.
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

    /// The store is healthy but at one of its bounds; nothing was charged.
    pub fn overloaded() -> Self {
        Self::new(Kind::Overloaded, "the store holds as many keys as it may")
    }

    /// The store has no memory for the new keys of the charges at `places`; nothing was charged. What it has keys for, it goes on deciding.
    pub fn full(message: impl Into<String>, places: impl IntoIterator<Item = usize>) -> Self {
        Self { new_keys: bits(places), ..Self::new(Kind::Full, message) }
    }

    /// This process has made as many keys as it may for now, and the charges at `places` need new ones; nothing was charged.
    pub fn over_budget(places: impl IntoIterator<Item = usize>) -> Self {
        let message = "more new keys than new_keys_per_second";
        Self { new_keys: bits(places), ..Self::new(Kind::OverBudget, message) }
    }

    /// The store broke its contract: fewer outcomes than commands, or the outcome of another action.
    pub fn unanswered() -> Self {
        Self::new(Kind::Unanswered, "the store gave no answer to a command")
    }

    /// The store cannot be reached, or cannot work now; the command surely did not run.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    /// There was no answer in time; the command may have run.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Kind::TimedOut, message)
    }

    /// The connection was lost before the answer; the command may have run.
    pub fn uncertain(message: impl Into<String>) -> Self {
        Self::new(Kind::Uncertain, message)
    }

    /// The store refuses to work for us until somebody changes something: a wrong password, a missing permission.
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::new(Kind::Rejected, message)
    }

    /// There is a value under the command's key that no version of Pacegate wrote.
    pub fn foreign(message: impl Into<String>) -> Self {
        Self::new(Kind::Foreign, message)
    }

    /// The same error for another of the callers it concerns, without its cause.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { new_keys: self.new_keys, ..Self::new(self.kind, self.message.as_str()) }
    }

    /// The same error for a command whose charges at `places` it was about.
    #[must_use]
    pub(crate) fn at(mut self, places: &[usize]) -> Self {
        if self.takes_no_new_key() {
            let own = places.iter().enumerate().filter(|(place, _)| self.is_new_key(*place));
            self.new_keys = bits(own.map(|(_, place)| *place));
        }
        self
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Whether the same command may succeed later, and surely changed nothing so far.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, Kind::Overloaded | Kind::Full | Kind::OverBudget | Kind::Unavailable)
    }

    /// Whether the store decides on the keys that it has, and takes no new one for this command.
    pub fn takes_no_new_key(&self) -> bool {
        matches!(self.kind, Kind::Full | Kind::OverBudget)
    }

    /// Whether the store has no memory for new keys.
    pub fn is_full(&self) -> bool {
        self.kind == Kind::Full
    }

    /// Whether the charge at `place` needs a key that the store does not take.
    pub fn is_new_key(&self, place: usize) -> bool {
        self.new_keys == u64::MAX || (place < 64 && self.new_keys & (1 << place) != 0)
    }

    /// Whether the command may have run although nobody knows what it decided.
    pub fn may_have_run(&self) -> bool {
        matches!(self.kind, Kind::Unanswered | Kind::TimedOut | Kind::Uncertain)
    }

    /// Whether the store has no room for what the command would write.
    pub fn is_overloaded(&self) -> bool {
        self.kind == Kind::Overloaded
    }

    /// Whether the store did not answer in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether the store as a whole is out of order, as opposed to this one command.
    pub fn is_outage(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::TimedOut | Kind::Uncertain | Kind::Unanswered)
    }

    /// Whether waiting does not help: somebody has to change the configuration, the store or its data.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Rejected | Kind::Foreign)
    }

    /// Whether it concerns the whole store until somebody acts, not one key.
    pub fn is_rejection(&self) -> bool {
        self.kind == Kind::Rejected
    }
}

/// One bit for each place; all of them when a place is beyond the last bit.
fn bits(places: impl IntoIterator<Item = usize>) -> u64 {
    places.into_iter().fold(0, |bits, place| if place < 64 { bits | 1 << place } else { u64::MAX })
}
