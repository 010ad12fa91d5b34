//! What a caller is told: every limit's own answer, and which of them binds.

use std::time::Duration;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::limit::{Algorithm, Limit};
use crate::named;
use crate::standing::Standing;
use crate::time::Timestamp;

/// Why a request was denied, or admitted without being counted as usual.
///
/// ```
/// use pacegate_core::Reason;
///
/// assert_eq!(Reason::LimitExceeded.name(), "LIMIT_EXCEEDED");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The limit has no room now; waiting helps.
    LimitExceeded,
    /// The cost is above the capacity; waiting never helps.
    CostExceedsLimit,
    /// The store could not say, and the limit lets requests pass then.
    FailOpen,
    /// The store could not say, and the limit denies then.
    FailClosed,
    /// The store could not say; counters in this process decided.
    LocalFallback,
}

named!(Reason {
    LimitExceeded => "LIMIT_EXCEEDED",
    CostExceedsLimit => "COST_EXCEEDS_LIMIT",
    FailOpen => "FAIL_OPEN",
    FailClosed => "FAIL_CLOSED",
    LocalFallback => "LOCAL_FALLBACK",
});

/// What one limit answers to a request.
///
/// ```
/// use pacegate_core::{Cost, Evaluation, Limit, Timestamp};
///
/// let limit = Limit::per_minute(10).build()?;
/// let (answer, _state) = Evaluation::new(&limit, None, Timestamp::default(), Cost::ONE).charge_fresh();
/// assert_eq!((answer.allowed, answer.remaining), (true, Some(9)));
/// # Ok::<(), pacegate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether this limit has room; in a denied chain others may have none.
    pub allowed: bool,
    /// Whether this limit only watches: it is counted but never denies.
    pub shadow: bool,
    /// Whether this was decided without the store that the limit is counted in.
    pub degraded: bool,
    /// How the limit counts.
    pub algorithm: Algorithm,
    /// How much can be taken at once from a fresh counter.
    pub capacity: u32,
    /// What cost would still be allowed now, rounded down; `None` when nobody knows, because the store failed.
    pub remaining: Option<u32>,
    /// When the whole capacity is back if nothing more comes; the present when it is there already; `None` when nobody knows.
    pub reset_at: Option<Timestamp>,
    /// The first instant at which the same request is allowed; `None` when it is allowed now or never.
    pub retry_at: Option<Timestamp>,
    /// Why it is denied.
    pub reason: Option<Reason>,
    /// What was not charged of the cost, because more would exceed a debt of one capacity.
    pub uncharged: u32,
    /// When it was decided, for a limit that is kept apart from the others of its request; `None` when that is [`ChainDecision::at`].
    pub at: Option<Timestamp>,
    /// How close the key is to its limit.
    pub standing: Standing,
    /// The standing at the last charge before this request: if it differs from that of a charged answer, the key changed state.
    pub previous_standing: Standing,
    /// For a leaky bucket: the delay in microseconds, and the place in the queue, which is 0 where there is no queue.
    pub(crate) delay_micros: u64,
    pub(crate) queue_position: u32,
}

impl Answer {
    /// The answer to a request that is not decided yet: what is left, and how the key stood at its last charge. Stores that decide elsewhere fill in
    /// the rest.
    #[inline(always)]
    pub fn undecided(limit: &Limit, remaining: u32, reset_at: Timestamp, stored: Standing) -> Self {
        Self {
            allowed: false,
            shadow: false,
            degraded: false,
            algorithm: limit.algorithm(),
            capacity: limit.capacity(),
            remaining: Some(remaining),
            reset_at: Some(reset_at),
            retry_at: None,
            reason: None,
            uncharged: 0,
            at: None,
            standing: stored,
            previous_standing: stored,
            delay_micros: 0,
            queue_position: 0,
        }
    }

    /// The answer of a limit whose store failed: it passes or not for that `reason` alone, and no number is known.
    pub fn unknown(limit: &Limit, allowed: bool, reason: Reason) -> Self {
        let mut answer = Self::undecided(limit, 0, Timestamp::default(), Standing::Normal);
        answer.allowed = allowed;
        answer.degraded = true;
        (answer.remaining, answer.reset_at) = (None, None);
        answer.reason = Some(reason);
        answer
    }

    /// The answer to a request that was charged.
    #[inline(always)]
    pub fn charged(limit: &Limit, taken: &Taken) -> Self {
        let mut answer = Self::undecided(limit, taken.remaining, taken.reset_at, taken.previous_standing);
        answer.allowed = true;
        answer.standing = taken.standing;
        answer
    }

    /// The time to give for a refund of what this answer took under `limit`, decided at `decided_at`.
    ///
    /// It is when a window or a log was charged. What a bucket took comes back by itself only after everything
    /// that was in it before: until then all of it can be given back, and this is that time.
    pub fn refund_at(&self, limit: &Limit, cost: Cost, decided_at: Timestamp) -> Timestamp {
        let at = self.at.unwrap_or(decided_at);
        let Some(reset_at) = self.reset_at.filter(|_| limit.algorithm().takes_burst()) else { return at };
        let scale = limit.scale();
        let ticks = (u128::from(cost.get()) * u128::from(scale.unit)).div_ceil(u128::from(scale.rate));
        // A tick earlier, because the reset is rounded up: never more may be given back than was taken.
        let own = (ticks + 1).saturating_mul(u128::from(scale.tick));
        let before_it = u128::from(reset_at.as_micros()).saturating_sub(own);
        // Not more than it was.
        at.max(Timestamp::from_micros(before_it as u64))
    }

    /// Puts the request in a leaky bucket's queue.
    pub fn set_queue(&mut self, delay: Duration, position: u32) {
        self.delay_micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.queue_position = position;
    }

    /// For a leaky bucket with room: how long to wait in order to leave at a constant rate.
    pub fn delay(&self) -> Option<Duration> {
        (self.queue_position > 0).then_some(Duration::from_micros(self.delay_micros))
    }

    /// For a leaky bucket with room: the place in the queue, 1 being its head.
    pub fn queue_position(&self) -> Option<u32> {
        (self.queue_position > 0).then_some(self.queue_position)
    }
}

/// What a charge leaves behind: the part of an [`Answer`] that the limit does not know by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// See [`Answer::remaining`].
    pub remaining: u32,
    /// See [`Answer::standing`].
    pub standing: Standing,
    /// See [`Answer::previous_standing`].
    pub previous_standing: Standing,
    /// See [`Answer::reset_at`].
    pub reset_at: Timestamp,
}

/// The answers of all limits of a request; one is the common case and needs no allocation.
pub type Answers = SmallVec<[Answer; 1]>;

/// Whether a request may pass its chain of limits, and the answer of each. The `pacegate` crate gives it the names of the
/// limits, as its `Decision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainDecision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Whether this repeats an earlier admission under the same idempotency key and took nothing.
    pub replayed: bool,
    /// When it was decided, by the store's clock.
    pub at: Timestamp,
    /// Every limit's own answer, in the order the limits were named.
    pub answers: Answers,
    binding: u32,
}

impl ChainDecision {
    /// Combines the answers of one request. `allowed` says whether it was admitted.
    #[inline(always)]
    pub fn new(allowed: bool, at: Timestamp, answers: Answers) -> Self {
        let binding = if answers.len() < 2 { 0 } else { binding(allowed, &answers) };
        Self { allowed, replayed: false, at, answers, binding }
    }

    /// The decision on a request that was charged under its only limit.
    #[inline(always)]
    pub fn charged(at: Timestamp, limit: &Limit, taken: &Taken) -> Self {
        let answers = Answers::from_buf([Answer::charged(limit, taken)]);
        Self { allowed: true, replayed: false, at, answers, binding: 0 }
    }

    /// A look at the limits in force as the answer to a repeated request that was admitted under others: it stays
    /// admitted whatever is left now, and takes nothing.
    #[must_use]
    pub fn into_replay(self) -> Self {
        let mut answers = self.answers;
        for answer in &mut answers {
            (answer.allowed, answer.reason, answer.retry_at) = (true, None, None);
        }
        Self { replayed: true, ..Self::new(true, self.at, answers) }
    }

    /// The limit that binds: denied, the one to wait longest for; allowed, the one with the least left in proportion.
    /// `None` only when no limit applied.
    #[inline]
    pub fn binding(&self) -> Option<&Answer> {
        self.answers.get(self.binding as usize)
    }

    /// The place of the binding limit among the answers.
    pub fn binding_index(&self) -> usize {
        self.binding as usize
    }

    /// How long until the same request is allowed; `None` when it is allowed, or never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed {
            return None;
        }
        self.binding().and_then(|answer| answer.retry_at).map(|at| at.saturating_since(self.at))
    }

    /// What the binding limit still allows; `None` when no limit applied or nobody knows.
    pub fn remaining(&self) -> Option<u32> {
        self.binding().and_then(|answer| answer.remaining)
    }

    /// Whether any limit was decided without its store.
    pub fn degraded(&self) -> bool {
        self.answers.iter().any(|answer| answer.degraded)
    }
}

fn binding(allowed: bool, answers: &[Answer]) -> u32 {
    let enforced = |answer: &&Answer| !answer.shadow;
    let all_shadow = !answers.iter().any(|answer| enforced(&answer));
    let candidates = answers.iter().enumerate().filter(|(_, answer)| all_shadow || enforced(answer));
    // `min_by` and a reversed order keep the first of equals, so the order of the limits decides ties.
    let chosen = if allowed {
        candidates.min_by(|(_, a), (_, b)| {
            // What nobody knows binds only where nothing is known.
            let left = a.remaining.map(|remaining| u64::from(remaining) * u64::from(b.capacity));
            let right = b.remaining.map(|remaining| u64::from(remaining) * u64::from(a.capacity));
            left.unwrap_or(u64::MAX).cmp(&right.unwrap_or(u64::MAX))
        })
    } else {
        let wait = |answer: &Answer| answer.retry_at.map_or(u64::MAX, Timestamp::as_micros);
        candidates.filter(|(_, answer)| !answer.allowed).min_by(|(_, a), (_, b)| wait(b).cmp(&wait(a)))
    };
    chosen.map_or(0, |(index, _)| index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{Evaluation, refund};

    const START: Timestamp = Timestamp::from_micros(1_000_000_000);

    #[test]
    fn a_refund_of_a_busy_bucket_is_whole() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let limit = Limit::try_new(algorithm, 1_000, Duration::from_secs(1)).unwrap();
            let (_, without) =
                Evaluation::new(&limit, None, START, Cost::try_new(500).unwrap()).charge_fresh();
            let mut state = without.clone();
            let answer = Evaluation::new(&limit, Some(&without), START, Cost::ONE).charge(&mut state);
            // A hundred tokens came back since, none of them the one that is given back.
            let later = START.saturating_add(Duration::from_millis(100));
            let taken_at = answer.refund_at(&limit, Cost::ONE, START);
            let (left, _) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(taken_at));
            let expected = Evaluation::new(&limit, Some(&without), later, Cost::ONE).answer(Some(&without));
            assert_eq!(
                (left.remaining, left.reset_at),
                (expected.remaining, expected.reset_at),
                "{algorithm}"
            );
            // Without it, nothing seems to be out any more.
            let mut state = without.clone();
            Evaluation::new(&limit, Some(&without), START, Cost::ONE).charge(&mut state);
            let (left, _) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(START));
            assert!(left.remaining < expected.remaining, "{algorithm}");
        }
    }

    #[test]
    fn a_refund_of_an_idle_bucket_gives_nothing_that_came_back_already() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let limit = Limit::try_new(algorithm, 10, Duration::from_secs(10)).unwrap();
            let (answer, mut state) = Evaluation::new(&limit, None, START, Cost::ONE).charge_fresh();
            // The token is back, and another one is taken.
            let later = START.saturating_add(Duration::from_secs(5));
            let other = Evaluation::new(&limit, Some(&state.clone()), later, Cost::ONE).charge(&mut state);
            let taken_at = answer.refund_at(&limit, Cost::ONE, START);
            let (left, changed) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(taken_at));
            assert!(!changed, "{algorithm}");
            assert_eq!(left.remaining, other.remaining, "{algorithm}");
        }
    }
}
