//! Generic cell rate algorithm: the only state is the theoretical arrival time of the next request.
//!
//! The arrival time is a whole number of ticks and a remainder in units, so that no pace is ever rounded.

use super::Counting;
use super::token_bucket::{units_in_use, units_still_out};
use crate::cost::Cost;
use crate::limit::{Limit, Scale};
use crate::state::State;
use crate::time::Timestamp;

/// The theoretical arrival time: `ticks` plus `remainder` units of the limit's rate, `remainder` < rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArrivalTime {
    pub(crate) ticks: u64,
    pub(crate) remainder: u64,
}

/// The arrival time, never before the tick it is read at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gcra {
    pub(crate) arrival: ArrivalTime,
    now: u64,
}

impl ArrivalTime {
    #[inline]
    pub(crate) fn read(&self, limit: &Limit, state: &State, now: Timestamp) -> Gcra {
        if state.same_scale(limit) { self.at(limit, now) } else { self.converted(limit, &state.scale(), now) }
    }

    /// Brings an arrival time that was written under the same quota and tick to `now`.
    #[inline(always)]
    pub(crate) fn at(&self, limit: &Limit, now: Timestamp) -> Gcra {
        let now = limit.scale().tick_of(now.as_micros());
        Gcra { arrival: (*self).max(Self { ticks: now, remainder: 0 }), now }
    }

    #[cold]
    fn converted(&self, limit: &Limit, old: &Scale, now: Timestamp) -> Gcra {
        // A clock turned far back leaves more units than 64 bits hold.
        let ticks = self.ticks.checked_sub(old.tick_of(now.as_micros()));
        let owed =
            ticks.map_or(0, |ticks| u128::from(ticks) * u128::from(old.rate) + u128::from(self.remainder));
        let fresh = Gcra::fresh(limit, now);
        let owed = units_in_use(owed, old, limit.scale());
        Gcra { arrival: fresh.arrival.plus(owed, limit.scale()), ..fresh }
    }

    /// How far this is after `tick`, in units; zero when it is not.
    #[inline]
    fn units_after(&self, tick: u64, scale: &Scale) -> u64 {
        match self.ticks.checked_sub(tick) {
            Some(ticks) => ticks.saturating_mul(scale.rate).saturating_add(self.remainder),
            None => 0,
        }
    }

    #[inline]
    fn plus(&self, units: u64, scale: &Scale) -> Self {
        let units = self.remainder + units;
        Self { ticks: self.ticks.saturating_add(units / scale.rate), remainder: units % scale.rate }
    }

    /// Wider than 64 bits, because a refund may be larger than the capacity.
    fn minus(&self, units: u128, scale: &Scale) -> Self {
        let rate = u128::from(scale.rate);
        let own = u128::from(self.ticks) * rate + u128::from(self.remainder);
        let left = own.saturating_sub(units);
        Self { ticks: (left / rate) as u64, remainder: (left % rate) as u64 }
    }
}

impl Gcra {
    pub(crate) fn fresh(limit: &Limit, now: Timestamp) -> Self {
        let now = limit.scale().tick_of(now.as_micros());
        Self { arrival: ArrivalTime { ticks: now, remainder: 0 }, now }
    }

    #[inline]
    fn owed(&self, limit: &Limit) -> u64 {
        self.arrival.units_after(self.now, limit.scale())
    }

    pub(crate) fn refunded(&self, limit: &Limit, cost: Cost, taken_at: Option<Timestamp>) -> Self {
        let scale = limit.scale();
        let given_back = units_still_out(scale, cost, taken_at, self.now);
        let fresh = ArrivalTime { ticks: self.now, remainder: 0 };
        if self.arrival <= fresh || given_back == 0 {
            return *self;
        }
        let arrival = self.arrival.minus(given_back, scale);
        if arrival <= fresh {
            // Nothing is owed any more: an arrival time at the epoch is fresh at every instant, also on a clock turned back.
            return Self { arrival: ArrivalTime { ticks: 0, remainder: 0 }, ..*self };
        }
        Self { arrival, ..*self }
    }

    /// Counted back from the arrival time, so that it stays exact however far ahead of a turned-back clock that is.
    pub(crate) fn retry_at(&self, limit: &Limit, cost: Cost) -> u64 {
        let scale = limit.scale();
        let ArrivalTime { ticks, remainder } = self.arrival;
        let wanted = remainder + u64::from(cost.get()) * scale.unit;
        let tick = match scale.capacity.checked_sub(wanted) {
            Some(slack) => ticks - (slack / scale.rate).min(ticks),
            None => ticks.saturating_add((wanted - scale.capacity).div_ceil(scale.rate)),
        };
        scale.micros_of(tick)
    }
}

impl Counting for Gcra {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        let scale = limit.scale();
        // At most the burst, which is 32 bits wide.
        (scale.capacity.saturating_sub(self.owed(limit)) / scale.unit) as u32
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        let scale = limit.scale();
        self.owed(limit).saturating_add(u64::from(cost.get()) * scale.unit) <= scale.capacity
    }

    #[inline(always)]
    fn charged(&self, limit: &Limit, cost: Cost) -> Self {
        let scale = limit.scale();
        Self { arrival: self.arrival.plus(u64::from(cost.get()) * scale.unit, scale), ..*self }
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit) -> Option<u64> {
        let ArrivalTime { ticks, remainder } = self.arrival;
        (self.arrival > ArrivalTime { ticks: self.now, remainder: 0 })
            .then(|| limit.scale().micros_of(ticks + u64::from(remainder > 0)))
    }
}
