//! The six algorithms behind one trait. Token bucket, leaky bucket and GCRA share the counter
//! `token_bucket`.
//!
//! A *reading* is a counter brought to `now`. It is small, copied, and enough to answer a request
//! without touching the counter. Charging produces the next reading; only then is anything written.

mod fixed_window;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

use crate::cost::Cost;
use crate::limit::{Algorithm, Limit};
use crate::state::{Counts, State};
use crate::time::Timestamp;

pub(crate) use fixed_window::FixedWindow;
pub(crate) use leaky_bucket::queue;
pub(crate) use sliding_counter::{SlidingCounter, WindowCounts};
pub(crate) use sliding_log::{Log, SlidingLog};
pub(crate) use token_bucket::Bucket;

/// What every algorithm computes from a counter that was brought to an instant, without changing
/// it.
pub(crate) trait Counting: Copy {
    /// The largest cost that would still be allowed now, rounded down.
    fn remaining(&self, limit: &Limit) -> u32;
    /// The largest amount that a forced charge may take: until twice the capacity is in use, which
    /// bounds the debt to one capacity.
    fn remaining_with_debt(&self, limit: &Limit) -> u32;
    /// Whether `cost`, which is at most the capacity, fits now.
    fn fits(&self, limit: &Limit, cost: Cost) -> bool;
    /// The reading after taking `cost`, which fits or is within the debt bound.
    fn charged(&self, limit: &Limit, cost: Cost) -> Self;
    /// When the full capacity is available again if no further request is charged, in microseconds;
    /// `None` when it already is.
    fn reset_at(&self, limit: &Limit) -> Option<u64>;
}

/// A counter of any algorithm at one instant, under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    TokenBucket(Bucket),
    LeakyBucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
    Gcra(Bucket),
}

impl Reading {
    /// Brings `state`, which [belongs to](State::belongs_to) the limit, to `now`; absent means
    /// fresh.
    #[inline(always)]
    pub(crate) fn new(limit: &Limit, state: Option<&State>, now: Timestamp) -> Self {
        let Some(state) = state else { return Self::fresh(limit, now) };
        match state.counts() {
            Counts::TokenBucket(bucket) => Self::TokenBucket(bucket.read(limit, state, now)),
            Counts::LeakyBucket(bucket) => Self::LeakyBucket(bucket.read(limit, state, now)),
            Counts::FixedWindow(window) => Self::FixedWindow(window.read(limit, now)),
            Counts::SlidingLog(log) => Self::SlidingLog(log.read(limit, now)),
            Counts::SlidingCounter(counts) => Self::SlidingCounter(counts.read(limit, now)),
            Counts::Gcra(bucket) => Self::Gcra(bucket.read(limit, state, now)),
        }
    }

    fn fresh(limit: &Limit, now: Timestamp) -> Self {
        match limit.algorithm() {
            Algorithm::TokenBucket => Self::TokenBucket(Bucket::fresh(limit, now)),
            Algorithm::LeakyBucket => Self::LeakyBucket(Bucket::fresh(limit, now)),
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::fresh(limit, now)),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::fresh(now)),
            Algorithm::SlidingCounter => {
                Self::SlidingCounter(WindowCounts::fresh(limit, now).read(limit, now))
            }
            Algorithm::Gcra => Self::Gcra(Bucket::fresh(limit, now)),
        }
    }

    /// The first instant at which `cost`, which does not fit now, fits. `state` is what the reading
    /// was made from.
    #[cold]
    pub(crate) fn retry_at(&self, limit: &Limit, state: Option<&State>, cost: Cost) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.retry_at(limit, cost)
            }
            Self::FixedWindow(window) => window.retry_at(limit),
            Self::SlidingLog(log) => match state.map(State::counts) {
                Some(Counts::SlidingLog(entries)) => log.retry_at(limit, entries, cost),
                _ => log.now(),
            },
            Self::SlidingCounter(counter) => counter.retry_at(limit, cost),
        }
    }
}

impl Counting for Reading {
    #[inline(always)]
    fn remaining(&self, limit: &Limit) -> u32 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.remaining(limit)
            }
            Self::FixedWindow(window) => window.remaining(limit),
            Self::SlidingLog(log) => log.remaining(limit),
            Self::SlidingCounter(counter) => counter.remaining(limit),
        }
    }

    fn remaining_with_debt(&self, limit: &Limit) -> u32 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.remaining_with_debt(limit)
            }
            Self::FixedWindow(window) => window.remaining_with_debt(limit),
            Self::SlidingLog(log) => log.remaining_with_debt(limit),
            Self::SlidingCounter(counter) => counter.remaining_with_debt(limit),
        }
    }

    #[inline(always)]
    fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.fits(limit, cost)
            }
            Self::FixedWindow(window) => window.fits(limit, cost),
            Self::SlidingLog(log) => log.fits(limit, cost),
            Self::SlidingCounter(counter) => counter.fits(limit, cost),
        }
    }

    #[inline(always)]
    fn charged(&self, limit: &Limit, cost: Cost) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.charged(limit, cost)),
            Self::LeakyBucket(bucket) => Self::LeakyBucket(bucket.charged(limit, cost)),
            Self::FixedWindow(window) => Self::FixedWindow(window.charged(limit, cost)),
            Self::SlidingLog(log) => Self::SlidingLog(log.charged(limit, cost)),
            Self::SlidingCounter(counter) => Self::SlidingCounter(counter.charged(limit, cost)),
            Self::Gcra(bucket) => Self::Gcra(bucket.charged(limit, cost)),
        }
    }

    #[inline(always)]
    fn reset_at(&self, limit: &Limit) -> Option<u64> {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.reset_at(limit)
            }
            Self::FixedWindow(window) => window.reset_at(limit),
            Self::SlidingLog(log) => log.reset_at(limit),
            Self::SlidingCounter(counter) => counter.reset_at(limit),
        }
    }
}
