//! What a limiter says: whether a request may pass, with the names of the limits that applied.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Answers, ChainDecision, Reason, Timestamp};
use smallvec::SmallVec;

use crate::rule::NamedLimit;

/// Whether a request may pass, and what each limit answered.
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
    /// How it was made without the service that should have.
    fallback: Option<Reason>,
    /// Random, to recognise a repeated refund; 0 where there can be no refund.
    id: u64,
}

impl Decision {
    /// Gives a decision the limits that its answers are of.
    #[inline]
    pub(crate) fn of(chain: ChainDecision, limits: SmallVec<[Arc<NamedLimit>; 2]>) -> Self {
        Self { chain, limits, fallback: None, id: fastrand::u64(..) | 1 }
    }

    /// A decision without the names of its limits, which costs no reference count.
    #[inline]
    pub(crate) fn unnamed(chain: ChainDecision) -> Self {
        Self { chain, limits: SmallVec::new(), fallback: None, id: 0 }
    }

    /// A decision that another limiter made, as far as it tells.
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

    /// What there is to say without the service that should have decided.
    pub(crate) fn without_service(allowed: bool, reason: Reason) -> Self {
        let chain = ChainDecision::new(allowed, Timestamp::default(), Answers::new());
        Self { fallback: Some(reason), ..Self::of(chain, SmallVec::new()) }
    }

    /// The same decision, made here because the service did not answer.
    pub(crate) fn into_fallback(self) -> Self {
        Self { fallback: Some(Reason::LocalFallback), ..self }
    }

    /// The same decision, as a denial that `wait` helps against.
    pub(crate) fn denied_for(mut self, wait: Duration) -> Self {
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

    /// Whether this repeats an earlier admission under the same idempotency key and took nothing.
    #[inline]
    pub fn replayed(&self) -> bool {
        self.chain.replayed
    }

    /// Whether any limit was decided without its store, or all of them without the service that should have.
    pub fn degraded(&self) -> bool {
        self.fallback.is_some() || self.chain.degraded()
    }

    /// Whether it was denied because a store or the service failed, and not because a limit was exceeded.
    pub fn failed_closed(&self) -> bool {
        let reason = self.fallback.or(self.binding().and_then(|answer| answer.reason));
        !self.allowed() && reason == Some(Reason::FailClosed)
    }

    /// When it was decided, by the store's clock.
    #[inline]
    pub fn at(&self) -> Timestamp {
        self.chain.at
    }

    /// What the binding limit still allows; `None` when no limit applied or a store failed.
    #[inline]
    pub fn remaining(&self) -> Option<u32> {
        self.chain.remaining()
    }

    /// How long until the same request is allowed; `None` when it is allowed, or never will be.
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        self.chain.retry_after()
    }

    /// How long the request should wait to leave at the rate of a leaky bucket: the longest of its limits' delays.
    pub fn delay(&self) -> Option<Duration> {
        self.answers().iter().filter(|answer| !answer.shadow).filter_map(Answer::delay).max()
    }

    /// Every limit's own answer, in the order of [`limits`](Self::limits).
    #[inline]
    pub fn answers(&self) -> &[Answer] {
        &self.chain.answers
    }

    /// The limits that applied. A decision of a [`Plan`](crate::Plan) does not repeat them: they are
    /// [`Plan::limits`](crate::Plan::limits).
    #[inline]
    pub fn limits(&self) -> &[Arc<NamedLimit>] {
        &self.limits
    }

    /// The answer of the limit that binds: denied, the one to wait longest for; allowed, the one with the least left in
    /// proportion. `None` when no limit applied.
    #[inline]
    pub fn binding(&self) -> Option<&Answer> {
        self.chain.binding()
    }

    /// The limit that binds; `None` when none applied.
    pub fn binding_limit(&self) -> Option<&NamedLimit> {
        self.limits.get(self.chain.binding_index()).map(Deref::deref)
    }

    /// The position of the binding limit among the answers.
    #[doc(hidden)]
    pub fn binding_index(&self) -> usize {
        self.chain.binding_index()
    }

    /// A random number that no other decision has, so that a repeated refund is recognised; clones have the same one. 0
    /// for a decision that cannot be refunded, which is that of a [`Plan`](crate::Plan).
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How it was made without the service that should have.
    pub(crate) fn fallback(&self) -> Option<Reason> {
        self.fallback
    }
}
