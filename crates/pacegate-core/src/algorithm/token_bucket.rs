//! Token bucket: tokens refill at the quota's rate, up to the burst; a fresh bucket is full.
//!
//! It counts the tokens in use rather than those remaining, so that usage survives a change of the
//! burst. The same number is the level of a leaky bucket, which drains at the same rate. It also
//! represents GCRA: the theoretical arrival time is the tick at which the level reaches zero.

use super::Counting;
use crate::cost::Cost;
use crate::limit::{Limit, Scale};
use crate::state::State;
use crate::time::{EXACT_MAX, Timestamp};

/// `level` units were in use at `tick`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) level: u64,
    pub(crate) tick: u64,
}

impl Bucket {
    pub(crate) fn fresh(limit: &Limit, now: Timestamp) -> Self {
        Self { level: 0, tick: limit.scale().tick_of(now.as_micros()) }
    }

    /// Brings the stored bucket to `now`, converting it if it was written under another quota or
    /// tick.
    #[inline]
    pub(crate) fn read(&self, limit: &Limit, state: &State, now: Timestamp) -> Self {
        if state.same_scale(limit) { self.at(limit, now) } else { self.converted(limit, &state.scale(), now) }
    }

    /// Brings a bucket that was written under the same quota and tick to `now`.
    #[inline(always)]
    pub(crate) fn at(&self, limit: &Limit, now: Timestamp) -> Self {
        self.drained(limit.scale(), limit.scale().tick_of(now.as_micros()))
    }

    #[inline]
    fn drained(&self, scale: &Scale, now: u64) -> Self {
        // If the clock went back, nothing drains: the bucket stays at the last tick it saw.
        let elapsed = now.saturating_sub(self.tick);
        Self {
            level: self.level.saturating_sub(elapsed.saturating_mul(scale.rate)),
            tick: self.tick + elapsed,
        }
    }

    /// Keeps the whole tokens in use and rounds a fraction up, so that a change of limits never
    /// frees usage.
    #[cold]
    fn converted(&self, limit: &Limit, old: &Scale, now: Timestamp) -> Self {
        let new = limit.scale();
        let drained = self.drained(old, old.tick_of(now.as_micros()));
        let (present, last_seen) =
            (new.tick_of(now.as_micros()), old.micros_of(self.tick).div_ceil(new.tick));
        // Rounding up must not move it more than one window ahead, where it would count as taken
        // now again.
        let ahead = new.micros_of(last_seen) > now.as_micros() + limit.window_micros();
        Self {
            level: units_in_use(u128::from(drained.level), old, new),
            tick: if ahead { present } else { present.max(last_seen) },
        }
    }

    /// The same level at `tick`.
    pub(crate) fn moved_to(&self, tick: u64) -> Self {
        Self { tick, ..*self }
    }

    pub(crate) fn refunded(&self, limit: &Limit, cost: Cost, taken_at: Option<Timestamp>) -> Self {
        let refunded = refundable_units(limit.scale(), cost, taken_at, self.tick);
        let level = u128::from(self.level).saturating_sub(refunded);
        // The cast cannot truncate: the level only decreases.
        Self { level: level as u64, tick: self.tick }
    }

    pub(crate) fn retry_at(&self, limit: &Limit, cost: Cost) -> u64 {
        let scale = limit.scale();
        let excess = (self.level + u64::from(cost.get()) * scale.unit).saturating_sub(scale.capacity);
        scale.micros_of(self.tick + scale.ticks_to_drain(excess.min(EXACT_MAX)))
    }
}

impl Counting for Bucket {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        let scale = limit.scale();
        // At most the burst, which is 32 bits wide.
        scale.by_unit.divide(scale.capacity.saturating_sub(self.level)) as u32
    }

    fn remaining_with_debt(&self, limit: &Limit) -> u32 {
        let scale = limit.scale();
        // Levels must stay exact, so a limit whose doubled capacity would not be exact allows less
        // debt.
        let most = (2 * scale.capacity).min(EXACT_MAX);
        (most.saturating_sub(self.level) / scale.unit) as u32
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        let scale = limit.scale();
        self.level + u64::from(cost.get()) * scale.unit <= scale.capacity
    }

    #[inline(always)]
    fn charged(&self, limit: &Limit, cost: Cost) -> Self {
        Self { level: self.level + u64::from(cost.get()) * limit.scale().unit, tick: self.tick }
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit) -> Option<u64> {
        let scale = limit.scale();
        if self.level == 0 {
            None
        } else {
            Some(scale.micros_of(self.tick + scale.ticks_to_drain(self.level)))
        }
    }
}

/// The units of `cost` that cannot have drained by `tick`. It is unknown whether this charge or
/// another one has drained since, so this one is assumed: what has drained is not refunded again,
/// and a refund never makes the limit admit more than it allows.
fn refundable_units(scale: &Scale, cost: Cost, taken_at: Option<Timestamp>, tick: u64) -> u128 {
    let since = taken_at.map_or(0, |at| tick.saturating_sub(scale.tick_of(at.as_micros())));
    let taken = u128::from(cost.get()) * u128::from(scale.unit);
    taken.saturating_sub(u128::from(since) * u128::from(scale.rate))
}

/// Converts units of one scale to another: whole tokens, rounded up, saturating at the largest
/// exact integer.
fn units_in_use(units: u128, old: &Scale, new: &Scale) -> u64 {
    let tokens = units.div_ceil(u128::from(old.unit));
    tokens.saturating_mul(u128::from(new.unit)).min(u128::from(EXACT_MAX)) as u64
}
