//! The store trait, its commands and their outcomes.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use pacegate_core::{Answer, AsDemand, ChainDecision, Cost, Demand, Fit, Identity, Key, Limit, Timestamp};
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::failure::FailureMode;
use crate::figure::Figures;
use crate::pieces::first_piece;

/// What a command does to one counter: which limit it is held against, and how much is taken or given back.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The counter.
    pub key: Key<'a>,
    /// The limit in force for it now; the state may have been written under other numbers.
    pub limit: &'a Limit,
    /// How much is taken or given back. [`Cost::ZERO`] takes nothing and looks whether 1 would fit; a reset ignores it.
    pub cost: Cost,
    /// How much room a take needs.
    pub fit: Fit,
    /// For a refund, when the cost was taken ([`Answer::refund_at`]), so that exactly that charge is given back; without it
    /// the newest charges are.
    pub taken_at: Option<Timestamp>,
    /// A shadow limit is charged while it has room but never denies.
    pub shadow: bool,
    /// What happens to the request when the store fails. [`GuardedStore`](crate::GuardedStore) acts on it,
    /// and a store in memory that has no place for the key.
    pub on_store_error: FailureMode,
}

impl<'a> Charge<'a> {
    /// A charge of 1 to an enforced limit.
    pub fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        Self {
            key,
            limit,
            cost: Cost::ONE,
            fit: Fit::Whole,
            taken_at: None,
            shadow: false,
            on_store_error: FailureMode::default(),
        }
    }

    /// The refund of this charge, which was decided with `answer` at `decided_at`; `None` when nothing was taken: the limit
    /// had no room, or its store did not decide.
    pub fn refund(&self, answer: &Answer, decided_at: Timestamp) -> Option<Self> {
        let cost = self.cost.less(answer.uncharged);
        let taken = answer.allowed && !answer.degraded && !cost.is_zero();
        let taken_at = Some(answer.refund_at(self.limit, cost, decided_at));
        taken.then_some(Self { cost, taken_at, ..*self })
    }
}

impl AsDemand for Charge<'_> {
    #[inline]
    fn demand(&self) -> Demand<'_> {
        let Self { limit, cost, fit, taken_at, shadow, .. } = *self;
        Demand { limit, cost, fit, taken_at, shadow }
    }
}

/// Makes a repeated take harmless: the first admission under the same key is answered again and nothing is charged.
#[derive(Clone, Copy, Debug)]
pub struct Idempotency<'a> {
    /// Whose key it is; equal keys of different callers have nothing to do with each other.
    pub caller: &'a str,
    /// What the caller sent.
    pub key: &'a str,
    /// A strong hash of the request, to notice the same key on another one.
    pub fingerprint: [u8; 16],
    /// With whose counters the record is kept. It is the same whatever limits are in force, so that a repetition
    /// finds the record after they changed. `None` is a place of its own, for a key that goes with no identity.
    pub home: Option<Identity<'a>>,
    /// Who sent it: an API key or an address. A store with few places for records divides them among
    /// senders. `None` is the program itself.
    pub sender: Option<&'a str>,
}

impl Idempotency<'_> {
    /// How long an admission can be repeated.
    pub const KEPT_FOR: Duration = Duration::from_secs(300);
}

/// What to do with the charges of a command.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Action<'a> {
    /// Charge all of them, or none when an enforced one has no room.
    Take {
        /// Set when the caller may repeat the request.
        idempotency: Option<Idempotency<'a>>,
    },
    /// Decide as a take would, and change nothing.
    Peek {
        /// Set to be answered with the admission that a take under this key recorded, if there is one.
        idempotency: Option<Idempotency<'a>>,
    },
    /// Forget them.
    Reset,
    /// Forget them and every other variant of their counters ([`Counter::variant`](pacegate_core::Counter::variant)),
    /// whichever process made it. It may take long, and is not one atomic step: a variant that is charged meanwhile may stay.
    ResetVariants,
    /// Give each cost back, never beyond a fresh counter, less what can have come back to a bucket by itself since it was taken.
    Refund,
}

impl Action<'_> {
    /// A take that is not repeatable.
    pub const fn take() -> Self {
        Self::Take { idempotency: None }
    }

    /// A look at the limits alone.
    pub const fn peek() -> Self {
        Self::Peek { idempotency: None }
    }
}

/// One request to a store.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// What to do.
    pub action: Action<'a>,
    /// What is charged. Their keys differ from one another. A take without charges is admitted; with an idempotency key it only records that.
    pub charges: &'a [Charge<'a>],
}

impl<'a> Command<'a> {
    /// A look at the limits alone.
    pub const fn peek(charges: &'a [Charge<'a>]) -> Self {
        Self { action: Action::peek(), charges }
    }

    /// A take that is not repeatable.
    pub const fn take(charges: &'a [Charge<'a>]) -> Self {
        Self { action: Action::take(), charges }
    }

    /// What makes it repeatable.
    pub fn idempotency(&self) -> Option<Idempotency<'a>> {
        match self.action {
            Action::Take { idempotency } | Action::Peek { idempotency } => idempotency,
            _ => None,
        }
    }

    /// How many keys it touches: its charges, and the record of its idempotency key.
    pub fn keys(&self) -> usize {
        self.charges.len() + usize::from(self.idempotency().is_some())
    }

    /// A hash of the limits and what they count: the answers of an admission hold only under the same ones.
    pub fn limits_digest(&self) -> [u8; 8] {
        let mut hasher = Sha256::new();
        for charge in self.charges {
            let ((high, low), limit) = (charge.key.counter().digest(), charge.limit);
            hasher.update(high.to_le_bytes());
            hasher.update(low.to_le_bytes());
            hasher.update([limit.algorithm().code(), u8::from(charge.shadow)]);
            hasher.update(limit.quota().to_le_bytes());
            hasher.update(limit.capacity().to_le_bytes());
            hasher.update(limit.window().as_micros().to_le_bytes());
        }
        let mut digest = [0; 8];
        digest.copy_from_slice(&hasher.finalize()[..8]);
        digest
    }
}

/// What a store answers to a command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The decision on a take or a peek; for a refund, a peek of cost 1 after it.
    Decided(ChainDecision),
    /// The counters are forgotten.
    Reset {
        /// When, by the store's clock.
        at: Timestamp,
    },
    /// The idempotency key was used for another request; nothing was charged.
    Mismatch,
}

/// What [`Store::apply`] returns.
pub type ApplyFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, StoreError>> + Send + 'a>>;

/// What [`Store::apply_batch`] returns: an outcome for each command, in order.
pub type BatchFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<Outcome, StoreError>>> + Send + 'a>>;

/// What [`Store::probe`] returns.
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// Keeps counters. Implementers owe:
///
/// - every command is atomic: no other command sees or changes its keys half-way, whatever the process or node;
/// - the decision is that of `pacegate-core` on the same history, bit for bit;
/// - a denied take, a peek and a replay change nothing, except that a take brings a counter whose time lies more than one window ahead to the
///   present ([`Evaluation::correct_time`](pacegate_core::Evaluation::correct_time));
/// - an absent key is a fresh one, and a key is forgotten only once its state equals a fresh one;
/// - time never goes back for a key by up to one window, and no decision depends on an expiry of the backend;
/// - an idempotency key is looked up, and recorded on admission, in the same atomic step, for [`Idempotency::KEPT_FOR`];
///   a store without a place for the record decides without it, except on a command that only records;
/// - a repetition under other limits than it was admitted under ([`Command::limits_digest`]) is answered by a look at those
///   in force now ([`ChainDecision::into_replay`]).
pub trait Store: Send + Sync + fmt::Debug {
    /// Applies a command at `now`, or at the store's own time when `now` is `None`.
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a>;

    /// Applies each command, with an outcome for each, in as few round trips as the store can. Commands may be reordered among
    /// each other only if they share no key.
    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(commands.len());
            for command in commands {
                outcomes.push(self.apply(command, now).await);
            }
            outcomes
        })
    }

    /// How many of `commands`, from the first on, one call should have, so that it surely ends within a deadline. It is at least one of them;
    /// commands that touch [`PIECE_KEYS_MAX`](crate::PIECE_KEYS_MAX) keys together fit every call.
    fn piece(&self, commands: &[Command<'_>]) -> usize {
        first_piece(commands)
    }

    /// Asks for a sign of life with one harmless command. It takes the way of a check, so that whatever would keep a check from being decided
    /// fails it too, and it changes nothing.
    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async { self.apply(&Command::peek(&[]), None).await.map(drop) })
    }

    /// What the store has counted about itself since it was made, for operators.
    fn figures(&self) -> Figures {
        Vec::new()
    }
}
