//! What a store keeps for one key, and its versioned byte encoding.

mod encoding;

use crate::algorithm::{ArrivalTime, Bucket, FixedWindow, Log, Reading, WindowCounts};
use crate::cost::Cost;
use crate::limit::{Algorithm, Limit, Scale};
use crate::standing::Standing;
use crate::time::Timestamp;

pub use encoding::InvalidState;

/// The counter of one key. Absence and a fresh state mean the same.
///
/// It remembers the numbers it was written under, so that a limit that changes on a live key keeps what was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    window: u64,
    quota: u32,
    tick_exponent: u8,
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
    Gcra(ArrivalTime),
}

impl State {
    /// The state that follows a reading of an absent key.
    pub(crate) fn written(limit: &Limit, reading: &Reading, standing: Standing, cost: Cost) -> Self {
        let mut state = Self {
            window: limit.window_micros(),
            quota: limit.quota(),
            tick_exponent: limit.scale().tick_exponent,
            standing,
            counts: Counts::FixedWindow(FixedWindow { number: 0, count: 0 }),
        };
        state.set(limit, reading, standing, cost);
        state
    }

    /// Overwrites the counter with `reading`, in which `cost` has just been charged.
    #[inline]
    pub(crate) fn set(&mut self, limit: &Limit, reading: &Reading, standing: Standing, cost: Cost) {
        if let Reading::SlidingLog(reading) = reading {
            if !self.belongs_to(limit) {
                self.counts = Counts::SlidingLog(Box::default());
            }
            if let Counts::SlidingLog(log) = &mut self.counts {
                log.append(reading, cost);
            }
        } else {
            self.set_counts(reading);
        }
        self.adopt(limit, standing);
    }

    /// Gives `cost` back; answers with the reading that follows, or `None` when nothing changes.
    pub(crate) fn refund(
        &mut self,
        limit: &Limit,
        now: Timestamp,
        cost: Cost,
        taken_at: Option<Timestamp>,
    ) -> Option<Reading> {
        if !self.belongs_to(limit) {
            return None;
        }
        let before = Reading::new(limit, Some(self), now);
        let after = match before {
            Reading::TokenBucket(bucket) => Reading::TokenBucket(bucket.refunded(limit, cost)),
            Reading::LeakyBucket(bucket) => Reading::LeakyBucket(bucket.refunded(limit, cost)),
            Reading::Gcra(gcra) => Reading::Gcra(gcra.refunded(limit, cost)),
            Reading::FixedWindow(window) => Reading::FixedWindow(window.refunded(limit, cost, taken_at)),
            Reading::SlidingCounter(counter) => {
                Reading::SlidingCounter(counter.refunded(limit, cost, taken_at))
            }
            Reading::SlidingLog(reading) => {
                let given_back = match &mut self.counts {
                    Counts::SlidingLog(log) => log.give_back(&reading, cost, taken_at),
                    _ => 0,
                };
                if given_back == 0 { before } else { Reading::new(limit, Some(self), now) }
            }
        };
        if after == before {
            return None;
        }
        let settled = self.standing.settle(before.remaining(limit), limit.capacity());
        self.adopt(limit, settled.settle(after.remaining(limit), limit.capacity()));
        self.set_counts(&after);
        Some(after)
    }

    /// Whether the state was written by this algorithm over this window; if not, it counts for nothing.
    #[inline]
    pub(crate) fn belongs_to(&self, limit: &Limit) -> bool {
        self.window == limit.window_micros() && self.algorithm() == limit.algorithm()
    }

    /// Whether units and ticks mean the same as under `limit`.
    #[inline]
    pub(crate) fn same_scale(&self, limit: &Limit) -> bool {
        self.quota == limit.quota() && self.tick_exponent == limit.scale().tick_exponent
    }

    pub(crate) fn scale(&self) -> Scale {
        Scale::new(self.quota, self.window, self.tick_exponent)
    }

    /// The algorithm that wrote it.
    #[inline]
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

    #[inline]
    fn adopt(&mut self, limit: &Limit, standing: Standing) {
        self.window = limit.window_micros();
        self.quota = limit.quota();
        self.tick_exponent = limit.scale().tick_exponent;
        self.standing = standing;
    }

    #[inline]
    fn set_counts(&mut self, reading: &Reading) {
        self.counts = match *reading {
            Reading::TokenBucket(bucket) => Counts::TokenBucket(bucket),
            Reading::LeakyBucket(bucket) => Counts::LeakyBucket(bucket),
            Reading::FixedWindow(window) => Counts::FixedWindow(window),
            Reading::SlidingCounter(counter) => Counts::SlidingCounter(counter.counts),
            Reading::Gcra(gcra) => Counts::Gcra(gcra.arrival),
            Reading::SlidingLog(_) => return,
        };
    }
}
