//! Refunds the charges of an earlier decision, at most once.

use pacegate_core::Reason;
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, OwnedCharge, detachable};
use smallvec::SmallVec;
use std::borrow::Borrow;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::into_check::IntoCheck;
use crate::limiter::Limiter;
use crate::resolved::decided;
use crate::rule::NamedLimit;
use crate::stores::Stores;

impl Limiter {
    /// Refunds what `decision` charged for `check`, and returns a decision with what remains
    /// afterwards. Limits that were not charged are not refunded.
    ///
    /// A decision is refunded at most once: a repeated refund within five minutes, by any process
    /// that shares the store, has no effect. The store records the refund before it applies it. If
    /// a failure occurs in between, the charge remains, and a retry does not refund it either: too
    /// little remains, never too much.
    ///
    /// # Errors
    /// [`CheckError`] if the check is not valid or the store fails.
    pub fn refund<'s, 'a: 's>(
        &'s self,
        check: impl IntoCheck<'s, 'a>,
        decision: &'s Decision,
    ) -> impl Future<Output = Result<Decision, CheckError>> + Send {
        let check = check.into_check();
        async move { self.refund_check(check.borrow(), decision).await }
    }

    async fn refund_check(&self, check: &Check<'_>, decision: &Decision) -> Result<Decision, CheckError> {
        if !decision.allowed() || decision.replayed() {
            return self.peek(check).await;
        }
        match (&self.remote, decision.fallback()) {
            (Some(remote), None) => {
                check.check_limit()?;
                return remote.service.refund(check, decision).await;
            }
            // Nothing was charged.
            (_, Some(Reason::FailOpen)) => return Ok(decision.clone()),
            _ => {}
        }
        let check = &*self.canonical(check)?;
        let mut resolved = self.resolve(check)?;
        resolved.applied.retain(|(limit, _)| taken(decision, limit).is_some());
        let (charges, stores) = (resolved.charges(), resolved.stores());
        let refund = |(index, charge): (usize, &Charge<'_>)| {
            // The time of the refund depends on the limit that was charged; the counter is updated
            // under the limit now in force.
            let (limit, answer) = taken(decision, &resolved.applied[index].0)?;
            let refund = Charge { limit: &limit.limit, ..*charge }.refund(answer, decision.at())?;
            Some((OwnedCharge::from(&Charge { limit: charge.limit, ..refund }), stores[index]))
        };
        let refunds: Refunds = charges.iter().enumerate().filter_map(refund).unzip();
        // A store that nodes share recognises a repeated refund on every node.
        let recorded = stores.iter().find(|store| self.stores().is_shared(**store)).or(stores.first());
        let refunded = match recorded {
            Some(store) => {
                let claim = RefundClaim::new(check, decision, *store);
                refund_once(self.stores().clone(), claim, refunds).await?
            }
            None => None,
        };
        let outcome = match refunded {
            Some(outcome) => outcome,
            None => self.stores().apply(&Command::peek(&charges), &stores).await?,
        };
        drop(charges);
        resolved.decision(outcome)
    }
}

/// Returns the limit that `decision` charged under the name of `limit`, with its answer. Not
/// charged were shadow limits that were exceeded, limits whose store failed, and limits added
/// since.
fn taken<'a>(
    decision: &'a Decision,
    limit: &NamedLimit,
) -> Option<(&'a NamedLimit, &'a pacegate_core::Answer)> {
    let mut answers = decision.limits().iter().map(|named| &**named).zip(decision.answers());
    answers.find(|(named, answer)| named.is_same(limit) && answer.allowed && !answer.degraded)
}

/// Charges to refund, each with the index of its store.
type Refunds = (Vec<OwnedCharge>, Vec<usize>);

/// Identifies a refund, and the store that records it.
struct RefundClaim {
    key: String,
    store: usize,
}

impl RefundClaim {
    fn new(check: &Check<'_>, decision: &Decision, store: usize) -> Self {
        // The checks of a chain are refunded one by one.
        let check = u128::from_be_bytes(check.fingerprint());
        Self { key: format!("{:016x}{check:032x}", decision.id()), store }
    }

    /// Records the refund. Returns whether it is the first one.
    async fn record(&self, stores: &Stores) -> Result<bool, CheckError> {
        let record = Idempotency {
            caller: "pacegate refund",
            key: &self.key,
            fingerprint: [0; 16],
            home: None,
            sender: None,
        };
        let command = Command { action: Action::Take { idempotency: Some(record) }, charges: &[] };
        let outcome = stores.backend(self.store).apply_or_fail(&command).await?;
        decided(outcome).map(|recorded| !recorded.replayed)
    }
}

/// Applies the refund in one command, unless it was applied before. Completes even if the caller
/// stops waiting.
async fn refund_once(
    stores: Stores,
    claim: RefundClaim,
    (charges, indices): Refunds,
) -> Result<Option<Outcome>, CheckError> {
    let work = detachable(|_| async move {
        if !claim.record(&stores).await? {
            return Ok(None);
        }
        let charges: SmallVec<[Charge<'_>; 2]> = charges.iter().map(OwnedCharge::as_charge).collect();
        let refund = Command { action: Action::Refund, charges: &charges };
        Ok(Some(stores.apply(&refund, &indices).await?))
    });
    work.await
}
