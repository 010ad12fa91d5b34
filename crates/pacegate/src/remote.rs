//! Deciding elsewhere: a limiter that asks a Pacegate service, and what it does when that does not answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use pacegate_core::{Reason, Timestamp};
use pacegate_store::{FailureMode, StoreError};

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::limiter::Limiter;
use crate::resolved::Act;

/// The answer of a [`Remote`].
pub type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>;

/// The answers of a [`Remote`] to many checks, in their order.
pub type RemoteAnswers<'a> = Pin<Box<dyn Future<Output = Vec<Result<Decision, CheckError>>> + Send + 'a>>;

/// A Pacegate service that has the rules and the counters. The `pacegate-connect` crate has one over
/// gRPC.
///
/// It answers within a deadline of its own. A [`CheckError::Store`] that is an outage says that the
/// service does not answer; then the limiter's failure mode decides. Every other error is the
/// answer.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Decides on a check, and charges it if it is allowed.
    fn check<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision>;
    /// Decides on each of the checks, and charges those that are allowed. An error that concerns
    /// several of them is the answer to each.
    fn check_each<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteAnswers<'a>;
    /// Decides on all checks together, and charges all of them or none.
    fn check_all<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteFuture<'a, Decision>;
    /// Decides and charges nothing.
    fn peek<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision>;
    /// Forgets the check's counters; says when that was.
    fn reset<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Timestamp>;
    /// Gives back what `decision` took for `check`.
    fn refund<'a, 'b: 'a>(
        &'a self,
        check: &'a Check<'b>,
        decision: &'a Decision,
    ) -> RemoteFuture<'a, Decision>;
}

/// A service and what happens without it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteService {
    pub(crate) service: Arc<dyn Remote>,
    pub(crate) on_error: FailureMode,
}

impl Limiter {
    /// The same limiter, but a service decides: it has the rules, the plans and the counters. Those of this limiter are for [`FailureMode::Local`] alone, when the
    /// service does not answer and the failure mode is that.
    #[must_use]
    pub fn with_remote(mut self, service: Arc<dyn Remote>, on_error: FailureMode) -> Self {
        self.remote = Some(RemoteService { service, on_error });
        self
    }

    pub(crate) async fn check_remotely(
        &self,
        remote: &RemoteService,
        check: &Check<'_>,
    ) -> Result<Decision, CheckError> {
        check.check_limit()?;
        match remote.service.check(check).await {
            Err(error) if remote.on_error == FailureMode::Local && is_outage(&error) => {
                self.run(check, Act::Take).await.map(Decision::into_fallback)
            }
            Err(error) => remote.answer(error),
            decided => decided,
        }
    }

    pub(crate) async fn check_each_remotely(
        &self,
        remote: &RemoteService,
        checks: &[Check<'_>],
    ) -> Vec<Result<Decision, CheckError>> {
        let is_valid = |check: &&Check<'_>| check.check_limit().is_ok();
        if checks.iter().all(|check| is_valid(&check)) {
            return self.check_valid_remotely(remote, checks).await;
        }
        let valid: Vec<Check<'_>> = checks.iter().filter(is_valid).cloned().collect();
        let mut decided = self.check_valid_remotely(remote, &valid).await.into_iter();
        let mut next = || decided.next().unwrap_or_else(|| Err(StoreError::missing_outcome().into()));
        checks.iter().map(|check| check.check_limit().and_then(|()| next())).collect()
    }

    async fn check_valid_remotely(
        &self,
        remote: &RemoteService,
        checks: &[Check<'_>],
    ) -> Vec<Result<Decision, CheckError>> {
        let mut decisions = remote.service.check_each(checks).await;
        decisions.resize_with(checks.len(), || Err(StoreError::missing_outcome().into()));
        if remote.on_error != FailureMode::Local {
            let answer = |decided: Result<_, _>| decided.or_else(|error| remote.answer(error));
            return decisions.into_iter().map(answer).collect();
        }
        let lost = |decided: &Result<_, CheckError>| decided.as_ref().is_err_and(is_outage);
        let unanswered: Vec<Check<'_>> = checks
            .iter()
            .zip(&decisions)
            .filter(|(_, decided)| lost(decided))
            .map(|(c, _)| c.clone())
            .collect();
        let mut decided_here = self.check_each_here(&unanswered).await.into_iter();
        for decided in decisions.iter_mut().filter(|decided| lost(decided)) {
            if let Some(here) = decided_here.next() {
                *decided = here.map(Decision::into_fallback);
            }
        }
        decisions
    }

    pub(crate) async fn check_all_remotely(
        &self,
        remote: &RemoteService,
        checks: &[Check<'_>],
    ) -> Result<Decision, CheckError> {
        checks.iter().try_for_each(Check::check_limit)?;
        match remote.service.check_all(checks).await {
            Err(error) if remote.on_error == FailureMode::Local && is_outage(&error) => {
                self.check_all_here(checks).await.map(Decision::into_fallback)
            }
            Err(error) => remote.answer(error),
            decided => decided,
        }
    }

    pub(crate) async fn peek_remotely(
        &self,
        remote: &RemoteService,
        check: &Check<'_>,
    ) -> Result<Decision, CheckError> {
        check.check_limit()?;
        match remote.service.peek(check).await {
            Err(error) if remote.on_error == FailureMode::Local && is_outage(&error) => {
                self.run(check, Act::Peek).await.map(Decision::into_fallback)
            }
            Err(error) => remote.answer(error),
            decided => decided,
        }
    }
}

impl RemoteService {
    /// What there is to say without the service; errors that are the caller's stay errors.
    fn answer(&self, error: CheckError) -> Result<Decision, CheckError> {
        match self.on_error {
            _ if !is_outage(&error) => Err(error),
            FailureMode::Closed => Ok(Decision::without_service(false, Reason::FailClosed)),
            FailureMode::Open | FailureMode::Local => Ok(Decision::without_service(true, Reason::FailOpen)),
        }
    }
}

/// Whether the service does not answer, in contrast to what is wrong with a check or with us: a wrong key is never let pass in silence.
fn is_outage(error: &CheckError) -> bool {
    matches!(error, CheckError::Store(cause) if cause.is_outage())
}
