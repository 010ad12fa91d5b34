//! The six algorithms, one file each, behind one set of questions.
//!
//! A *reading* is a counter brought to `now`: small, copied, and enough to answer everything about one request
//! without touching the counter. Charging produces the next reading; only then is anything written.

mod fixed_window;
mod gcra;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

use crate::cost::Cost;
use crate::limit::{Algorithm, Limit};
use crate::state::{Counts, State};
use crate::time::Timestamp;

pub(crate) use fixed_window::FixedWindow;
pub(crate) use gcra::{ArrivalTime, Gcra};
pub(crate) use leaky_bucket::Queued;
pub(crate) use sliding_counter::{SlidingCounter, WindowCounts};
pub(crate) use sliding_log::{Log, SlidingLog};
pub(crate) use token_bucket::Bucket;

/// A counter as it stands at one instant, under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    TokenBucket(Bucket),
    LeakyBucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
    Gcra(Gcra),
}

impl Reading {
    /// Brings `state` to `now` under `limit`. State of another algorithm or window counts as fresh.
    #[inline]
    pub(crate) fn new(limit: &Limit, state: Option<&State>, now: Timestamp) -> Self {
        let state = state.filter(|state| state.belongs_to(limit));
        let counts = state.map(State::counts);
        match limit.algorithm() {
            Algorithm::TokenBucket => {
                let bucket = match (state, counts) {
                    (Some(state), Some(Counts::TokenBucket(bucket))) => bucket.read(limit, state, now),
                    _ => Bucket::fresh(limit, now),
                };
                Self::TokenBucket(bucket)
            }
            Algorithm::LeakyBucket => {
                let bucket = match (state, counts) {
                    (Some(state), Some(Counts::LeakyBucket(bucket))) => bucket.read(limit, state, now),
                    _ => Bucket::fresh(limit, now),
                };
                Self::LeakyBucket(bucket)
            }
            Algorithm::FixedWindow => Self::FixedWindow(match counts {
                Some(Counts::FixedWindow(window)) => window.read(limit, now),
                _ => FixedWindow::fresh(limit, now),
            }),
            Algorithm::SlidingLog => Self::SlidingLog(match counts {
                Some(Counts::SlidingLog(log)) => log.read(limit, now),
                _ => SlidingLog::fresh(now),
            }),
            Algorithm::SlidingCounter => Self::SlidingCounter(match counts {
                Some(Counts::SlidingCounter(counts)) => counts.read(limit, now),
                _ => WindowCounts::fresh(limit, now).read(limit, now),
            }),
            Algorithm::Gcra => Self::Gcra(match (state, counts) {
                (Some(state), Some(Counts::Gcra(arrival))) => arrival.read(limit, state, now),
                _ => Gcra::fresh(limit, now),
            }),
        }
    }

    /// What cost would still be allowed now, rounded down.
    #[inline]
    pub(crate) fn remaining(&self, limit: &Limit) -> u32 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) => bucket.remaining(limit),
            Self::FixedWindow(window) => window.remaining(limit),
            Self::SlidingLog(log) => log.remaining(limit),
            Self::SlidingCounter(counter) => counter.remaining(limit),
            Self::Gcra(gcra) => gcra.remaining(limit),
        }
    }

    /// Whether `cost`, which is at most the capacity, has room now.
    #[inline]
    pub(crate) fn fits(&self, limit: &Limit, cost: Cost) -> bool {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) => bucket.fits(limit, cost),
            Self::FixedWindow(window) => window.fits(limit, cost),
            Self::SlidingLog(log) => log.fits(limit, cost),
            Self::SlidingCounter(counter) => counter.fits(limit, cost),
            Self::Gcra(gcra) => gcra.fits(limit, cost),
        }
    }

    /// The reading after `cost`, which fits, has been taken.
    #[inline]
    pub(crate) fn charged(&self, limit: &Limit, cost: Cost) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::TokenBucket(bucket.charged(limit, cost)),
            Self::LeakyBucket(bucket) => Self::LeakyBucket(bucket.charged(limit, cost)),
            Self::FixedWindow(window) => Self::FixedWindow(window.charged(cost)),
            Self::SlidingLog(log) => Self::SlidingLog(log.charged(limit, cost)),
            Self::SlidingCounter(counter) => Self::SlidingCounter(counter.charged(cost)),
            Self::Gcra(gcra) => Self::Gcra(gcra.charged(limit, cost)),
        }
    }

    /// When the whole capacity is back if nothing more comes; `None` when it is there already.
    #[inline]
    pub(crate) fn reset_at(&self, limit: &Limit) -> Option<u64> {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) => bucket.reset_at(limit),
            Self::FixedWindow(window) => window.reset_at(limit),
            Self::SlidingLog(log) => log.reset_at(),
            Self::SlidingCounter(counter) => counter.reset_at(limit),
            Self::Gcra(gcra) => gcra.reset_at(limit),
        }
    }

    /// The first instant at which `cost`, which does not fit now, fits. `state` is what the reading was made from.
    #[cold]
    pub(crate) fn retry_at(&self, limit: &Limit, state: Option<&State>, cost: Cost) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) => bucket.retry_at(limit, cost),
            Self::FixedWindow(window) => window.retry_at(limit),
            Self::SlidingLog(log) => match state.map(State::counts) {
                Some(Counts::SlidingLog(entries)) => log.retry_at(limit, entries, cost),
                _ => log.now(),
            },
            Self::SlidingCounter(counter) => counter.retry_at(limit, cost),
            Self::Gcra(gcra) => gcra.retry_at(limit, cost),
        }
    }
}
