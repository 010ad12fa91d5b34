//! Sliding counter: the previous window's count, weighted by how much of it still overlaps, plus
//! this window's.
//!
//! The weight is never divided out: both sides of each comparison are multiplied by the window's
//! ticks instead.

use super::Counting;
use crate::cost::Cost;
use crate::limit::Limit;
use crate::time::Timestamp;

/// The two counts as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowCounts {
    pub(crate) number: u64,
    pub(crate) current: u32,
    pub(crate) previous: u32,
}

/// The two counts at an instant, `offset` ticks into window `counts.number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingCounter {
    pub(crate) counts: WindowCounts,
    offset: u64,
}

impl WindowCounts {
    pub(crate) fn fresh(limit: &Limit, now: Timestamp) -> Self {
        Self { number: now.as_micros() / limit.window_micros(), current: 0, previous: 0 }
    }

    #[inline]
    pub(crate) fn read(&self, limit: &Limit, now: Timestamp) -> SlidingCounter {
        let number = now.as_micros() / limit.window_micros();
        if number < self.number {
            // The clock went back: read at the start of the last window seen, where the previous
            // one weighs most.
            return SlidingCounter { counts: *self, offset: 0 };
        }
        let counts = match number - self.number {
            0 => *self,
            1 => Self { number, current: 0, previous: self.current },
            _ => Self { number, current: 0, previous: 0 },
        };
        let offset = limit.scale().tick_of(now.as_micros() - number * limit.window_micros());
        SlidingCounter { counts, offset }
    }

    /// Both counts as taken in window `number`, because the weight of the previous one is unknown.
    pub(crate) fn moved_to(&self, number: u64) -> Self {
        // Neither count exceeds the largest quota, and such a count denies everything under any
        // limit.
        let current = (self.current + self.previous).min(Limit::QUOTA_MAX as u32);
        Self { number, current, previous: 0 }
    }
}

impl SlidingCounter {
    /// Refunds to the window the cost was taken in; without a time, to this window first, then to
    /// the previous.
    pub(crate) fn refunded(&self, limit: &Limit, cost: Cost, taken_at: Option<Timestamp>) -> Self {
        let WindowCounts { number, current, previous } = self.counts;
        let (from_current, from_previous) = match taken_at.map(|at| at.as_micros() / limit.window_micros()) {
            None => (cost.get(), cost.get().saturating_sub(current)),
            Some(taken_in) if taken_in == number => (cost.get(), 0),
            Some(taken_in) if taken_in + 1 == number => (0, cost.get()),
            Some(_) => (0, 0),
        };
        let counts = WindowCounts {
            number,
            current: current.saturating_sub(from_current),
            previous: previous.saturating_sub(from_previous),
        };
        Self { counts, ..*self }
    }

    /// Solves the admission formula for time: in this window, else in the next, else at the start
    /// of the one after.
    pub(crate) fn retry_at(&self, limit: &Limit, cost: Cost) -> u64 {
        let WindowCounts { number, current, previous } = self.counts;
        let free_now = limit.quota().checked_sub(current).and_then(|free| free.checked_sub(cost.get()));
        if let Some(free) = free_now
            && let Some(offset) = offset_at_weight(limit, previous, free)
        {
            return at_offset(limit, number, offset);
        }
        match offset_at_weight(limit, current, limit.quota() - cost.get()) {
            Some(offset) => at_offset(limit, number + 1, offset),
            None => (number + 2).saturating_mul(limit.window_micros()),
        }
    }
}

impl Counting for SlidingCounter {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        let ticks = u128::from(limit.scale().window_ticks);
        let weighted = u128::from(self.counts.previous) * (ticks - u128::from(self.offset));
        let free = u128::from(limit.quota().saturating_sub(self.counts.current)) * ticks;
        // At most the quota, which is 32 bits wide.
        (free.saturating_sub(weighted) / ticks) as u32
    }

    fn remaining_with_debt(&self, limit: &Limit) -> u32 {
        // The previous count at its full weight, so that the bound is a whole number.
        let in_use = self.counts.current.saturating_add(self.counts.previous);
        (2 * limit.quota()).saturating_sub(in_use).max(self.remaining(limit))
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        match limit.quota().checked_sub(self.counts.current).and_then(|free| free.checked_sub(cost.get())) {
            Some(free) => {
                let ticks = limit.scale().window_ticks;
                let weighted = u128::from(self.counts.previous) * u128::from(ticks - self.offset);
                weighted <= u128::from(free) * u128::from(ticks)
            }
            None => false,
        }
    }

    #[inline(always)]
    fn charged(&self, _: &Limit, cost: Cost) -> Self {
        let counts = WindowCounts { current: self.counts.current + cost.get(), ..self.counts };
        Self { counts, ..*self }
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit) -> Option<u64> {
        let windows = match (self.counts.current, self.counts.previous) {
            (0, 0) => return None,
            (0, _) => 1,
            _ => 2,
        };
        Some((self.counts.number + windows).saturating_mul(limit.window_micros()))
    }
}

/// The first offset, in ticks, at which a previous count of `count` weighs at most `free`; `None`
/// when the window ends before.
fn offset_at_weight(limit: &Limit, count: u32, free: u32) -> Option<u64> {
    if count <= free {
        return Some(0);
    }
    let ticks = limit.scale().window_ticks;
    // `free` < `count` ≤ 10^9, and free × ticks is below 2^53 because free is at most the quota.
    let offset = ticks - u64::from(free) * ticks / u64::from(count);
    (offset < ticks).then_some(offset)
}

fn at_offset(limit: &Limit, number: u64, offset: u64) -> u64 {
    number.saturating_mul(limit.window_micros()).saturating_add(limit.scale().micros_of(offset))
}
