//! `throttlecrab`: its limiter over the periodic store, which is its default.
//!
//! It needs `&mut`, so threads share it behind a mutex, as its documentation recommends. A single
//! thread locks the mutex once.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use super::{BURST, Contender, PERIOD, TOKENS};
use crate::workload::Walk;

pub(super) struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
}

impl Throttlecrab {
    pub(super) fn new(keys: usize) -> Self {
        let store = PeriodicStore::builder().capacity(keys).build();
        Self { limiter: Mutex::new(RateLimiter::new(store)) }
    }
}

impl Contender for Throttlecrab {
    #[inline]
    fn check(&self, key: &String) -> bool {
        check(&mut self.limiter.lock().unwrap_or_else(PoisonError::into_inner), key)
    }

    fn walk(&self, walk: Walk<'_>, alone: bool) -> usize {
        if alone {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            walk.refused(|key| check(&mut limiter, key))
        } else {
            walk.refused(|key| self.check(key))
        }
    }
}

#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "callers of throttlecrab read the clock, which is part of a check"
)]
fn check(limiter: &mut RateLimiter<PeriodicStore>, key: &str) -> bool {
    let answer =
        limiter.rate_limit(key, BURST.into(), TOKENS.into(), PERIOD.as_secs() as i64, 1, SystemTime::now());
    answer.is_ok_and(|(allowed, _)| allowed)
}
