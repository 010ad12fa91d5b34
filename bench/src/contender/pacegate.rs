//! Pacegate: a plan of one token bucket, looked up once, over the default store.

use anyhow::Result;
use pacegate::{Algorithm, Cost, Limit, Limiter, Plan};

use super::{BURST, Contender, PERIOD, TOKENS};

pub(super) struct Pacegate {
    plan: Plan,
}

impl Pacegate {
    pub(super) fn new() -> Result<Self> {
        let limit =
            Limit::try_new(Algorithm::TokenBucket, TOKENS.into(), PERIOD)?.with_burst(BURST.into())?;
        Ok(Self { plan: Limiter::builder().plan("bench", [limit]).build()?.plan("bench")? })
    }
}

impl Contender for Pacegate {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.plan.check_now(key, Cost::ONE).is_ok_and(|decision| decision.allowed())
    }
}
