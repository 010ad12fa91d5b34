//! One request against one limit: evaluated first, and charged only if every limit of the request
//! allows it.

use crate::algorithm::{Counting, Reading, queue};
use crate::chain::{Demand, Fit};
use crate::cost::Cost;
use crate::decision::{Answer, Reason, Taken};
use crate::limit::Limit;
use crate::standing::Standing;
use crate::state::{State, standing_after};
use crate::time::Timestamp;

/// The evaluation of a request against one limit, before anything is charged.
///
/// ```
/// use pacegate_core::{Cost, Evaluation, Limit, Timestamp};
///
/// let limit = Limit::per_second(1).build()?;
/// let now = Timestamp::from_micros(5_000_000);
/// let first = Evaluation::new(&limit, None, now, Cost::ONE);
/// assert!(first.allows());
/// let state = first.into_state();
/// let second = Evaluation::new(&limit, Some(&state), now, Cost::ONE);
/// let answer = second.answer(Some(&state));
/// assert_eq!(answer.retry_at, Some(Timestamp::from_micros(6_000_000)));
/// # Ok::<(), pacegate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    limit: &'a Limit,
    now: Timestamp,
    /// What must fit.
    needed: Cost,
    /// What is taken if the request is admitted: less than the cost if that would exceed the debt
    /// bound.
    amount: Cost,
    /// The part of the cost that is not taken for that reason.
    uncharged: u32,
    reading: Reading,
    /// The standing stored at the last charge.
    stored: Standing,
    fits: bool,
    /// Whether the state's time is more than one window ahead.
    ahead: bool,
}

impl<'a> Evaluation<'a> {
    /// Evaluates `state` (absent means fresh) as it is at `now`. Changes nothing.
    #[inline]
    pub fn new(limit: &'a Limit, state: Option<&State>, now: Timestamp, cost: Cost) -> Self {
        Self::of(&Demand::new(limit, cost), state, now)
    }

    /// Like [`new`](Self::new), for a charge of which less than the whole cost has to fit.
    #[inline]
    pub fn of(demand: &Demand<'a>, state: Option<&State>, now: Timestamp) -> Self {
        let Demand { limit, cost, fit, .. } = *demand;
        let state = state.filter(|state| state.belongs_to(limit));
        let ahead = state.is_some_and(|state| state.is_ahead_of(now));
        let reading = match state {
            Some(state) if ahead => Reading::new(limit, Some(&state.moved_to(now)), now),
            state => Reading::new(limit, state, now),
        };
        let stored = state.map_or(Standing::Normal, State::standing);
        let needed = if fit == Fit::Whole && !cost.is_zero() { cost } else { Cost::ONE };
        let amount = if fit == Fit::Whole { cost } else { cost.at_most(reading.remaining_with_debt(limit)) };
        let fits = fit == Fit::Forced || (needed.get() <= limit.capacity() && reading.fits(limit, needed));
        let uncharged = cost.get() - amount.get();
        Self { limit, now, needed, amount, uncharged, reading, stored, fits, ahead }
    }

    /// Whether this limit allows the request.
    #[inline(always)]
    pub fn allows(&self) -> bool {
        self.fits
    }

    /// Whether an admitted request changes the state: it fits and takes something.
    #[inline(always)]
    pub(crate) fn charges(&self) -> bool {
        self.fits && !self.amount.is_zero()
    }

    /// Whether the state's time is more than one window ahead, so that a take
    /// [corrects](Self::correct_time) it.
    #[inline(always)]
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// The answer when nothing is charged: for a peek, or because some limit denies. `state` is the
    /// evaluated state.
    pub fn answer(&self, state: Option<&State>) -> Answer {
        let remaining = self.reading.remaining(self.limit);
        let reset_at = instant(self.reading.reset_at(self.limit), self.now);
        let mut answer = Answer::undecided(self.limit, remaining, reset_at, self.stored);
        answer.standing = self.standing();
        answer.allowed = self.fits;
        if self.fits {
            self.queue(&mut answer);
        } else if self.needed.get() > self.limit.capacity() {
            answer.reason = Some(Reason::CostExceedsLimit);
        } else {
            answer.reason = Some(Reason::LimitExceeded);
            answer.standing = Standing::Throttled;
            let retry_at = match state {
                Some(ahead) if ahead.is_ahead_of(self.now) => {
                    self.reading.retry_at(self.limit, Some(&ahead.moved_to(self.now)), self.needed)
                }
                state => self.reading.retry_at(self.limit, state, self.needed),
            };
            answer.retry_at = Some(Timestamp::from_micros(retry_at));
        }
        answer
    }

    /// Charges an existing state. Only valid for an evaluation of the same state that
    /// [allows](Self::allows) the request.
    #[inline]
    pub fn charge(&self, state: &mut State) -> Answer {
        let (answer, reading) = self.charged();
        self.correct_time(state);
        state.set(self.limit, &reading, answer.standing, self.amount);
        answer
    }

    /// For a take that does not charge `state`: corrects a counter whose time is more than one
    /// window ahead because the clock was set back. Without this, every later request would get the
    /// same wait again. Returns whether the state changed.
    #[inline]
    pub fn correct_time(&self, state: &mut State) -> bool {
        state.belongs_to(self.limit) && state.correct_time(self.now)
    }

    /// Charges an absent key: returns the answer and the new state.
    pub fn charge_fresh(&self) -> (Answer, State) {
        let (answer, reading) = self.charged();
        let state = State::written(self.limit, &reading, answer.standing, self.amount);
        (answer, state)
    }

    /// The state after charging an absent key.
    pub fn into_state(self) -> State {
        self.charge_fresh().1
    }

    /// Sets [`Answer::uncharged`]: a forced charge is admitted even if the debt bound leaves
    /// nothing to take.
    pub(crate) fn set_uncharged(&self, answer: &mut Answer) {
        answer.uncharged = if self.fits { self.uncharged } else { 0 };
    }

    #[inline]
    fn charged(&self) -> (Answer, Reading) {
        debug_assert!(self.fits, "only a cost that fits is charged");
        let reading = self.reading.charged(self.limit, self.amount);
        let remaining = reading.remaining(self.limit);
        let standing = standing_after(self.reading, remaining, self.limit, self.stored);
        let reset_at = instant(reading.reset_at(self.limit), self.now);
        let taken = Taken::new(self.limit, remaining, reset_at, standing, self.stored);
        let mut answer = Answer::charged(&taken);
        answer.uncharged = self.uncharged;
        self.queue(&mut answer);
        (answer, reading)
    }

    /// The standing before the request.
    #[inline]
    fn standing(&self) -> Standing {
        self.stored.settle(self.reading.remaining(self.limit), self.limit.capacity())
    }

    #[inline]
    fn queue(&self, answer: &mut Answer) {
        if let Reading::LeakyBucket(bucket) = &self.reading {
            let cost = if self.amount.is_zero() { self.needed } else { self.amount };
            queue(answer, bucket, self.limit, cost);
        }
    }
}

/// Refunds up to `cost` of what was taken, never beyond a fresh counter, and returns what remains
/// then.
///
/// `taken_at` is the time of the decision that took it; if unset, the newest charges are refunded.
/// Also returns whether the state changed: a state of another algorithm or window is left
/// unchanged.
pub fn refund(
    limit: &Limit,
    mut state: Option<&mut State>,
    now: Timestamp,
    cost: Cost,
    taken_at: Option<Timestamp>,
) -> (Answer, bool) {
    let changed = state.as_mut().is_some_and(|state| state.refund(limit, now, cost, taken_at));
    let state = state.as_deref();
    (Evaluation::new(limit, state, now, Cost::ONE).answer(state), changed)
}

#[inline(always)]
fn instant(micros: Option<u64>, otherwise: Timestamp) -> Timestamp {
    micros.map_or(otherwise, Timestamp::from_micros)
}
