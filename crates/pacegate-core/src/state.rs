//! The state of one key as stores hold it, and its versioned byte encoding.

mod encoding;

use crate::algorithm::{Bucket, Counting, FixedWindow, Log, Reading, SlidingLog, WindowCounts};
use crate::cost::Cost;
use crate::decision::Taken;
use crate::limit::{Algorithm, Limit, Scale, Shape};
use crate::standing::Standing;
use crate::time::Timestamp;

pub use encoding::InvalidState;

/// The counter of one key. An absent state and a fresh one are equivalent.
///
/// It includes the numbers it was written under, so that usage survives a change of the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    shape: Shape,
    quota: u32,
    standing: Standing,
    counts: Counts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    TokenBucket(Bucket),
    LeakyBucket(Bucket),
    FixedWindow(FixedWindow),
    /// Boxed to keep the other states small: they are the common case.
    SlidingLog(Box<Log>),
    SlidingCounter(WindowCounts),
    Gcra(Bucket),
}

impl State {
    /// The state after charging an absent key.
    pub(crate) fn written(limit: &Limit, reading: &Reading, standing: Standing, cost: Cost) -> Self {
        let mut state = Self {
            shape: limit.scale().shape,
            quota: limit.quota(),
            standing,
            counts: Counts::FixedWindow(FixedWindow { number: 0, count: 0 }),
        };
        state.set(limit, reading, standing, cost);
        state
    }

    /// Overwrites the counter with `reading`, in which `cost` has just been charged.
    #[inline(always)]
    pub(crate) fn set(&mut self, limit: &Limit, reading: &Reading, standing: Standing, cost: Cost) {
        if let Reading::SlidingLog(reading) = reading {
            self.append(limit, reading, cost);
        } else {
            self.set_counts(reading);
        }
        self.adopt(limit, standing);
    }

    /// Not inlined: walking a log costs far more than the call, and the small states are written
    /// faster without it.
    #[inline(never)]
    fn append(&mut self, limit: &Limit, reading: &SlidingLog, cost: Cost) {
        if !self.belongs_to(limit) || !matches!(self.counts, Counts::SlidingLog(_)) {
            self.counts = Counts::SlidingLog(Box::default());
        }
        if let Counts::SlidingLog(log) = &mut self.counts {
            log.append(reading, cost);
        }
    }

    /// Takes `cost` from a counter that was written under the same numbers, if it fits. This is the
    /// fast path: an [`Evaluation`](crate::Evaluation) and its charge in one step, without the
    /// branches that only other cases need. Returns `None` and changes nothing when an evaluation
    /// has to decide.
    #[inline(always)]
    pub fn take(&mut self, limit: &Limit, now: Timestamp, cost: Cost) -> Option<Taken> {
        // A cost of zero wraps around: neither it nor a cost above the capacity is taken here.
        let cannot_be_taken = cost.get().wrapping_sub(1) >= limit.capacity();
        if !self.same_scale(limit) || cannot_be_taken {
            return None;
        }
        let stored = self.standing;
        let taken = match self.counts {
            // Its time is seldom ahead of `now`, and then only by the time between two threads.
            Counts::TokenBucket(ref mut bucket) if bucket.tick <= limit.scale().tick_of(now.as_micros()) => {
                let (next, taken) = take_from(bucket.at(limit, now), limit, now, cost, stored)?;
                *bucket = next;
                taken
            }
            _ if self.is_ahead_of(now) => return None,
            _ => self.counts.take(limit, now, cost, stored)?,
        };
        self.standing = taken.standing;
        Some(taken)
    }

    /// Refunds `cost`; returns whether anything changed.
    pub(crate) fn refund(
        &mut self,
        limit: &Limit,
        now: Timestamp,
        cost: Cost,
        taken_at: Option<Timestamp>,
    ) -> bool {
        if !self.belongs_to(limit) {
            return false;
        }
        let corrected = self.correct_time(now);
        let before = Reading::new(limit, Some(self), now);
        let after = match before {
            Reading::TokenBucket(bucket) => Reading::TokenBucket(bucket.refunded(limit, cost, taken_at)),
            Reading::LeakyBucket(bucket) => Reading::LeakyBucket(bucket.refunded(limit, cost, taken_at)),
            Reading::Gcra(bucket) => Reading::Gcra(bucket.refunded(limit, cost, taken_at)),
            Reading::FixedWindow(window) => Reading::FixedWindow(window.refunded(limit, cost, taken_at)),
            Reading::SlidingCounter(counter) => {
                Reading::SlidingCounter(counter.refunded(limit, cost, taken_at))
            }
            Reading::SlidingLog(reading) => {
                let refunded = match &mut self.counts {
                    Counts::SlidingLog(log) => log.refund(&reading, cost, taken_at),
                    _ => 0,
                };
                if refunded == 0 { before } else { Reading::new(limit, Some(self), now) }
            }
        };
        if after == before {
            return corrected;
        }
        let settled = self.standing.settle(before.remaining(limit), limit.capacity());
        self.adopt(limit, settled.settle(after.remaining(limit), limit.capacity()));
        self.set_counts(&after);
        true
    }

    /// Whether the counter's time is more than one window ahead of `now`: the clock was set back
    /// since it was written.
    #[inline(always)]
    pub(crate) fn is_ahead_of(&self, now: Timestamp) -> bool {
        let window = self.shape.window();
        let time = match &self.counts {
            Counts::TokenBucket(bucket) | Counts::LeakyBucket(bucket) | Counts::Gcra(bucket) => {
                match self.shape.tick_exponent() {
                    0 => bucket.tick,
                    exponent => bucket.tick.saturating_mul(10u64.pow(exponent.into())),
                }
            }
            Counts::FixedWindow(FixedWindow { number, .. })
            | Counts::SlidingCounter(WindowCounts { number, .. }) => number.saturating_mul(window),
            Counts::SlidingLog(log) => log.newest(),
        };
        time > now.as_micros() + window
    }

    /// If the counter's time [is ahead](Self::is_ahead_of), counts what is in use as taken at
    /// `now`. Nothing is freed by this, and the caller does not have to wait for the time that the
    /// clock showed before. Returns whether the time was corrected.
    #[inline]
    pub(crate) fn correct_time(&mut self, now: Timestamp) -> bool {
        let ahead = self.is_ahead_of(now);
        if ahead {
            *self = self.moved_to(now);
        }
        ahead
    }

    /// The same usage, taken at `now`.
    #[cold]
    pub(crate) fn moved_to(&self, now: Timestamp) -> Self {
        let (window, now) = (self.shape.window(), now.as_micros());
        let tick = now / 10u64.pow(self.shape.tick_exponent().into());
        let counts = match &self.counts {
            Counts::TokenBucket(bucket) => Counts::TokenBucket(bucket.moved_to(tick)),
            Counts::LeakyBucket(bucket) => Counts::LeakyBucket(bucket.moved_to(tick)),
            Counts::Gcra(bucket) => Counts::Gcra(bucket.moved_to(tick)),
            Counts::FixedWindow(counts) => Counts::FixedWindow(counts.moved_to(now / window)),
            Counts::SlidingCounter(counts) => Counts::SlidingCounter(counts.moved_to(now / window)),
            Counts::SlidingLog(log) => Counts::SlidingLog(Box::new(log.moved_to(window, now))),
        };
        Self { counts, ..*self }
    }

    /// Whether the state was written by this algorithm over this window; otherwise it is ignored.
    #[inline(always)]
    pub(crate) fn belongs_to(&self, limit: &Limit) -> bool {
        self.shape.counts_like(limit.scale().shape)
    }

    /// Whether it was also written with the same units and ticks.
    #[inline]
    pub(crate) fn same_scale(&self, limit: &Limit) -> bool {
        self.quota == limit.quota() && self.shape == limit.scale().shape
    }

    pub(crate) fn scale(&self) -> Scale {
        Scale::new(self.algorithm(), self.quota, self.shape.window(), self.shape.tick_exponent())
    }

    /// The algorithm that wrote it.
    #[inline(always)]
    pub fn algorithm(&self) -> Algorithm {
        match self.counts {
            Counts::TokenBucket(_) => Algorithm::TokenBucket,
            Counts::LeakyBucket(_) => Algorithm::LeakyBucket,
            Counts::FixedWindow(_) => Algorithm::FixedWindow,
            Counts::SlidingLog(_) => Algorithm::SlidingLog,
            Counts::SlidingCounter(_) => Algorithm::SlidingCounter,
            Counts::Gcra(_) => Algorithm::Gcra,
        }
    }

    #[inline]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    #[inline(always)]
    fn adopt(&mut self, limit: &Limit, standing: Standing) {
        self.shape = limit.scale().shape;
        self.quota = limit.quota();
        self.standing = standing;
    }

    #[inline(always)]
    fn set_counts(&mut self, reading: &Reading) {
        self.counts = match *reading {
            Reading::TokenBucket(bucket) => Counts::TokenBucket(bucket),
            Reading::LeakyBucket(bucket) => Counts::LeakyBucket(bucket),
            Reading::FixedWindow(window) => Counts::FixedWindow(window),
            Reading::SlidingCounter(counter) => Counts::SlidingCounter(counter.counts),
            Reading::Gcra(bucket) => Counts::Gcra(bucket),
            Reading::SlidingLog(_) => return,
        };
    }
}

impl Counts {
    /// The rest of [`State::take`], kept apart from the most common case, which is faster that way.
    #[inline(never)]
    fn take(&mut self, limit: &Limit, now: Timestamp, cost: Cost, stored: Standing) -> Option<Taken> {
        match self {
            Self::FixedWindow(window) => {
                let (next, taken) = take_from(window.read(limit, now), limit, now, cost, stored)?;
                *window = next;
                Some(taken)
            }
            Self::SlidingCounter(counts) => {
                let (next, taken) = take_from(counts.read(limit, now), limit, now, cost, stored)?;
                *counts = next.counts;
                Some(taken)
            }
            Self::TokenBucket(bucket) | Self::Gcra(bucket) => {
                let (next, taken) = take_from(bucket.at(limit, now), limit, now, cost, stored)?;
                *bucket = next;
                Some(taken)
            }
            Self::LeakyBucket(_) | Self::SlidingLog(_) => None,
        }
    }
}

/// The reading after `cost` is taken from `reading`, and the result of the charge; `None` when the
/// cost does not fit.
#[inline(always)]
fn take_from<C: Counting>(
    reading: C,
    limit: &Limit,
    now: Timestamp,
    cost: Cost,
    stored: Standing,
) -> Option<(C, Taken)> {
    if !reading.fits(limit, cost) {
        return None;
    }
    let next = reading.charged(limit, cost);
    let remaining = next.remaining(limit);
    // By far the most common case, which does not depend on the previous standing.
    let standing = if remaining > limit.scale().normal_above {
        Standing::Normal
    } else {
        standing_after(reading, remaining, limit, stored)
    };
    let reset_at = match next.reset_at(limit) {
        Some(micros) => Timestamp::from_micros(micros),
        None => now,
    };
    Some((next, Taken::new(limit, remaining, reset_at, standing, stored)))
}

/// The standing after a charge that left `remaining`. The previous standing matters only between
/// the two thresholds, where it costs a division.
#[inline(never)]
pub(crate) fn standing_after<C: Counting>(
    before: C,
    remaining: u32,
    limit: &Limit,
    stored: Standing,
) -> Standing {
    let capacity = limit.capacity();
    Standing::regardless_of_previous(remaining, capacity)
        .unwrap_or_else(|| stored.settle(before.remaining(limit), capacity).settle(remaining, capacity))
}
