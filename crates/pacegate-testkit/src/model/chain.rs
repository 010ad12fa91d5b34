//! Chains: one request is charged to several keys, or to none.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{ModelAnswer, ModelCharge, ModelDecision, ModelFit, ModelKey};

/// A whole store: the state of every key by name.
#[derive(Clone, Debug, Default)]
pub struct Model {
    keys: BTreeMap<String, ModelKey>,
}

impl Model {
    /// A store in which every key is fresh.
    #[must_use]
    pub fn new() -> Model {
        Model::default()
    }

    /// Charges every limit that allows it, if all enforced ones do.
    pub fn take(&mut self, now: u64, charges: &[ModelCharge]) -> ModelDecision {
        for charge in charges {
            if let Some(key) = self.keys.get_mut(&charge.key) {
                key.correct(now, &charge.limit);
            }
        }
        let looked_at = self.peek(now, charges);
        if !looked_at.allowed {
            return looked_at;
        }
        let take = |charge: &ModelCharge| {
            let key = self.keys.entry(charge.key.clone()).or_default();
            key.take_as(now, charge.cost, charge.fit, &charge.limit)
        };
        decide(charges, charges.iter().map(take).collect())
    }

    /// Returns what a take would return, without charging anything.
    #[must_use]
    pub fn peek(&self, now: u64, charges: &[ModelCharge]) -> ModelDecision {
        let peek = |charge: &ModelCharge| {
            let fresh = ModelKey::new();
            let key = self.keys.get(&charge.key).unwrap_or(&fresh);
            key.peek_as(now, charge.cost, charge.fit, &charge.limit)
        };
        decide(charges, charges.iter().map(peek).collect())
    }

    /// Refunds up to the cost on every key, then returns the same as a peek of cost one.
    pub fn refund(&mut self, now: u64, charges: &[ModelCharge]) -> ModelDecision {
        for charge in charges {
            if let Some(key) = self.keys.get_mut(&charge.key) {
                key.refund(now, charge.cost, charge.taken_at, &charge.limit);
            }
        }
        let one = |charge: &ModelCharge| ModelCharge { cost: 1, fit: ModelFit::Whole, ..charge.clone() };
        self.peek(now, &charges.iter().map(one).collect::<Vec<_>>())
    }

    /// Resets the named keys.
    pub fn reset(&mut self, names: &[String]) {
        for name in names {
            self.keys.remove(name);
        }
    }
}

fn decide(charges: &[ModelCharge], answers: Vec<ModelAnswer>) -> ModelDecision {
    let every = 0..answers.len();
    let enforced: Vec<usize> = every.clone().filter(|index| !charges[*index].shadow).collect();
    let denied: Vec<usize> = (enforced.iter().copied()).filter(|index| !answers[*index].allowed).collect();
    let allowed = denied.is_empty();
    let binding = if !allowed {
        // `min_by_key` returns the first of equal elements, as ties require.
        let latest_first = |index: &usize| {
            let answer = &answers[*index];
            Reverse((answer.never_fits, answer.retry_at))
        };
        denied.into_iter().min_by_key(latest_first)
    } else if enforced.is_empty() {
        least_remaining(&answers, every.collect())
    } else {
        least_remaining(&answers, enforced)
    };
    ModelDecision { allowed, binding: binding.unwrap_or(0), answers }
}

/// The first of the `candidates` with the smallest share of its capacity remaining.
fn least_remaining(answers: &[ModelAnswer], candidates: Vec<usize>) -> Option<usize> {
    candidates.into_iter().min_by(|left, right| {
        let (left, right) = (&answers[*left], &answers[*right]);
        let left_share = u128::from(left.remaining) * u128::from(right.capacity);
        let right_share = u128::from(right.remaining) * u128::from(left.capacity);
        left_share.cmp(&right_share)
    })
}
