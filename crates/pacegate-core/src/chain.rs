//! Chains: all charges of a request are evaluated before any is applied, so that either all of them
//! are applied or none is.
//!
//! A store locks the states of the keys, passes them as [`States`] and writes back what changed.
//! The store itself makes no decisions.

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::decision::{Answer, Answers, ChainDecision};
use crate::evaluation::{Evaluation, refund as refund_state};
use crate::limit::Limit;
use crate::state::State;
use crate::time::Timestamp;

/// How much of a charge has to fit into what remains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fit {
    /// The whole cost has to fit.
    #[default]
    Whole,
    /// A cost of 1 has to fit. What exceeds the remaining capacity becomes debt, up to one capacity
    /// (`overdraw: true`).
    Overdraw,
    /// Nothing has to fit: the charge is always applied, up to a debt of one capacity.
    Forced,
}

/// What one charge requires of its limit. The key it is counted under is known to the store only.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The limit in force now; the state may have been written under other numbers.
    pub limit: &'a Limit,
    /// How much is taken or refunded; [`Cost::ZERO`] checks whether 1 would fit.
    pub cost: Cost,
    /// How much of the cost has to fit.
    pub fit: Fit,
    /// For a refund, when the cost was taken; if unset, the newest charges are refunded.
    pub taken_at: Option<Timestamp>,
    /// Whether the limit is a shadow limit: it is charged while the cost fits but never denies.
    pub shadow: bool,
}

/// A charge as a store represents it, with its demand.
pub trait AsDemand {
    /// Returns what the charge requires of its limit.
    fn demand(&self) -> Demand<'_>;
}

impl AsDemand for Demand<'_> {
    #[inline]
    fn demand(&self) -> Demand<'_> {
        *self
    }
}

/// The state of each charge's key, locked until the decision is written back. Indices are those of
/// the demands.
pub trait States {
    /// The state of the key; `None` means a fresh one.
    fn state(&self, index: usize) -> Option<&State>;
    /// Applies `change` to the state of the key; returns `None` if it has no state. If `change`
    /// modifies the state, it also returns when the state equals a fresh one.
    fn update<T>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut State) -> (T, Option<Timestamp>),
    ) -> Option<T>;
    /// Stores a state for a key that had none. The state equals a fresh one at `fresh_at`.
    fn insert(&mut self, index: usize, state: State, fresh_at: Option<Timestamp>);
    /// The last charge before this one that has the same key. Usually all keys differ.
    fn same_key_before(&self, _index: usize) -> Option<usize> {
        None
    }
}

/// Charges every demand that fits if all enforced ones fit; otherwise charges nothing.
///
/// ```
/// use pacegate_core::{Cost, Demand, Limit, State, States, Timestamp, chain};
///
/// /// Two keys.
/// #[derive(Default)]
/// struct Pair([Option<State>; 2]);
///
/// impl States for Pair {
///     fn state(&self, index: usize) -> Option<&State> {
///         self.0[index].as_ref()
///     }
///     fn update<T>(
///         &mut self,
///         index: usize,
///         change: impl FnOnce(&mut State) -> (T, Option<Timestamp>),
///     ) -> Option<T> {
///         self.0[index].as_mut().map(|state| change(state).0)
///     }
///     fn insert(&mut self, index: usize, state: State, _: Option<Timestamp>) {
///         self.0[index] = Some(state);
///     }
/// }
///
/// let (requests, tokens) = (Limit::per_minute(10).build()?, Limit::per_minute(1_000).build()?);
/// let demands = [Demand::new(&requests, Cost::ONE), Demand::new(&tokens, Cost::try_new(600)?)];
/// let (mut states, now) = (Pair::default(), Timestamp::from_micros(0));
/// assert!(chain::take(&demands, &mut states, now).allowed);
/// let denied = chain::take(&demands, &mut states, now);
/// assert!(!denied.allowed);
/// assert_eq!(denied.answers[0].remaining, Some(9), "a denied chain charges nothing");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn take(charges: &[impl AsDemand], states: &mut impl States, now: Timestamp) -> ChainDecision {
    decide(charges, states, now, true)
}

/// [`take`] for a request with a single charge whose key has a state. If the state changes,
/// `changed` receives the time at which it equals a fresh one.
#[inline(always)]
pub fn take_one(
    demand: &Demand<'_>,
    state: &mut State,
    now: Timestamp,
    changed: impl FnOnce(Option<Timestamp>),
) -> Answer {
    let evaluation = Evaluation::of(demand, Some(state), now);
    let mut answer;
    if evaluation.charges() {
        answer = evaluation.charge(state);
        changed(answer.reset_at);
    } else {
        let corrected = evaluation.is_ahead() && evaluation.correct_time(state);
        answer = evaluation.answer(Some(state));
        evaluation.set_uncharged(&mut answer);
        if corrected {
            changed(answer.reset_at);
        }
    }
    answer.shadow = demand.shadow;
    answer
}

/// Decides like [`take`], but changes nothing.
pub fn peek(charges: &[impl AsDemand], states: &mut impl States, now: Timestamp) -> ChainDecision {
    decide(charges, states, now, false)
}

/// Refunds each cost, never beyond a fresh counter, and returns what a peek would.
pub fn refund(charges: &[impl AsDemand], states: &mut impl States, now: Timestamp) -> ChainDecision {
    let mut answers = Answers::new();
    for (index, charge) in charges.iter().enumerate() {
        let Demand { limit, cost, taken_at, shadow, .. } = charge.demand();
        let refunded = states.update(index, |state| {
            let (answer, changed) = refund_state(limit, Some(state), now, cost, taken_at);
            (answer, answer.reset_at.filter(|_| changed))
        });
        let mut answer = refunded.unwrap_or_else(|| refund_state(limit, None, now, cost, taken_at).0);
        answer.shadow = shadow;
        answers.push(answer);
    }
    let allowed = answers.iter().all(|answer| answer.allowed || answer.shadow);
    ChainDecision::new(allowed, now, answers)
}

fn decide(charges: &[impl AsDemand], states: &mut impl States, now: Timestamp, take: bool) -> ChainDecision {
    let mut trials: SmallVec<[Trial<'_>; 4]> = SmallVec::new();
    let mut allowed = true;
    for (index, charge) in charges.iter().enumerate() {
        let demand = charge.demand();
        let stored = states.state(index);
        let before = states.same_key_before(index).and_then(|earlier| trials[earlier].after(stored));
        let evaluation = Evaluation::of(&demand, before.as_ref().or(stored), now);
        allowed &= demand.shadow || evaluation.allows();
        trials.push(Trial { evaluation, before, shadow: demand.shadow });
    }
    let mut answers = Answers::new();
    for (index, Trial { evaluation, before, shadow }) in trials.iter().enumerate() {
        let mut answer = if take && allowed && evaluation.charges() {
            let charged = states.update(index, |state| {
                let answer = evaluation.charge(state);
                (answer, answer.reset_at)
            });
            charged.unwrap_or_else(|| {
                let (answer, state) = evaluation.charge_fresh();
                states.insert(index, state, answer.reset_at);
                answer
            })
        } else {
            let mut answer = evaluation.answer(before.as_ref().or(states.state(index)));
            if take && allowed {
                evaluation.set_uncharged(&mut answer);
            }
            if take && evaluation.is_ahead() {
                states
                    .update(index, |state| ((), answer.reset_at.filter(|_| evaluation.correct_time(state))));
            }
            answer
        };
        answer.shadow = *shadow;
        answers.push(answer);
    }
    ChainDecision::new(allowed, now, answers)
}

impl<'a> Demand<'a> {
    /// An enforced demand whose whole cost has to fit.
    pub const fn new(limit: &'a Limit, cost: Cost) -> Self {
        Self { limit, cost, fit: Fit::Whole, taken_at: None, shadow: false }
    }
}

/// The evaluation of a demand, and the state it was made from if that is not the stored one.
struct Trial<'a> {
    evaluation: Evaluation<'a>,
    before: Option<State>,
    shadow: bool,
}

impl Trial<'_> {
    /// The state after this charge, if it is applied.
    fn after(&self, stored: Option<&State>) -> Option<State> {
        let mut state = self.before.as_ref().or(stored).cloned();
        match &mut state {
            _ if !self.evaluation.charges() => {}
            Some(state) => {
                self.evaluation.charge(state);
            }
            None => state = Some(self.evaluation.charge_fresh().1),
        }
        state
    }
}
