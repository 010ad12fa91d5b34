//! Builders for rules and limits of plans. Errors are reported when they are built.

use pacegate_core::{Cost, InvalidLimit, Limit, LimitBuilder};
use pacegate_store::FailureMode;

use crate::identity::Invalid;
use crate::methods::Methods;
use crate::pattern::Pattern;
use crate::rule::{Mode, PlanLimit, Rule, Scope};

/// Builds a [`Rule`]. Created by [`Rule::builder`].
///
/// ```
/// use pacegate::{Check, Limit, Limiter, Rule};
///
/// let limiter = Limiter::builder()
///     .rule(Rule::builder("per-user", "user", Limit::per_minute(100)).endpoint("/api/{*rest}"))
///     .rule(Rule::builder("logins", "ip", Limit::per_minute(5)).endpoint("/login").method("POST"))
///     .build()?;
/// let decision = limiter.check_now(&Check::new("user", "u1").endpoint("/api/orders"))?;
/// assert_eq!(decision.remaining(), Some(99));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder has no effect until it is built or passed to a limiter"]
pub struct RuleBuilder {
    rule: Rule,
    /// The first error.
    invalid: Option<Invalid>,
}

impl Rule {
    /// Returns a builder for a rule that applies to every identifier of `dimension`, at every
    /// endpoint.
    pub fn builder(name: &str, dimension: &str, limit: impl Into<LimitBuilder>) -> RuleBuilder {
        match limit.into().build() {
            Ok(limit) => Self::new(name, dimension, limit).into(),
            Err(error) => {
                let invalid = Some(Invalid::new(error.field(), error.reason()));
                RuleBuilder { rule: Self::new(name, dimension, Limit::largest()), invalid }
            }
        }
    }
}

impl From<Rule> for RuleBuilder {
    fn from(rule: Rule) -> Self {
        Self { rule, invalid: None }
    }
}

impl RuleBuilder {
    /// Applies the rule only to this identifier.
    pub fn identifier(mut self, identifier: &str) -> Self {
        self.rule.identifier = Some(identifier.into());
        self
    }

    /// Applies the rule only to users of this tier.
    pub fn tier(mut self, tier: &str) -> Self {
        self.rule.tier = Some(tier.into());
        self
    }

    /// Applies the rule only to endpoints that match this [pattern](Pattern).
    pub fn endpoint(mut self, pattern: &str) -> Self {
        match Pattern::parse(pattern) {
            Ok(pattern) => self.rule.endpoint = pattern,
            Err(error) => self.note(Invalid::new("endpoint", error.to_string())),
        }
        self
    }

    /// Applies the rule only to requests with this method. Call it once for each method.
    pub fn method(mut self, method: &str) -> Self {
        match Methods::try_new(self.rule.methods.iter().chain([method])) {
            Ok(methods) => self.rule.methods = methods,
            Err(error) => self.note(error),
        }
        self
    }

    /// Counts this unit, such as `tokens`, instead of requests.
    pub fn unit(mut self, unit: &str) -> Self {
        self.rule.unit = Some(unit.into());
        self
    }

    /// Charges this fixed cost per request, instead of the cost of the check.
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.rule.cost = Some(cost.into());
        self
    }

    /// Allows a request while at least 1 remains, and charges its full cost: see
    /// [`Rule::overdraw`].
    pub fn overdraw(mut self) -> Self {
        self.rule.overdraw = true;
        self
    }

    /// Evaluates and counts, but never denies.
    pub fn shadow(mut self) -> Self {
        self.rule.mode = Mode::Shadow;
        self
    }

    /// Exempts the requests that the rule matches; nothing is counted.
    pub fn unlimited(mut self) -> Self {
        self.rule.unlimited = true;
        self
    }

    /// Keeps a separate counter for each concrete endpoint.
    pub fn per_endpoint(mut self) -> Self {
        self.rule.scope = Scope::Endpoint;
        self
    }

    /// Keeps the counters in the store with this name.
    pub fn store(mut self, store: &str) -> Self {
        self.rule.store = Some(store.into());
        self
    }

    /// Sets what happens while the store is unavailable. Default: the mode of the limiter.
    pub fn on_store_error(mut self, mode: FailureMode) -> Self {
        self.rule.on_store_error = Some(mode);
        self
    }

    /// Returns the rule.
    ///
    /// # Errors
    /// [`Invalid`] for the first number, pattern or method that is not valid. The limiter validates
    /// names.
    pub fn build(self) -> Result<Rule, Invalid> {
        self.invalid.map_or(Ok(self.rule), Err)
    }

    /// Returns the rule, or its name with the error.
    pub(crate) fn build_named(self) -> Result<Rule, (String, Invalid)> {
        match self.invalid {
            None => Ok(self.rule),
            Some(invalid) => Err((self.rule.name, invalid)),
        }
    }

    fn note(&mut self, invalid: Invalid) {
        self.invalid.get_or_insert(invalid);
    }
}

/// Builds a [`PlanLimit`]. Created by [`PlanLimit::builder`].
///
/// ```
/// use pacegate::{Limit, PlanLimit};
///
/// let tokens = PlanLimit::builder(Limit::per_minute(10_000)).unit("tokens").build()?;
/// assert_eq!(tokens.unit.as_deref(), Some("tokens"));
/// # Ok::<(), pacegate::InvalidLimit>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder has no effect until it is built or passed to a limiter"]
pub struct PlanLimitBuilder {
    limit: Result<Limit, InvalidLimit>,
    unit: Option<String>,
    cost: Option<Cost>,
}

impl PlanLimit {
    /// Returns a builder for a limit that counts requests.
    pub fn builder(limit: impl Into<LimitBuilder>) -> PlanLimitBuilder {
        PlanLimitBuilder { limit: limit.into().build(), unit: None, cost: None }
    }
}

impl PlanLimitBuilder {
    /// Counts this unit, such as `tokens`, instead of requests.
    pub fn unit(mut self, unit: &str) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Charges this fixed cost per request, instead of the cost of the check.
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    /// Returns the limit.
    ///
    /// # Errors
    /// [`InvalidLimit`] if the limit is not valid.
    pub fn build(self) -> Result<PlanLimit, InvalidLimit> {
        Ok(PlanLimit { limit: self.limit?, unit: self.unit, cost: self.cost })
    }
}

impl From<LimitBuilder> for PlanLimitBuilder {
    fn from(limit: LimitBuilder) -> Self {
        PlanLimit::builder(limit)
    }
}

impl From<Limit> for PlanLimitBuilder {
    fn from(limit: Limit) -> Self {
        PlanLimit::from(limit).into()
    }
}

impl From<PlanLimit> for PlanLimitBuilder {
    fn from(PlanLimit { limit, unit, cost }: PlanLimit) -> Self {
        Self { limit: Ok(limit), unit, cost }
    }
}
