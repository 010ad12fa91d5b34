//! `limitador`: one limit with one variable and no condition, counted in memory.
//!
//! It has only fixed windows, so the limit is the whole burst per period. A check needs a context
//! with the values of its variables, which is created for every request, as in its own server.

use std::collections::HashMap;

use anyhow::{Result, anyhow};
use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};

use super::{BURST, Contender, PERIOD};

const VARIABLE: &str = "user";

pub(super) struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    pub(super) fn new(keys: usize) -> Result<Self> {
        let variable = VARIABLE.try_into().map_err(|error| anyhow!("{error}"))?;
        // Its cache evicts keys when it is full. With twice the capacity it keeps every key.
        let limiter = RateLimiter::new(keys as u64 * 2);
        limiter.add_limit(Limit::new("bench", BURST.into(), PERIOD.as_secs(), Vec::new(), vec![variable]));
        Ok(Self { limiter, namespace: "bench".into() })
    }
}

impl Contender for Limitador {
    #[inline]
    fn check(&self, key: &String) -> bool {
        let context = Context::from(HashMap::from([(VARIABLE.to_owned(), key.clone())]));
        let result = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        // A context without the variable would match no counter and would not be limited.
        result.is_ok_and(|result| !result.limited && result.counters.len() == 1)
    }
}
