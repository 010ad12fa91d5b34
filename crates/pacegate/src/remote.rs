//! Remote decisions: a limiter that calls a Pacegate service, and its fallback while the service is
//! unavailable.

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

/// The future of a single result of a [`Remote`].
pub type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>;

/// The future of the decisions of a [`Remote`] on many checks, in their order.
pub type RemoteDecisions<'a> = Pin<Box<dyn Future<Output = Vec<Result<Decision, CheckError>>> + Send + 'a>>;

/// A Pacegate service, which has the rules and the counters. The crate `pacegate-connect`
/// implements it over gRPC.
///
/// An implementation must answer within its own deadline. A [`CheckError::Store`] whose
/// [`is_outage`](StoreError::is_outage) is true means that the service is unavailable: the failure
/// mode of the limiter then decides. Any other error is returned to the caller.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Decides on a check, and charges it if it is allowed.
    fn check<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision>;
    /// Decides on each check independently, and charges those that are allowed. An error that
    /// affects several checks is returned for each of them.
    fn check_each<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteDecisions<'a>;
    /// Decides on all checks as one, and charges all of them or none.
    fn check_all<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteFuture<'a, Decision>;
    /// Decides like `check`, but charges nothing.
    fn peek<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision>;
    /// Resets the counters of the check. Returns the time of the reset.
    fn reset<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Timestamp>;
    /// Refunds what `decision` charged for `check`.
    fn refund<'a, 'b: 'a>(
        &'a self,
        check: &'a Check<'b>,
        decision: &'a Decision,
    ) -> RemoteFuture<'a, Decision>;
}

/// A service, and the failure mode while it is unavailable.
#[derive(Clone, Debug)]
pub(crate) struct RemoteService {
    pub(crate) service: Arc<dyn Remote>,
    pub(crate) on_error: FailureMode,
}

impl Limiter {
    /// Returns this limiter with a service that decides in its place, with the service's own rules,
    /// plans and counters. The rules and counters of this limiter are used only while the service
    /// is unavailable and `on_error` is [`FailureMode::Local`].
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
    /// Decides by failure mode if the service is unavailable; other errors are returned unchanged.
    fn answer(&self, error: CheckError) -> Result<Decision, CheckError> {
        match self.on_error {
            _ if !is_outage(&error) => Err(error),
            FailureMode::Closed => Ok(Decision::without_service(false, Reason::FailClosed)),
            FailureMode::Open | FailureMode::Local => Ok(Decision::without_service(true, Reason::FailOpen)),
        }
    }
}

/// Whether the service is unavailable, in contrast to an invalid check or a wrong configuration: a
/// wrong API key must never let requests pass silently.
fn is_outage(error: &CheckError) -> bool {
    matches!(error, CheckError::Store(cause) if cause.is_outage())
}
