//! A check with the limits that apply to it, ready for a store.

use std::borrow::Cow;

use pacegate_core::{Cost, Identity, Key};
use pacegate_memory::MemoryStore;
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, StoreError};
use smallvec::SmallVec;

use crate::check::{Check, Costs};
use crate::decision::{Charged, Decision};
use crate::error::CheckError;
use crate::rule::NamedLimit;
use crate::ruleset::Applied;

/// What is done with the limits.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Take,
    Peek,
    Reset,
}

pub(crate) fn command<'a>(check: &'a Check<'_>, act: Act, charges: &'a [Charge<'a>]) -> Command<'a> {
    let action = match act {
        Act::Take => Action::Take {
            idempotency: check.idempotency.as_ref().map(|(caller, key)| Idempotency {
                caller,
                key,
                fingerprint: check.fingerprint(),
                // Independent of the order of the identities, and of which of them have limits.
                home: check
                    .identities
                    .iter()
                    .min()
                    .map(|(dimension, identifier)| Identity { dimension, identifier }),
                sender: check.sender,
            }),
        },
        Act::Peek => Action::peek(),
        Act::Reset => Action::ResetVariants,
    };
    Command { action, charges }
}

/// A check with the limits that apply to it.
pub(crate) struct Resolved<'a> {
    pub(crate) applied: Applied<'a>,
    pub(crate) endpoint: Option<Cow<'a, str>>,
    pub(crate) costs: Costs<'a>,
}

impl Resolved<'_> {
    pub(crate) fn charges(&self) -> SmallVec<[Charge<'_>; 2]> {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let charges = self.applied.iter().map(|(limit, identifier)| {
            // A limit does not apply if the check has no cost in its unit.
            let cost = limit.cost_of(&self.costs).unwrap_or(Cost::ZERO);
            charge(limit, identifier, endpoint, cost)
        });
        charges.collect()
    }

    /// Returns the index of the store of each charge.
    pub(crate) fn stores(&self) -> SmallVec<[usize; 2]> {
        self.applied.iter().map(|(limit, _)| limit.store).collect()
    }

    /// Returns the store of all charges; `None` if there are several.
    pub(crate) fn only_store(&self) -> Option<usize> {
        let first = self.applied.first().map_or(0, |(limit, _)| limit.store);
        self.applied.iter().all(|(limit, _)| limit.store == first).then_some(first)
    }

    /// Decides with a store in this process.
    pub(crate) fn run_in(
        mut self,
        store: &MemoryStore,
        check: &Check<'_>,
        act: Act,
    ) -> Result<Decision, CheckError> {
        let charges = self.charges();
        // The most common case: one limit that fits, under a known key.
        if let ([charge], Act::Take, None) = (&*charges, act, &check.idempotency)
            && !charge.shadow
            && let Some((at, taken)) = store.take_known(charge)
        {
            drop(charges);
            let (limit, _) = self.applied.swap_remove(0);
            return Ok(Charged::new(at, taken, limit).into());
        }
        let outcome = store.apply_now(&command(check, act, &charges), None)?;
        drop(charges);
        self.decision(outcome)
    }

    pub(crate) fn decision(self, outcome: Outcome) -> Result<Decision, CheckError> {
        let limits = self.applied.into_iter().map(|(limit, _)| limit).collect();
        decided(outcome).map(|decision| Decision::of(decision, limits))
    }
}

#[inline(always)]
pub(crate) fn charge<'a>(
    limit: &'a NamedLimit,
    identifier: &'a str,
    endpoint: &'a str,
    cost: Cost,
) -> Charge<'a> {
    Charge {
        key: Key::new(&limit.counter, identifier, endpoint),
        limit: &limit.limit,
        cost,
        fit: limit.fit(),
        taken_at: None,
        shadow: limit.is_shadow(),
        on_store_error: limit.on_store_error,
    }
}

#[inline]
pub(crate) fn decided(outcome: Outcome) -> Result<pacegate_core::ChainDecision, CheckError> {
    match outcome {
        Outcome::Decided(decision) => Ok(decision),
        Outcome::Mismatch => Err(CheckError::IdempotencyMismatch),
        _ => Err(StoreError::missing_outcome().into()),
    }
}

#[cfg(test)]
mod tests {
    use pacegate_core::Timestamp;

    use super::*;

    #[test]
    fn outcome_of_another_action_is_a_store_error() {
        let reset = Outcome::Reset { at: Timestamp::default() };
        assert!(matches!(decided(reset), Err(CheckError::Store(_))));
        assert!(matches!(decided(Outcome::Mismatch), Err(CheckError::IdempotencyMismatch)));
    }
}
