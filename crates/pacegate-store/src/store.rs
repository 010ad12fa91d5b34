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

/// The effect of a command on one counter: the limit it is checked against, and how much is taken
/// or refunded.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The counter.
    pub key: Key<'a>,
    /// The limit in force now; the state may have been written under other numbers.
    pub limit: &'a Limit,
    /// How much is taken or refunded. [`Cost::ZERO`] takes nothing and checks whether 1 would fit;
    /// a reset ignores it.
    pub cost: Cost,
    /// How much of the cost has to fit.
    pub fit: Fit,
    /// For a refund, when the cost was taken ([`Answer::refund_at`]), so that exactly that charge
    /// is refunded. If unset, the newest charges are.
    pub taken_at: Option<Timestamp>,
    /// Whether the limit is a shadow limit: it is charged while the cost fits but never denies.
    pub shadow: bool,
    /// What the limit does when the store fails. Applied by [`GuardedStore`](crate::GuardedStore),
    /// and by a store in memory that cannot hold the key.
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

    /// The refund of this charge, which was decided with `answer` at `decided_at`; `None` if
    /// nothing was taken because the limit denied or its store failed.
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

/// Makes a take repeatable: a repetition under the same key returns the first admission and charges
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Idempotency<'a> {
    /// The owner of the key; equal keys of different callers are independent.
    pub caller: &'a str,
    /// The key as the caller sent it.
    pub key: &'a str,
    /// A strong hash of the request, to detect that the key is reused for another one.
    pub fingerprint: [u8; 16],
    /// The identity whose counters the record is stored with. It must not depend on the limits in
    /// force, so that a repetition finds the record after they change. `None` is for a key without
    /// an identity, which is stored apart.
    pub home: Option<Identity<'a>>,
    /// The sender: an API key or an address. A store with a small number of records divides them
    /// among senders. `None` is the program itself.
    pub sender: Option<&'a str>,
}

impl Idempotency<'_> {
    /// How long an admission can be repeated.
    pub const TTL: Duration = Duration::from_secs(300);
}

/// What a command does with its charges.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Action<'a> {
    /// Charges all of them, or none if an enforced one does not fit.
    Take {
        /// Set if the caller may repeat the request.
        idempotency: Option<Idempotency<'a>>,
    },
    /// Decides like a take, but changes nothing.
    Peek {
        /// If set, returns the admission that a take under this key recorded, if any.
        idempotency: Option<Idempotency<'a>>,
    },
    /// Resets the counters.
    Reset,
    /// Resets the counters and every other variant of them
    /// ([`Counter::variant`](pacegate_core::Counter::variant)), whichever process created it. This
    /// may take long and is not atomic: a variant that is charged concurrently may remain.
    ResetVariants,
    /// Refunds each cost, never beyond a fresh counter, minus what may have come back to a bucket
    /// since it was taken.
    Refund,
}

impl Action<'_> {
    /// A take that is not repeatable.
    pub const fn take() -> Self {
        Self::Take { idempotency: None }
    }

    /// A peek at the limits alone.
    pub const fn peek() -> Self {
        Self::Peek { idempotency: None }
    }
}

/// One request to a store.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// What to do.
    pub action: Action<'a>,
    /// The charges; their keys are distinct. A take without charges is admitted; with an
    /// idempotency key it only records that.
    pub charges: &'a [Charge<'a>],
}

impl<'a> Command<'a> {
    /// A peek at the limits alone.
    pub const fn peek(charges: &'a [Charge<'a>]) -> Self {
        Self { action: Action::peek(), charges }
    }

    /// A take that is not repeatable.
    pub const fn take(charges: &'a [Charge<'a>]) -> Self {
        Self { action: Action::take(), charges }
    }

    /// The idempotency key, if any.
    pub fn idempotency(&self) -> Option<Idempotency<'a>> {
        match self.action {
            Action::Take { idempotency } | Action::Peek { idempotency } => idempotency,
            _ => None,
        }
    }

    /// The number of keys it touches: those of its charges and the record of its idempotency key.
    pub fn keys(&self) -> usize {
        self.charges.len() + usize::from(self.idempotency().is_some())
    }

    /// A hash of the limits and their counters. The answers of an admission are valid only under
    /// the same limits.
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

/// The result of a command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The decision on a take or a peek; for a refund, a peek of cost 1 after it.
    Decided(ChainDecision),
    /// The counters were reset.
    Reset {
        /// When, by the store's clock.
        at: Timestamp,
    },
    /// The idempotency key was used for another request; nothing was charged.
    Mismatch,
}

/// The future of [`Store::apply`].
pub type ApplyFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, StoreError>> + Send + 'a>>;

/// The future of [`Store::apply_batch`]: an outcome for each command, in order.
pub type BatchFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<Outcome, StoreError>>> + Send + 'a>>;

/// The future of [`Store::probe`].
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// A store of counters. Implementations guarantee:
///
/// - Every command is atomic: no other command of any process or node observes or changes its keys
///   half-way.
/// - The decision is that of `pacegate-core` on the same history, bit for bit.
/// - A denied take, a peek and a replay change nothing, except that a take corrects a counter whose
///   time is more than one window ahead
///   ([`Evaluation::correct_time`](pacegate_core::Evaluation::correct_time)).
/// - An absent key is a fresh one, and a key is dropped only once its state equals a fresh one.
/// - Time never goes back for a key by up to one window, and no decision depends on the backend's
///   expiry.
/// - An idempotency key is looked up, and recorded on admission, in the same atomic step, for
///   [`Idempotency::TTL`]. A store that cannot hold the record decides without it, except for a
///   command that only records.
/// - A repetition under other limits than it was admitted under ([`Command::limits_digest`]) is
///   answered by a peek at those in force now ([`ChainDecision::into_replay`]).
pub trait Store: Send + Sync + fmt::Debug {
    /// Applies a command at `now`, or at the store's own time if `now` is `None`.
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a>;

    /// Applies each command and returns an outcome for each, in as few round trips as possible.
    /// Commands may be reordered only if they share no key.
    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(commands.len());
            for command in commands {
                outcomes.push(self.apply(command, now).await);
            }
            outcomes
        })
    }

    /// Returns how many of `commands`, from the first on, one call should have to finish within a
    /// deadline. This is at least 1; commands that touch [`PIECE_KEYS_MAX`](crate::PIECE_KEYS_MAX)
    /// keys in total always fit one call.
    fn piece(&self, commands: &[Command<'_>]) -> usize {
        first_piece(commands)
    }

    /// Checks that the store responds, with one harmless command that changes nothing. It takes the
    /// same path as a check, so that whatever would keep a check from being decided fails it too.
    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(async { self.apply(&Command::peek(&[]), None).await.map(drop) })
    }

    /// The metrics that the store has collected about itself since it was created.
    fn figures(&self) -> Figures {
        Vec::new()
    }
}
