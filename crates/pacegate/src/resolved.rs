//! A check with the limits that apply to it, as a store is asked about it.

use std::borrow::Cow;

use pacegate_core::{Identity, Key};
use pacegate_memory::MemoryStore;
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome};
use smallvec::SmallVec;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;
use crate::rule::{Mode, NamedLimit};
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
                // The same whatever order they are given in, and whichever of them have limits.
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
    Command { action, charges, cost: check.cost }
}

/// A check with the limits that apply to it.
pub(crate) struct Resolved<'a> {
    pub(crate) applied: Applied<'a>,
    pub(crate) endpoint: Option<Cow<'a, str>>,
}

impl Resolved<'_> {
    pub(crate) fn charges(&self) -> SmallVec<[Charge<'_>; 2]> {
        let endpoint = self.endpoint.as_deref().unwrap_or_default();
        let charges = self.applied.iter().map(|(limit, identifier)| charge(limit, identifier, endpoint));
        charges.collect()
    }

    /// Where each charge is kept.
    pub(crate) fn places(&self) -> SmallVec<[usize; 2]> {
        self.applied.iter().map(|(limit, _)| limit.store).collect()
    }

    /// Where all charges are kept; `None` when they are spread over several stores.
    pub(crate) fn only_place(&self) -> Option<usize> {
        let first = self.applied.first().map_or(0, |(limit, _)| limit.store);
        self.applied.iter().all(|(limit, _)| limit.store == first).then_some(first)
    }

    /// Has a store in this process decide.
    pub(crate) fn run_in(
        self,
        store: &MemoryStore,
        check: &Check<'_>,
        act: Act,
    ) -> Result<Decision, CheckError> {
        let charges = self.charges();
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
pub(crate) fn charge<'a>(limit: &'a NamedLimit, identifier: &'a str, endpoint: &'a str) -> Charge<'a> {
    Charge {
        key: Key::new(&limit.counter, identifier, endpoint),
        limit: &limit.limit,
        shadow: limit.mode == Mode::Shadow,
        on_store_error: limit.on_store_error,
    }
}

#[inline]
pub(crate) fn decided(outcome: Outcome) -> Result<pacegate_core::Decision, CheckError> {
    match outcome {
        Outcome::Decided(decision) => Ok(decision),
        // Stores answer a take, a peek and a refund with a decision or with this.
        _ => Err(CheckError::IdempotencyMismatch),
    }
}
