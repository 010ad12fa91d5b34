//! Fixed window: one count per window, windows aligned to the epoch.

use super::Counting;
use crate::cost::Cost;
use crate::limit::Limit;
use crate::time::Timestamp;

/// The amount admitted in window `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    pub(crate) number: u64,
    pub(crate) count: u32,
}

impl FixedWindow {
    pub(crate) fn fresh(limit: &Limit, now: Timestamp) -> Self {
        Self { number: now.as_micros() / limit.window_micros(), count: 0 }
    }

    #[inline]
    pub(crate) fn read(&self, limit: &Limit, now: Timestamp) -> Self {
        let current = Self::fresh(limit, now);
        // If the clock went back, the last window seen stays current.
        if current.number > self.number { current } else { *self }
    }

    /// The same count in window `number`.
    pub(crate) fn moved_to(&self, number: u64) -> Self {
        Self { number, ..*self }
    }

    /// Refunds what was taken in this window; what was taken in an earlier one has expired with it.
    pub(crate) fn refunded(&self, limit: &Limit, cost: Cost, taken_at: Option<Timestamp>) -> Self {
        let taken_in = taken_at.map_or(self.number, |at| at.as_micros() / limit.window_micros());
        let refunded = if taken_in == self.number { cost.get() } else { 0 };
        Self { count: self.count.saturating_sub(refunded), ..*self }
    }

    #[inline]
    pub(crate) fn retry_at(&self, limit: &Limit) -> u64 {
        (self.number + 1).saturating_mul(limit.window_micros())
    }
}

impl Counting for FixedWindow {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        limit.quota().saturating_sub(self.count)
    }

    fn remaining_with_debt(&self, limit: &Limit) -> u32 {
        (2 * limit.quota()).saturating_sub(self.count)
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        cost.get() <= self.remaining(limit)
    }

    #[inline(always)]
    fn charged(&self, _: &Limit, cost: Cost) -> Self {
        Self { count: self.count + cost.get(), ..*self }
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit) -> Option<u64> {
        (self.count > 0).then(|| self.retry_at(limit))
    }
}
