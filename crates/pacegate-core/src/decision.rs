//! Decisions: the answer of each limit of a request, and which limit is binding.

use std::time::Duration;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::limit::{Algorithm, Limit};
use crate::named;
use crate::standing::Standing;
use crate::time::Timestamp;

/// Why a request was denied, or was admitted without being counted as usual.
///
/// ```
/// use pacegate_core::Reason;
///
/// assert_eq!(Reason::LimitExceeded.name(), "LIMIT_EXCEEDED");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The limit has too little left now; a retry succeeds later.
    LimitExceeded,
    /// The cost is above the capacity; no retry can succeed.
    CostExceedsLimit,
    /// The store is unavailable and the limit fails open.
    FailOpen,
    /// The store is unavailable and the limit fails closed.
    FailClosed,
    /// The store is unavailable and the limit fell back to local counters.
    LocalFallback,
}

named!(Reason {
    LimitExceeded => "LIMIT_EXCEEDED",
    CostExceedsLimit => "COST_EXCEEDS_LIMIT",
    FailOpen => "FAIL_OPEN",
    FailClosed => "FAIL_CLOSED",
    LocalFallback => "LOCAL_FALLBACK",
});

/// The answer of one limit to one request.
///
/// ```
/// use pacegate_core::{Cost, Evaluation, Limit, Timestamp};
///
/// let limit = Limit::per_minute(10).build()?;
/// let evaluation = Evaluation::new(&limit, None, Timestamp::default(), Cost::ONE);
/// let (answer, _state) = evaluation.charge_fresh();
/// assert_eq!((answer.allowed, answer.remaining), (true, Some(9)));
/// # Ok::<(), pacegate_core::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether this limit allows the request; in a denied chain, another limit may deny it.
    pub allowed: bool,
    /// Whether this is a shadow limit: it is counted but never denies.
    pub shadow: bool,
    /// Whether this was decided without the store that holds the limit's counter.
    pub degraded: bool,
    /// The limit's algorithm.
    pub algorithm: Algorithm,
    /// The largest cost that a fresh counter allows at once.
    pub capacity: u32,
    /// The largest cost that would still be allowed now, rounded down; `None` when the store
    /// failed.
    pub remaining: Option<u32>,
    /// When the full capacity is available again if no further request is charged; the time of the
    /// decision when it already is. `None` when the store failed.
    pub reset_at: Option<Timestamp>,
    /// The first instant at which the same request is allowed; `None` when it is allowed now or
    /// never will be.
    pub retry_at: Option<Timestamp>,
    /// Why the request was denied, or allowed without being counted as usual.
    pub reason: Option<Reason>,
    /// The part of the cost that was not charged because it would exceed a debt of one capacity.
    pub uncharged: u32,
    /// When this limit was decided, if it is stored apart from the other limits of its request;
    /// `None` when that is [`ChainDecision::at`].
    pub at: Option<Timestamp>,
    /// How close the key is to its limit.
    pub standing: Standing,
    /// The standing at the last charge before this request. If it differs from the standing of a
    /// charged answer, the key changed state.
    pub previous_standing: Standing,
    /// For a leaky bucket: the delay in microseconds and the queue position, which is 0 without a
    /// queue.
    pub(crate) delay_micros: u64,
    pub(crate) queue_position: u32,
}

impl Answer {
    /// An answer that is not decided yet: it has what is remaining and the standing at the last
    /// charge. Stores that decide outside this process fill in the rest.
    #[inline(always)]
    pub fn undecided(limit: &Limit, remaining: u32, reset_at: Timestamp, stored: Standing) -> Self {
        let taken = Taken::new(limit, remaining, reset_at, stored, stored);
        Self { allowed: false, ..Self::charged(&taken) }
    }

    /// The answer of a limit whose store failed: `reason` alone decides, and the counts are
    /// unknown.
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
    pub fn charged(taken: &Taken) -> Self {
        Self {
            allowed: true,
            shadow: false,
            degraded: false,
            algorithm: taken.algorithm,
            capacity: taken.capacity,
            remaining: Some(taken.remaining),
            reset_at: Some(taken.reset_at),
            retry_at: None,
            reason: None,
            uncharged: 0,
            at: None,
            standing: taken.standing,
            previous_standing: taken.previous_standing,
            delay_micros: 0,
            queue_position: 0,
        }
    }

    /// Returns the time to pass to a refund of what this answer took under `limit`, decided at
    /// `decided_at`.
    ///
    /// For a window or a log this is when it was charged. What a bucket took drains only after
    /// everything that was in it before; until then all of it can be refunded, so this is when its
    /// draining begins.
    pub fn refund_at(&self, limit: &Limit, cost: Cost, decided_at: Timestamp) -> Timestamp {
        let at = self.at.unwrap_or(decided_at);
        let Some(reset_at) = self.reset_at.filter(|_| limit.algorithm().takes_burst()) else { return at };
        let scale = limit.scale();
        let ticks = (u128::from(cost.get()) * u128::from(scale.unit)).div_ceil(u128::from(scale.rate));
        // One tick earlier, because the reset is rounded up and a refund must never exceed the
        // charge.
        let own = (ticks + 1).saturating_mul(u128::from(scale.tick));
        let before_it = u128::from(reset_at.as_micros()).saturating_sub(own);
        // The cast cannot truncate: the time is at most `reset_at`.
        at.max(Timestamp::from_micros(before_it as u64))
    }

    /// Sets the request's delay and position in a leaky bucket's queue.
    pub fn set_queue(&mut self, delay: Duration, position: u32) {
        self.delay_micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.queue_position = position;
    }

    /// For a leaky bucket that allows the request: how long to wait in order to leave at a constant
    /// rate.
    pub fn delay(&self) -> Option<Duration> {
        (self.queue_position > 0).then_some(Duration::from_micros(self.delay_micros))
    }

    /// For a leaky bucket that allows the request: its position in the queue; 1 is the head.
    pub fn queue_position(&self) -> Option<u32> {
        (self.queue_position > 0).then_some(self.queue_position)
    }
}

/// The result of a charge: the part of an [`Answer`] that differs between charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    capacity: u32,
    remaining: u32,
    reset_at: Timestamp,
    algorithm: Algorithm,
    pub(crate) standing: Standing,
    previous_standing: Standing,
}

impl Taken {
    #[inline(always)]
    pub(crate) fn new(
        limit: &Limit,
        remaining: u32,
        reset_at: Timestamp,
        standing: Standing,
        previous_standing: Standing,
    ) -> Self {
        let (algorithm, capacity) = (limit.algorithm(), limit.capacity());
        Self { capacity, remaining, reset_at, algorithm, standing, previous_standing }
    }

    /// See [`Answer::reset_at`].
    #[inline]
    pub fn reset_at(&self) -> Timestamp {
        self.reset_at
    }
}

/// The answers of all limits of a request. One limit is the common case and needs no allocation.
pub type Answers = SmallVec<[Answer; 1]>;

/// Whether a request passes its chain of limits, with the answer of each limit.
///
/// The `Decision` of the `pacegate` crate adds the names of the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainDecision {
    /// Whether the request is admitted.
    pub allowed: bool,
    /// Whether this replays an earlier admission under the same idempotency key, so that nothing
    /// was charged.
    pub replayed: bool,
    /// When it was decided, by the store's clock.
    pub at: Timestamp,
    /// The answer of each limit, in the order in which the limits were passed.
    pub answers: Answers,
    binding: u32,
}

impl ChainDecision {
    /// Combines the answers of one request; `allowed` is whether the request was admitted.
    #[inline(always)]
    pub fn new(allowed: bool, at: Timestamp, answers: Answers) -> Self {
        let binding = if answers.len() < 2 { 0 } else { binding(allowed, &answers) };
        Self { allowed, replayed: false, at, answers, binding }
    }

    /// Turns a peek at the limits in force into the decision of a replayed request that was
    /// admitted under other limits: it stays admitted whatever remains now, and nothing is charged.
    #[must_use]
    pub fn into_replay(self) -> Self {
        let mut answers = self.answers;
        for answer in &mut answers {
            (answer.allowed, answer.reason, answer.retry_at) = (true, None, None);
        }
        Self { replayed: true, ..Self::new(true, self.at, answers) }
    }

    /// Returns the binding limit: of a denied request, the limit with the longest wait; of an
    /// allowed one, the limit with the smallest share remaining. `None` only when no limit applied.
    #[inline]
    pub fn binding(&self) -> Option<&Answer> {
        self.answers.get(self.binding as usize)
    }

    /// The index of the binding limit among the answers.
    pub fn binding_index(&self) -> usize {
        self.binding as usize
    }

    /// The time until the same request is allowed; `None` when it is allowed now or never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed {
            return None;
        }
        self.binding().and_then(|answer| answer.retry_at).map(|at| at.saturating_since(self.at))
    }

    /// What remains under the binding limit; `None` when no limit applied or its store failed.
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
    // `min_by` with a reversed order keeps the first of equals, so the order of the limits breaks
    // ties.
    let chosen = if allowed {
        candidates.min_by(|(_, a), (_, b)| {
            // An unknown count binds only if all counts are unknown.
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
    fn refund_of_a_busy_bucket_is_complete() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let limit = Limit::try_new(algorithm, 1_000, Duration::from_secs(1)).unwrap();
            let (_, without) =
                Evaluation::new(&limit, None, START, Cost::try_new(500).unwrap()).charge_fresh();
            let mut state = without.clone();
            let answer = Evaluation::new(&limit, Some(&without), START, Cost::ONE).charge(&mut state);
            // A hundred tokens have come back since; the refunded one is not among them.
            let later = START.saturating_add(Duration::from_millis(100));
            let taken_at = answer.refund_at(&limit, Cost::ONE, START);
            let (left, _) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(taken_at));
            let expected = Evaluation::new(&limit, Some(&without), later, Cost::ONE).answer(Some(&without));
            assert_eq!(
                (left.remaining, left.reset_at),
                (expected.remaining, expected.reset_at),
                "{algorithm}"
            );
            // Without the adjusted time, nothing seems left to refund.
            let mut state = without.clone();
            Evaluation::new(&limit, Some(&without), START, Cost::ONE).charge(&mut state);
            let (left, _) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(START));
            assert!(left.remaining < expected.remaining, "{algorithm}");
        }
    }

    #[test]
    fn refund_of_an_idle_bucket_skips_tokens_that_came_back() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let limit = Limit::try_new(algorithm, 10, Duration::from_secs(10)).unwrap();
            let (answer, mut state) = Evaluation::new(&limit, None, START, Cost::ONE).charge_fresh();
            // The token has come back, and another one is taken.
            let later = START.saturating_add(Duration::from_secs(5));
            let other = Evaluation::new(&limit, Some(&state.clone()), later, Cost::ONE).charge(&mut state);
            let taken_at = answer.refund_at(&limit, Cost::ONE, START);
            let (left, changed) = refund(&limit, Some(&mut state), later, Cost::ONE, Some(taken_at));
            assert!(!changed, "{algorithm}");
            assert_eq!(left.remaining, other.remaining, "{algorithm}");
        }
    }
}
