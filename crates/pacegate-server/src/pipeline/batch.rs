//! Batches of checks, decided independently or all together, for all protocols.

use std::pin::pin;

use futures_util::future::join_all;
use pacegate::{Check, CheckError, Decision};
use tokio::task::yield_now;

use super::{Caller, CheckMessage, idempotency_key};
use crate::app::Shared;
use crate::respond::ApiError;

/// Maximum number of checks of one batch, over REST and gRPC.
pub(crate) use pacegate_proto::BATCH_CHECKS_MAX as CHECKS_MAX;

/// Number of checks of a batch that are processed before the thread yields to other requests. A
/// check can have 16 identities.
const AT_ONCE: usize = 8;

/// Yields to other requests after every few checks of a batch; `index` is the index of the check.
pub(crate) async fn yield_after_some(index: usize) {
    if index > 0 && index.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

/// Rejects a batch without checks or with too many.
pub(crate) fn check_size(checks: usize) -> Result<(), ApiError> {
    if (1..=CHECKS_MAX).contains(&checks) {
        return Ok(());
    }
    Err(ApiError::input("checks", format!("must have between 1 and {CHECKS_MAX} entries, got {checks}")))
}

/// Returns the total number of identities of the checks, which is the cost of a batch.
fn identities(checks: &[Result<Check<'_>, ApiError>]) -> usize {
    checks.iter().map(|check| check.as_ref().map_or(1, |check| check.identities().len().max(1))).sum()
}

/// Checks, each decided independently.
pub(crate) struct Batch<'a, Q> {
    pub(crate) messages: &'a [Q],
    /// The idempotency key of the whole batch in the message itself.
    pub(crate) key: Option<&'a str>,
    /// The content that the batch's idempotency key covers.
    pub(crate) body: &'a [u8],
}

impl Shared {
    /// Decides the checks of a batch in order.
    pub(crate) async fn decide_each<Q: CheckMessage>(
        &self,
        Batch { messages, key, body }: Batch<'_, Q>,
        caller: Caller<'_>,
    ) -> Result<Vec<Result<Decision, ApiError>>, ApiError> {
        let key = idempotency_key(key, caller.headers)?;
        let sender = self.gate.sender(caller.headers, caller.peer);
        #[expect(clippy::needless_late_init, reason = "the checks borrow them, so they must live longer")]
        let profiles;
        let mut checks = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            yield_after_some(index).await;
            self.observer.skew.observe(message.timestamp());
            checks.push(message.check(self));
        }
        let _unanswered = self.overload.accept_batch(identities(&checks))?;
        let checks = self.permit_each(checks, caller).await;
        // The scope of the batch's key for each check: the index distinguishes equal checks, and
        // keys of single checks.
        let scope = |(index, check): (usize, &Result<Check<'_>, ApiError>)| match check {
            Ok(check) => format!("batch:{index}:{}", check.identity()),
            Err(_) => String::new(),
        };
        let scopes: Vec<String> = checks.iter().enumerate().map(scope).collect();
        if let Some(key) = key {
            // Recorded before anything is charged: the same key of the same identities with another
            // batch is rejected as a whole.
            let scope = format!("whole {}", scopes.concat());
            self.limiter.claim_idempotency_key(&scope, Some(&sender), key, body).await?;
        }
        let users = checks.iter().map(|check| check.as_ref().ok());
        profiles = join_all(users.map(async |check| self.profile(check?.user()).await)).await;
        let mut valid: Vec<Check<'_>> = Vec::with_capacity(checks.len());
        let mut errors: Vec<Option<ApiError>> = Vec::with_capacity(checks.len());
        for (((check, message), scope), profile) in
            checks.into_iter().zip(messages).zip(scopes).zip(&profiles)
        {
            let check = match check {
                Ok(check) => check.profile(profile.as_deref()).sender(sender.as_str()),
                Err(error) => {
                    errors.push(Some(error));
                    continue;
                }
            };
            errors.push(None);
            valid.push(match (message.idempotency_key(), key) {
                // A check's own key equals that of a single check, so that a retry may use either
                // API.
                (Some(own), _) => {
                    let identity = check.identity();
                    check.idempotency(identity, own)
                }
                (None, Some(key)) => check.idempotency(scope, key),
                (None, None) => check,
            });
        }
        let deciding = pin!(self.limiter.check_each(&valid));
        let (outcomes, deciding) = self.observer.time_batch(caller.headers, valid.len(), deciding).await;
        let mut outcomes = valid.iter().zip(outcomes);
        let mut decided = Vec::with_capacity(messages.len());
        for (index, (error, message)) in errors.into_iter().zip(messages).enumerate() {
            yield_after_some(index).await;
            decided.push(match error {
                Some(error) => Err(error),
                None => match outcomes.next() {
                    Some((check, Ok(decision))) => {
                        deciding.record_part(&decision);
                        let check = std::slice::from_ref(check);
                        self.observer.note(check, deciding.request_id, &decision, deciding.took);
                        Ok(decision)
                    }
                    Some((_, Err(error))) => {
                        self.observer.note_error(&error, deciding.took);
                        Err(message.explain(error).logged(deciding.request_id))
                    }
                    None => Err(message.explain(CheckError::NotInProcess)),
                },
            });
        }
        Ok(decided)
    }

    /// Decides all checks of a batch together: all are charged, or none is.
    pub(crate) async fn decide_all<Q: CheckMessage>(
        &self,
        messages: &[Q],
        caller: Caller<'_>,
    ) -> Result<Decision, ApiError> {
        let checks: Vec<_> = messages.iter().map(|message| message.check(self)).collect();
        let _unanswered = self.overload.accept_batch(identities(&checks))?;
        let checks = self.permit_each(checks, caller).await;
        let checks: Vec<Check<'_>> = checks.into_iter().collect::<Result<_, _>>()?;
        let profiles = join_all(checks.iter().map(|check| self.profile(check.user()))).await;
        let checks =
            checks.into_iter().zip(&profiles).map(|(check, profile)| check.profile(profile.as_deref()));
        let checks: Vec<Check<'_>> = checks.collect();
        let deciding = pin!(self.limiter.check_all(&checks));
        let (decided, deciding) = self.observer.time_batch(caller.headers, checks.len(), deciding).await;
        // Each check was validated already; a remaining error concerns all of them.
        let decision = decided.inspect_err(|error| self.observer.note_error(error, deciding.took))?;
        deciding.record_part(&decision);
        self.observer.note(&checks, deciding.request_id, &decision, deciding.took);
        Ok(decision)
    }

    /// Replaces each check with an ad-hoc limit by an error, if the caller may not send one.
    async fn permit_each<'a>(
        &self,
        mut checks: Vec<Result<Check<'a>, ApiError>>,
        caller: Caller<'_>,
    ) -> Vec<Result<Check<'a>, ApiError>> {
        let has_limit =
            |check: &Result<Check<'_>, _>| check.as_ref().is_ok_and(|check| check.own_limit().is_some());
        if !checks.iter().any(has_limit) {
            return checks;
        }
        let permitted = self.gate.permit_ad_hoc(self.ad_hoc.allow, caller.headers, caller.peer).await;
        if let Err(error) = permitted {
            checks.iter_mut().filter(|check| has_limit(check)).for_each(|check| *check = Err(error.clone()));
        }
        checks
    }
}
