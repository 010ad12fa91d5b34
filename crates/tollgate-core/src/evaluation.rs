//! One request against one limit: looked at first, charged only once every limit of the request agrees.

use crate::algorithm::{Queued, Reading};
use crate::cost::Cost;
use crate::decision::{Answer, Reason};
use crate::limit::Limit;
use crate::standing::Standing;
use crate::state::State;
use crate::time::Timestamp;

/// What a limit says to a request, before anything is charged.
///
/// ```
/// use tollgate_core::{Cost, Evaluation, Limit, Timestamp};
///
/// let limit = Limit::per_second(1)?;
/// let now = Timestamp::from_micros(5_000_000);
/// let first = Evaluation::new(&limit, None, now, Cost::ONE);
/// assert!(first.allows());
/// let state = first.into_state();
/// let second = Evaluation::new(&limit, Some(&state), now, Cost::ONE);
/// let answer = second.answer(Some(&state));
/// assert_eq!(answer.retry_at, Some(Timestamp::from_micros(6_000_000)));
/// # Ok::<(), tollgate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    limit: &'a Limit,
    now: Timestamp,
    cost: Cost,
    reading: Reading,
    remaining: u32,
    /// As stored, for the report of a transition.
    stored: Standing,
    standing: Standing,
    fits: bool,
}

impl<'a> Evaluation<'a> {
    /// Looks at `state` (absent means fresh) as it is at `now`. Changes nothing.
    #[inline]
    pub fn new(limit: &'a Limit, state: Option<&State>, now: Timestamp, cost: Cost) -> Self {
        let reading = Reading::new(limit, state, now);
        let remaining = reading.remaining(limit);
        let stored = match state {
            Some(state) if state.belongs_to(limit) => state.standing(),
            _ => Standing::Normal,
        };
        Self {
            limit,
            now,
            cost,
            reading,
            remaining,
            stored,
            standing: stored.settle(remaining, limit.capacity()),
            fits: cost.get() <= limit.capacity() && reading.fits(limit, cost),
        }
    }

    /// Whether this limit has room for the request.
    #[inline]
    pub fn allows(&self) -> bool {
        self.fits
    }

    /// The answer when nothing is charged: for a peek, or because some limit denies. `state` is what was looked at.
    pub fn answer(&self, state: Option<&State>) -> Answer {
        let mut answer = self.blank();
        answer.allowed = self.fits;
        if self.fits {
            answer.queued(self.queued());
        } else if self.cost.get() > self.limit.capacity() {
            answer.reason = Some(Reason::CostExceedsLimit);
        } else {
            answer.reason = Some(Reason::LimitExceeded);
            answer.standing = Standing::Throttled;
            let retry_at = self.reading.retry_at(self.limit, state, self.cost);
            answer.retry_at = Some(Timestamp::from_micros(retry_at));
        }
        answer
    }

    /// Charges an existing state. Only for an evaluation of that very state that [allows](Self::allows) the request.
    #[inline]
    pub fn charge(&self, state: &mut State) -> Answer {
        let (answer, reading) = self.charged();
        state.set(self.limit, &reading, answer.standing, self.cost);
        answer
    }

    /// Charges an absent key: the answer, and the state to keep from now on.
    #[inline]
    pub fn charge_fresh(&self) -> (Answer, State) {
        let (answer, reading) = self.charged();
        let state = State::written(self.limit, &reading, answer.standing, self.cost);
        (answer, state)
    }

    /// The state after charging an absent key.
    pub fn into_state(self) -> State {
        self.charge_fresh().1
    }

    #[inline]
    fn charged(&self) -> (Answer, Reading) {
        debug_assert!(self.fits, "only what fits is charged");
        let reading = self.reading.charged(self.limit, self.cost);
        let mut answer = self.blank();
        answer.allowed = true;
        answer.remaining = reading.remaining(self.limit);
        answer.standing = self.standing.settle(answer.remaining, self.limit.capacity());
        answer.reset_at = instant(reading.reset_at(self.limit), self.now);
        answer.queued(self.queued());
        (answer, reading)
    }

    #[inline]
    fn queued(&self) -> Option<Queued> {
        match &self.reading {
            Reading::LeakyBucket(bucket) => Some(Queued::behind(bucket, self.limit, self.cost)),
            _ => None,
        }
    }

    /// An answer with everything that does not depend on whether the request is charged.
    #[inline]
    fn blank(&self) -> Answer {
        Answer {
            allowed: false,
            shadow: false,
            algorithm: self.limit.algorithm(),
            capacity: self.limit.capacity(),
            remaining: self.remaining,
            reset_at: instant(self.reading.reset_at(self.limit), self.now),
            retry_at: None,
            reason: None,
            standing: self.standing,
            previous_standing: self.stored,
            delay: None,
            queue_position: None,
        }
    }
}

/// Gives back up to `cost` of what was taken, never beyond a fresh counter, and answers with what is left then.
///
/// `taken_at` is the time of the decision that took it. Without it, the newest charges are given back. `None` as the new state
/// means that nothing changes.
pub fn refund(
    limit: &Limit,
    state: Option<&State>,
    now: Timestamp,
    cost: Cost,
    taken_at: Option<Timestamp>,
) -> (Answer, Option<State>) {
    let mut changed = state.cloned();
    let written = changed.as_mut().is_some_and(|state| state.refund(limit, now, cost, taken_at).is_some());
    let after = if written { changed.as_ref() } else { state };
    let evaluation = Evaluation::new(limit, after, now, Cost::ONE);
    (evaluation.answer(after), changed.filter(|_| written))
}

/// When `state` equals a fresh one, so that a store may forget it; `limit` is the one it is read under.
#[inline]
pub fn fresh_at(limit: &Limit, state: &State, now: Timestamp) -> Timestamp {
    instant(Reading::new(limit, Some(state), now).reset_at(limit), now)
}

#[inline]
fn instant(micros: Option<u64>, otherwise: Timestamp) -> Timestamp {
    micros.map_or(otherwise, Timestamp::from_micros)
}
