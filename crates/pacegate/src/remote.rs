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

/// What a [`Remote`] will say.
pub type RemoteFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CheckError>> + Send + 'a>>;

/// A Pacegate service elsewhere, which has the rules and the counters. The `pacegate-connect` crate has one over gRPC.
///
/// It answers within a deadline of its own. [`CheckError::Store`] says that the service does not answer; then the limiter's failure mode decides.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Decides on each of the checks, and charges those that are allowed.
    fn check_each<'a, 'b: 'a>(
        &'a self,
        checks: &'a [Check<'b>],
    ) -> RemoteFuture<'a, Vec<Result<Decision, CheckError>>>;
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
pub(crate) struct Elsewhere {
    pub(crate) service: Arc<dyn Remote>,
    pub(crate) on_error: FailureMode,
}

impl Limiter {
    /// The same limiter, but a service decides: it has the rules, the plans and the counters. Those of this limiter are for [`FailureMode::Local`] alone, when the
    /// service does not answer and the failure mode is that.
    #[must_use]
    pub fn elsewhere(mut self, service: Arc<dyn Remote>, on_error: FailureMode) -> Self {
        self.elsewhere = Some(Elsewhere { service, on_error });
        self
    }

    pub(crate) async fn check_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        check: &Check<'_>,
    ) -> Result<Decision, CheckError> {
        let mut decisions = self.check_each_elsewhere(elsewhere, std::slice::from_ref(check)).await;
        decisions.pop().unwrap_or_else(|| Err(StoreError::unanswered().into()))
    }

    pub(crate) async fn check_each_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        checks: &[Check<'_>],
    ) -> Vec<Result<Decision, CheckError>> {
        match elsewhere.service.check_each(checks).await {
            Ok(mut decisions) => {
                decisions.resize_with(checks.len(), || Err(StoreError::unanswered().into()));
                decisions
            }
            Err(error) if elsewhere.on_error == FailureMode::Local && is_outage(&error) => {
                let decided = self.check_each_here(checks).await.into_iter();
                decided.map(|decision| decision.map(Decision::into_fallback)).collect()
            }
            Err(error) => {
                // One answer for all of them, and the error, which cannot be told twice, for the first.
                let mut error = Some(error);
                let answer =
                    |_| elsewhere.answer(error.take().unwrap_or_else(|| StoreError::unanswered().into()));
                checks.iter().map(answer).collect()
            }
        }
    }

    pub(crate) async fn check_all_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        checks: &[Check<'_>],
    ) -> Result<Decision, CheckError> {
        match elsewhere.service.check_all(checks).await {
            Err(error) if elsewhere.on_error == FailureMode::Local && is_outage(&error) => {
                self.check_all_here(checks).await.map(Decision::into_fallback)
            }
            Err(error) => elsewhere.answer(error),
            decided => decided,
        }
    }

    pub(crate) async fn peek_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        check: &Check<'_>,
    ) -> Result<Decision, CheckError> {
        match elsewhere.service.peek(check).await {
            Err(error) if elsewhere.on_error == FailureMode::Local && is_outage(&error) => {
                self.run(check, Act::Peek).await.map(Decision::into_fallback)
            }
            Err(error) => elsewhere.answer(error),
            decided => decided,
        }
    }
}

impl Elsewhere {
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
