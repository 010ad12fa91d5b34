//! Pacegate: one token bucket over the default store, reached in three ways.

use std::sync::Arc;

use anyhow::Result;
use pacegate::{Algorithm, Check, Cost, Limit, Limiter, MemoryOptions, MemoryStore, Plan, Profile, Rule};

use super::{BURST, Contender, PERIOD, TOKENS};

fn limit() -> Result<Limit> {
    Ok(Limit::try_new(Algorithm::TokenBucket, TOKENS.into(), PERIOD)?.with_burst(BURST.into())?)
}

/// A plan, looked up once.
pub(super) struct ByPlan(Plan);

impl ByPlan {
    pub(super) fn new(keys: usize) -> Result<Self> {
        let default = MemoryOptions::default();
        let options = MemoryOptions { max_keys: default.max_keys.max(2 * keys), ..default };
        let builder = Limiter::builder().memory(Arc::new(MemoryStore::new(options)));
        Ok(Self(builder.plan("bench", [limit()?]).build()?.plan("bench")?))
    }
}

impl Contender for ByPlan {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.0.check_now(key, Cost::ONE).is_ok_and(|decision| decision.allowed())
    }
}

/// A bare key, under the limiter's only limit.
pub(super) struct ByKey(Limiter);

impl ByKey {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Limiter::builder().default_limit(limit()?).build()?))
    }
}

impl Contender for ByKey {
    #[inline]
    fn check(&self, key: &String) -> bool {
        self.0.check_now(key).is_ok_and(|decision| decision.allowed())
    }
}

/// A check with an identity, an endpoint, a method and a profile, under one rule.
pub(super) struct ByRule {
    limiter: Limiter,
    profile: Profile,
}

impl ByRule {
    pub(super) fn new() -> Result<Self> {
        let rule = Rule::builder("bench", "user", limit()?).endpoint("/api/v1/orders").method("GET");
        Ok(Self { limiter: Limiter::builder().rule(rule).build()?, profile: Profile::default() })
    }
}

impl Contender for ByRule {
    #[inline]
    fn check(&self, key: &String) -> bool {
        let check = Check::new("user", key).endpoint("/api/v1/orders").method("GET").profile(&self.profile);
        self.limiter.check_now(&check).is_ok_and(|decision| decision.allowed())
    }
}
