//! `governor`: its keyed limiter with the default store and clock.

use std::num::NonZeroU32;

use anyhow::{Context, Result};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::{BURST, Contender, PERIOD, TOKENS};

pub(super) struct Governor {
    limiter: DefaultKeyedRateLimiter<String>,
}

impl Governor {
    pub(super) fn new() -> Result<Self> {
        let burst = NonZeroU32::new(BURST).context("the burst is zero")?;
        let quota = Quota::with_period(PERIOD / TOKENS).context("the period is zero")?.allow_burst(burst);
        Ok(Self { limiter: RateLimiter::keyed(quota) })
    }
}

impl Contender for Governor {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.limiter.check_key(key).is_ok()
    }
}
