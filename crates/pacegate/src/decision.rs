//! What a limiter says: a decision of the core, with the names of the limits.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Answers, Reason, Timestamp};
use smallvec::SmallVec;

use crate::rule::NamedLimit;

/// Whether a request may pass, and which limits said so. It is a [`pacegate_core::Decision`] with names.
#[derive(Clone, Debug)]
pub struct Decision {
    decision: pacegate_core::Decision,
    pub(crate) limits: SmallVec<[Arc<NamedLimit>; 2]>,
    /// How it was made without the service that should have.
    pub(crate) fallback: Option<Reason>,
    /// Random, to recognise a repeated refund.
    id: u64,
}

impl Decision {
    /// Gives a decision the limits that its answers are of.
    #[inline]
    pub fn of(decision: pacegate_core::Decision, limits: SmallVec<[Arc<NamedLimit>; 2]>) -> Self {
        Self { decision, limits, fallback: None, id: fastrand::u64(..) | 1 }
    }

    /// The same decision under the id that the service which made it gave it.
    #[must_use]
    pub fn with_id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// A random number other than 0 that tells this decision from all others, so that a refund of
    /// it can be recognised when it is repeated. Clones have the same one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What there is to say without the service that should have decided.
    pub(crate) fn without_service(allowed: bool, reason: Reason) -> Self {
        let decision = pacegate_core::Decision::new(allowed, Timestamp::default(), Answers::new());
        Self { fallback: Some(reason), ..Self::of(decision, SmallVec::new()) }
    }

    /// The same decision, made here because the service did not answer.
    pub(crate) fn into_fallback(self) -> Self {
        Self { fallback: Some(Reason::LocalFallback), ..self }
    }

    /// Whether any limit was decided without its store, or all of them without the service that should have.
    pub fn degraded(&self) -> bool {
        self.fallback.is_some() || self.decision.degraded()
    }

    /// Whether it was denied because a store or the service fails, and not because there is no room. That binds before a limit that merely has no room: nobody knows when it will pass again.
    pub fn failed_closed(&self) -> bool {
        let reason = self.fallback.or(self.binding().and_then(|answer| answer.reason));
        !self.allowed && reason == Some(Reason::FailClosed)
    }

    /// The limits that applied, in the order of [`answers`](pacegate_core::Decision::answers).
    pub fn limits(&self) -> &[Arc<NamedLimit>] {
        &self.limits
    }

    /// How long the request should wait to leave at the rate of a leaky bucket: the longest of its limits' delays.
    pub fn delay(&self) -> Option<Duration> {
        self.answers.iter().filter(|answer| !answer.shadow).filter_map(Answer::delay).max()
    }

    /// The same decision, as a denial that `wait` helps against.
    pub(crate) fn denied_for(mut self, wait: Duration) -> Self {
        let Self { decision, .. } = &mut self;
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let retry_at = Timestamp::from_micros(decision.at.as_micros().saturating_add(micros));
        for answer in decision.answers.iter_mut().filter(|answer| answer.delay().is_some()) {
            (answer.allowed, answer.retry_at, answer.reason) =
                (false, Some(retry_at), Some(Reason::LimitExceeded));
        }
        self.decision = pacegate_core::Decision::new(false, self.decision.at, self.decision.answers.clone());
        self
    }

    /// The limit that binds; `None` when none applied.
    pub fn binding_limit(&self) -> Option<&NamedLimit> {
        self.limits.get(self.decision.binding_index()).map(Deref::deref)
    }
}

impl Deref for Decision {
    type Target = pacegate_core::Decision;

    fn deref(&self) -> &Self::Target {
        &self.decision
    }
}
