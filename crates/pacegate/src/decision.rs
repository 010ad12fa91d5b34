//! The decision on a check: whether the request may pass, and the answer of every limit.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Answers, ChainDecision, Reason, Timestamp};
use smallvec::SmallVec;

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
pub struct Decision {
    chain: ChainDecision,
    limits: SmallVec<[Arc<NamedLimit>; 2]>,
    /// Set if the decision was made without the service that should have decided.
    fallback: Option<Reason>,
    /// A random id that identifies repeated refunds; 0 if the decision cannot be refunded.
    id: u64,
}

impl Decision {
    /// Attaches the limits to their answers.
    #[inline]
    pub(crate) fn of(chain: ChainDecision, limits: SmallVec<[Arc<NamedLimit>; 2]>) -> Self {
        Self { chain, limits, fallback: None, id: fastrand::u64(..) | 1 }
    }

    /// A decision without the names of its limits, which avoids reference counting.
    #[inline]
    pub(crate) fn unnamed(chain: ChainDecision) -> Self {
        Self { chain, limits: SmallVec::new(), fallback: None, id: 0 }
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
        Self { chain, limits, fallback: None, id }
    }

    /// The decision by failure mode while the service is unavailable.
    pub(crate) fn without_service(allowed: bool, reason: Reason) -> Self {
        let chain = ChainDecision::new(allowed, Timestamp::default(), Answers::new());
        Self { fallback: Some(reason), ..Self::of(chain, SmallVec::new()) }
    }

    /// Marks the decision as made locally because the service was unavailable.
    pub(crate) fn into_fallback(self) -> Self {
        Self { fallback: Some(Reason::LocalFallback), ..self }
    }

    /// Turns the decision into a denial with `wait` as its retry time.
    pub(crate) fn into_denial(mut self, wait: Duration) -> Self {
        let Self { chain, .. } = &mut self;
        let retry_at = chain.at.saturating_add(wait);
        for answer in chain.answers.iter_mut().filter(|answer| answer.delay().is_some()) {
            (answer.allowed, answer.retry_at, answer.reason) =
                (false, Some(retry_at), Some(Reason::LimitExceeded));
        }
        self.chain = ChainDecision::new(false, self.chain.at, self.chain.answers);
        self
    }

    /// Whether the request may pass.
    #[inline]
    pub fn allowed(&self) -> bool {
        self.chain.allowed
    }

    /// Whether this replays an earlier decision with the same idempotency key and charged nothing.
    #[inline]
    pub fn replayed(&self) -> bool {
        self.chain.replayed
    }

    /// Whether any limit was decided without its store, or all of them without the service.
    pub fn degraded(&self) -> bool {
        self.fallback.is_some() || self.chain.degraded()
    }

    /// Whether the request was denied because a store or the service is unavailable, not because a
    /// limit was exceeded.
    pub fn failed_closed(&self) -> bool {
        let reason = self.fallback.or(self.binding().and_then(|answer| answer.reason));
        !self.allowed() && reason == Some(Reason::FailClosed)
    }

    /// Returns the time of the decision, by the clock of the store.
    #[inline]
    pub fn at(&self) -> Timestamp {
        self.chain.at
    }

    /// Returns what remains of the binding limit; `None` if no limit applied or a store failed.
    #[inline]
    pub fn remaining(&self) -> Option<u32> {
        self.chain.remaining()
    }

    /// Returns the time after which the same request is allowed; `None` if it is allowed now, or
    /// never will be.
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        self.chain.retry_after()
    }

    /// Returns how long the request should wait to leave at the rate of a leaky bucket: the longest
    /// delay of its limits.
    pub fn delay(&self) -> Option<Duration> {
        self.answers().iter().filter(|answer| !answer.shadow).filter_map(Answer::delay).max()
    }

    /// Returns the answer of every limit, in the order of [`limits`](Self::limits).
    #[inline]
    pub fn answers(&self) -> &[Answer] {
        &self.chain.answers
    }

    /// Returns the limits that applied. Empty for decisions of a [`Plan`](crate::Plan): see
    /// [`Plan::limits`](crate::Plan::limits).
    #[inline]
    pub fn limits(&self) -> &[Arc<NamedLimit>] {
        &self.limits
    }

    /// Returns the answer of the binding limit: if denied, the one with the longest wait; if
    /// allowed, the one with the smallest share remaining. `None` if no limit applied.
    #[inline]
    pub fn binding(&self) -> Option<&Answer> {
        self.chain.binding()
    }

    /// Returns the binding limit; `None` if no limit applied.
    pub fn binding_limit(&self) -> Option<&NamedLimit> {
        self.limits.get(self.chain.binding_index()).map(Deref::deref)
    }

    /// Returns the index of the binding limit among the answers.
    #[doc(hidden)]
    pub fn binding_index(&self) -> usize {
        self.chain.binding_index()
    }

    /// Returns a random id that identifies repeated refunds; clones have the same id. 0 for
    /// decisions of a [`Plan`](crate::Plan), which cannot be refunded.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns how the decision was made if the service was unavailable.
    pub(crate) fn fallback(&self) -> Option<Reason> {
        self.fallback
    }
}
