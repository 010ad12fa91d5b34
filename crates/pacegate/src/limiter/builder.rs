//! Builds a limiter.

use std::sync::Arc;

use pacegate_core::LimitBuilder;
use pacegate_memory::MemoryStore;
use pacegate_store::{FailureMode, Store};

use super::Limiter;
use super::current::CurrentRules;
use crate::descriptor::DescriptorRule;
use crate::endpoint::PathOptions;
use crate::error::InvalidRules;
use crate::identity::{self, IPV6_PREFIX, POLICY_DIMENSIONS};
use crate::observe::{Observer, Observing};
use crate::profile::LimitOverride;
use crate::rule::{PlanLimit, Rule};
use crate::rule_builder::{PlanLimitBuilder, RuleBuilder};
use crate::ruleset::{CanonicalRules, Overrides, RuleSet};
use crate::stores::Stores;

/// Builds a [`Limiter`].
///
/// ```
/// use pacegate::{Limit, Limiter, Rule};
///
/// let limiter = Limiter::builder()
///     .rule(Rule::builder("logins", "ip", Limit::per_minute(5).sliding_log()).endpoint("/login"))
///     .plan("gold", [Limit::per_second(10).burst(20), Limit::per_day(10_000)])
///     .default_limit(Limit::per_second(100))
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LimiterBuilder {
    rules: Vec<RuleBuilder>,
    descriptors: Vec<DescriptorRule>,
    plans: Vec<(String, Vec<PlanLimitBuilder>)>,
    default_limit: Option<LimitBuilder>,
    stores: Stores,
    on_store_error: FailureMode,
    policy_dimensions: Option<Vec<Box<str>>>,
    ipv6_prefix: u8,
    paths: PathOptions,
    observing: Observing,
    overrides: Vec<(String, String, String, LimitOverride)>,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            descriptors: Vec::new(),
            plans: Vec::new(),
            default_limit: None,
            stores: Stores::default(),
            on_store_error: FailureMode::default(),
            policy_dimensions: None,
            ipv6_prefix: IPV6_PREFIX,
            paths: PathOptions::default(),
            observing: Observing::default(),
            overrides: Vec::new(),
        }
    }
}

impl LimiterBuilder {
    /// Adds a plan: a named list of limits that are charged together.
    #[must_use]
    pub fn plan(mut self, name: &str, limits: impl IntoIterator<Item = impl Into<PlanLimitBuilder>>) -> Self {
        self.plans.push((name.into(), limits.into_iter().map(Into::into).collect()));
        self
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, rule: impl Into<RuleBuilder>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// Replaces the numbers of the rules named `rule` for one identity that is not a user. The
    /// overrides of a user come with its [`Profile`](crate::Profile). Of two overrides for the same
    /// rule the later one applies.
    ///
    /// ```
    /// use pacegate::{Check, Limit, LimitOverride, Limiter, Rule};
    ///
    /// let raised = LimitOverride { quota: 500, window: None, burst: None };
    /// let limiter = Limiter::builder()
    ///     .rule(Rule::builder("per-address", "ip", Limit::per_minute(10)))
    ///     .override_limit("ip", "203.0.113.9", "per-address", raised)
    ///     .build()?;
    /// let decision = limiter.check_now(&Check::new("ip", "203.0.113.9").endpoint("/"))?;
    /// assert_eq!(decision.remaining(), Some(499));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn override_limit(
        mut self,
        dimension: &str,
        identifier: &str,
        rule: &str,
        numbers: LimitOverride,
    ) -> Self {
        self.overrides.push((dimension.into(), identifier.into(), rule.into(), numbers));
        self
    }

    /// Reports the decision of every check to `observer`. Decisions of a [`Plan`] and of
    /// descriptors are not reported.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observing = Observing::by(observer);
        self
    }

    /// Adds a descriptor rule.
    #[must_use]
    pub fn descriptor(mut self, rule: DescriptorRule) -> Self {
        self.descriptors.push(rule);
        self
    }

    /// Sets the limit that applies where no rule, plan or ad-hoc limit does. Without it, such
    /// checks pass.
    #[must_use]
    pub fn default_limit(mut self, limit: impl Into<LimitBuilder>) -> Self {
        self.default_limit = Some(limit.into());
        self
    }

    /// Sets the dimensions, besides `key`, whose identifiers can have a policy. Default: `user`,
    /// `ip` and `apikey`.
    ///
    /// A policy is a rule named `policy` for one identifier of the dimension `key`. It has one
    /// counter for that key, whichever of these dimensions the key is sent in.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter, Rule};
    ///
    /// let policy = Rule::builder("policy", "key", Limit::per_minute(100)).identifier("user-123");
    /// let limiter = Limiter::builder().rule(policy).build()?;
    /// limiter.check_now(&Check::new("user", "user-123").endpoint("/"))?;
    /// let decision = limiter.check_now(&Check::key("user-123").endpoint("/"))?;
    /// assert_eq!(decision.remaining(), Some(98));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn policy_dimensions<'a>(mut self, dimensions: impl IntoIterator<Item = &'a str>) -> Self {
        self.policy_dimensions = Some(dimensions.into_iter().map(Into::into).collect());
        self
    }

    /// Keeps the counters in `store` instead of a [`MemoryStore`] with default options.
    #[must_use]
    pub fn memory(self, store: Arc<MemoryStore>) -> Self {
        self.stores(Stores::memory(store))
    }

    /// Keeps the counters in a remote store, with the default timeout.
    /// [`check_now`](Limiter::check_now) is then not available.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        self.stores(Stores::remote(store, Stores::TIMEOUT))
    }

    /// Uses these stores, for example several named ones, or those of another limiter.
    #[must_use]
    pub fn stores(mut self, stores: Stores) -> Self {
        self.stores = stores;
        self
    }

    /// Sets what happens while a store is unavailable, for limits without a mode of their own.
    /// Default: [`FailureMode::Open`].
    #[must_use]
    pub fn on_store_error(mut self, mode: FailureMode) -> Self {
        self.on_store_error = mode;
        self
    }

    /// Sets by how many leading bits, 1 to 128, IPv6 addresses of the dimension `ip` are counted.
    /// Default: 64. [`Limiter::replace`] does not change it.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        self.ipv6_prefix = bits;
        self
    }

    /// Sets how paths are normalised and compared. [`Limiter::replace`] does not change it.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter, PathOptions, Rule};
    ///
    /// let rule = Rule::builder("reports", "user", Limit::per_hour(2)).endpoint("/report.csv");
    /// let paths = PathOptions { ignore_case: true, ..PathOptions::default() };
    /// let limiter = Limiter::builder().rule(rule).paths(paths).build()?;
    /// let decision = limiter.check_now(&Check::new("user", "u1").endpoint("/x/..%2FReport.CSV"))?;
    /// assert_eq!(decision.remaining(), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn paths(mut self, paths: PathOptions) -> Self {
        self.paths = paths;
        self
    }

    /// Compiles the rules and plans.
    ///
    /// # Errors
    /// [`InvalidRules`] if a rule or plan is not valid, or two of them conflict.
    pub fn build(self) -> Result<Limiter, InvalidRules> {
        let (stores, ipv6_prefix, paths) = (self.stores.clone(), self.ipv6_prefix, self.paths);
        let observing = self.observing.clone();
        if !(1..=128).contains(&ipv6_prefix) {
            return Err(InvalidRules::InvalidIpv6Prefix { bits: ipv6_prefix });
        }
        let rules = Arc::new(CurrentRules::new(self.compile(&stores, ipv6_prefix, paths)?));
        Ok(Limiter { rules, stores, ipv6_prefix, paths, waiters: Arc::default(), remote: None, observing })
    }

    pub(super) fn compile(
        self,
        stores: &Stores,
        ipv6_prefix: u8,
        paths: PathOptions,
    ) -> Result<RuleSet, InvalidRules> {
        let overrides = overrides_by_identity(&self.overrides, ipv6_prefix);
        let Self { rules, descriptors, plans, default_limit, on_store_error, policy_dimensions, .. } = self;
        let default = || POLICY_DIMENSIONS.map(Into::into).to_vec();
        let policies = policy_dimensions.unwrap_or_else(default);
        let rules = build_rules(rules)?;
        let rules = CanonicalRules::new(&rules, ipv6_prefix, paths)?;
        let plans = build_plans(plans)?;
        let default_limit = default_limit.map(LimitBuilder::build).transpose();
        let default_limit = default_limit.map_err(InvalidRules::InvalidDefaultLimit)?;
        let compiled =
            RuleSet::compile(&rules, &descriptors, plans, default_limit, on_store_error, policies, stores)?;
        Ok(compiled.with_overrides(overrides))
    }
}

/// Overrides by the identities that are counted. An identity that is not valid is never counted.
fn overrides_by_identity(given: &[(String, String, String, LimitOverride)], ipv6_prefix: u8) -> Overrides {
    let mut overrides = Overrides::default();
    for (dimension, identifier, rule, numbers) in given {
        let Ok(dimension) = identity::dimension(dimension) else { continue };
        let Ok(identifier) = identity::identifier(dimension, identifier, ipv6_prefix) else { continue };
        let of_dimension = overrides.entry(dimension.into()).or_default();
        let profile = of_dimension.entry((&*identifier).into()).or_default();
        profile.overrides.retain(|(other, _)| other != rule);
        profile.overrides.push((rule.clone(), *numbers));
    }
    overrides
}

fn build_rules(rules: Vec<RuleBuilder>) -> Result<Vec<Rule>, InvalidRules> {
    let build = |(index, rule): (usize, RuleBuilder)| {
        rule.build_named().map_err(|(name, invalid)| InvalidRules::InvalidRule { index, name, invalid })
    };
    rules.into_iter().enumerate().map(build).collect()
}

type Plans = Vec<(String, Vec<PlanLimit>)>;

fn build_plans(plans: Vec<(String, Vec<PlanLimitBuilder>)>) -> Result<Plans, InvalidRules> {
    let build = |(plan, limits): (String, Vec<PlanLimitBuilder>)| {
        let mut built = Vec::with_capacity(limits.len());
        for (index, limit) in limits.into_iter().enumerate() {
            match limit.build() {
                Ok(limit) => built.push(limit),
                Err(invalid) => return Err(InvalidRules::InvalidPlanLimit { plan, index, invalid }),
            }
        }
        Ok((plan, built))
    };
    plans.into_iter().map(build).collect()
}
