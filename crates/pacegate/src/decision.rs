//! The decision on a check: whether the request may pass, and the answer of every limit.

mod cached_limit;

use std::ops::Deref;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Answers, ChainDecision, Reason, Taken, Timestamp};
use smallvec::SmallVec;

use self::cached_limit::CachedLimit;
pub(crate) use self::cached_limit::reuse;
use crate::rule::NamedLimit;

/// Whether a request may pass, with the answer of every limit that applied.
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_minute(1))?;
/// assert!(limiter.check_now("user-1")?.allowed());
/// let denied = limiter.check_now("user-1")?;
/// assert!(!denied.allowed());
/// assert_eq!(denied.remaining(), Some(0));
/// assert!(denied.retry_after().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decision(Form);

#[derive(Clone, Debug)]
enum Form {
    /// A charge of one limit: by far the most common decision, which must be cheap to make and to
    /// drop.
    Charged {
        at: Timestamp,
        answer: Answer,
        limit: CachedLimit,
    },
    Chain(Chain),
}

/// A charge of the only limit of a request. It is smaller than the decision that it becomes.
pub(crate) struct Charged {
    at: Timestamp,
    taken: Taken,
    limit: CachedLimit,
}

impl Charged {
    #[inline(always)]
    pub(crate) fn new(at: Timestamp, taken: Taken, limit: Arc<NamedLimit>) -> Self {
        Self { at, taken, limit: CachedLimit::new(limit) }
    }

    /// A charge without the name of its limit.
    #[inline(always)]
    pub(crate) fn unnamed(at: Timestamp, taken: Taken) -> Self {
        Self { at, taken, limit: CachedLimit::NONE }
    }
}

impl From<Charged> for Decision {
    #[inline(always)]
    fn from(Charged { at, taken, limit }: Charged) -> Self {
        Self(Form::Charged { at, answer: Answer::charged(&taken), limit })
    }
}

/// A decision of any kind.
#[derive(Clone, Debug)]
struct Chain {
    chain: ChainDecision,
    limits: SmallVec<[Arc<NamedLimit>; 2]>,
    /// Set if the decision was made without the service that should have decided.
    fallback: Option<Reason>,
    /// Identifies repeated refunds; 0 if the decision cannot be refunded.
    id: u64,
}

impl Decision {
    /// Attaches the limits to their answers.
    #[inline]
    pub(crate) fn of(chain: ChainDecision, limits: SmallVec<[Arc<NamedLimit>; 2]>) -> Self {
        Self(Form::Chain(Chain { chain, limits, fallback: None, id: fastrand::u64(..) | 1 }))
    }

    /// A decision without the names of its limits, which avoids reference counting.
    #[inline]
    pub(crate) fn unnamed(chain: ChainDecision) -> Self {
        Self(Form::Chain(Chain { chain, limits: SmallVec::new(), fallback: None, id: 0 }))
    }

    /// Returns a decision as reported by another limiter.
    #[doc(hidden)]
    pub fn reported(
        allowed: bool,
        replayed: bool,
        at: Timestamp,
        answers: impl IntoIterator<Item = (NamedLimit, Answer)>,
        id: u64,
    ) -> Self {
        let (limits, answers): (SmallVec<_>, Answers) =
            answers.into_iter().map(|(limit, answer)| (Arc::new(limit), answer)).unzip();
        let mut chain = ChainDecision::new(allowed, at, answers);
        chain.replayed = replayed;
        Self(Form::Chain(Chain { chain, limits, fallback: None, id }))
    }

    /// The decision by failure mode while the service is unavailable.
    pub(crate) fn without_service(allowed: bool, reason: Reason) -> Self {
        let chain = ChainDecision::new(allowed, Timestamp::default(), Answers::new());
        Self::of(chain, SmallVec::new()).with_fallback(reason)
    }

    /// Marks the decision as made locally because the service was unavailable.
    pub(crate) fn into_fallback(self) -> Self {
        self.with_fallback(Reason::LocalFallback)
    }

    fn with_fallback(self, reason: Reason) -> Self {
        Self(Form::Chain(Chain { fallback: Some(reason), ..self.into_chain() }))
    }

    /// Turns the decision into a denial with `wait` as its retry time.
    pub(crate) fn into_denial(self, wait: Duration) -> Self {
        let mut decision = self.into_chain();
        let chain = &mut decision.chain;
        let retry_at = chain.at.saturating_add(wait);
        for answer in chain.answers.iter_mut().filter(|answer| answer.delay().is_some()) {
            (answer.allowed, answer.retry_at, answer.reason) =
                (false, Some(retry_at), Some(Reason::LimitExceeded));
        }
        decision.chain = ChainDecision::new(false, decision.chain.at, decision.chain.answers);
        Self(Form::Chain(decision))
    }

    fn into_chain(self) -> Chain {
        let (id, limits) = (self.id(), self.limits().into());
        match self.0 {
            Form::Charged { at, answer, .. } => {
                let chain = ChainDecision::new(true, at, Answers::from_buf([answer]));
                Chain { chain, limits, fallback: None, id }
            }
            Form::Chain(chain) => chain,
        }
    }

    /// Whether the request may pass.
    #[inline]
    pub fn allowed(&self) -> bool {
        match &self.0 {
            Form::Charged { .. } => true,
            Form::Chain(decision) => decision.chain.allowed,
        }
    }

    /// Whether this replays an earlier decision with the same idempotency key and charged nothing.
    #[inline]
    pub fn replayed(&self) -> bool {
        matches!(&self.0, Form::Chain(decision) if decision.chain.replayed)
    }

    /// Whether any limit was decided without its store, or all of them without the service.
    pub fn degraded(&self) -> bool {
        self.fallback().is_some() || self.answers().iter().any(|answer| answer.degraded)
    }

    /// Whether the request was denied because a store or the service is unavailable, not because a
    /// limit was exceeded.
    pub fn failed_closed(&self) -> bool {
        let reason = self.fallback().or(self.binding().and_then(|answer| answer.reason));
        !self.allowed() && reason == Some(Reason::FailClosed)
    }

    /// Returns the time of the decision, by the clock of the store.
    #[inline]
    pub fn at(&self) -> Timestamp {
        match &self.0 {
            Form::Charged { at, .. } => *at,
            Form::Chain(decision) => decision.chain.at,
        }
    }

    /// Returns what remains of the binding limit; `None` if no limit applied or a store failed.
    #[inline]
    pub fn remaining(&self) -> Option<u32> {
        self.binding().and_then(|answer| answer.remaining)
    }

    /// Returns the time after which the same request is allowed; `None` if it is allowed now, or
    /// never will be.
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.0 {
            Form::Charged { .. } => None,
            Form::Chain(decision) => decision.chain.retry_after(),
        }
    }

    /// Returns how long the request should wait to leave at the rate of a leaky bucket: the longest
    /// delay of its limits.
    pub fn delay(&self) -> Option<Duration> {
        self.answers().iter().filter(|answer| !answer.shadow).filter_map(Answer::delay).max()
    }

    /// Returns the answer of every limit, in the order of [`limits`](Self::limits).
    #[inline]
    pub fn answers(&self) -> &[Answer] {
        match &self.0 {
            Form::Charged { answer, .. } => from_ref(answer),
            Form::Chain(decision) => &decision.chain.answers,
        }
    }

    /// Returns the limits that applied. Empty for decisions of a [`Plan`](crate::Plan): see
    /// [`Plan::limits`](crate::Plan::limits).
    #[inline]
    pub fn limits(&self) -> &[Arc<NamedLimit>] {
        match &self.0 {
            Form::Charged { limit, .. } => limit.as_slice(),
            Form::Chain(decision) => &decision.limits,
        }
    }

    /// Returns the answer of the binding limit: if denied, the one with the longest wait; if
    /// allowed, the one with the smallest share remaining. `None` if no limit applied.
    #[inline]
    pub fn binding(&self) -> Option<&Answer> {
        self.answers().get(self.binding_index())
    }

    /// Returns the binding limit; `None` if no limit applied.
    pub fn binding_limit(&self) -> Option<&NamedLimit> {
        self.limits().get(self.binding_index()).map(Deref::deref)
    }

    /// Returns the index of the binding limit among the answers.
    #[doc(hidden)]
    pub fn binding_index(&self) -> usize {
        match &self.0 {
            Form::Charged { .. } => 0,
            Form::Chain(decision) => decision.chain.binding_index(),
        }
    }

    /// Returns an id that identifies repeated refunds; clones have the same id. 0 for decisions of
    /// a [`Plan`](crate::Plan), which cannot be refunded.
    pub fn id(&self) -> u64 {
        match &self.0 {
            // No two charges of a counter leave the same number at the same microsecond.
            Form::Charged { at, answer, limit } if !limit.as_slice().is_empty() => {
                let remaining = u64::from(answer.remaining.unwrap_or_default());
                (at.as_micros() ^ remaining.rotate_right(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
            }
            Form::Charged { .. } => 0,
            Form::Chain(decision) => decision.id,
        }
    }

    /// Returns how the decision was made if the service was unavailable.
    pub(crate) fn fallback(&self) -> Option<Reason> {
        match &self.0 {
            Form::Charged { .. } => None,
            Form::Chain(decision) => decision.fallback,
        }
    }
}
