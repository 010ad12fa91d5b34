//! Rules and plans: named limits, and the requests they apply to.

use std::borrow::Cow;
use std::sync::Arc;

use pacegate_core::{Cost, Counter, Fit, Limit, Origin, hexadecimal, named};
use pacegate_store::FailureMode;
use sha2::{Digest, Sha256};

use crate::check::Costs;
use crate::endpoint::PathOptions;
use crate::identity::{self, Invalid};
use crate::methods::Methods;
use crate::pattern::Pattern;
use crate::profile::LimitOverride;

/// What a rule does when its limit is exceeded.
///
/// ```
/// use pacegate::{Check, Limit, Limiter, Mode, Rule};
///
/// let rule = Rule::builder("trial", "user", Limit::per_hour(1)).shadow().build()?;
/// assert_eq!(rule.mode, Mode::Shadow);
/// let limiter = Limiter::builder().rule(rule).build()?;
/// let check = Check::new("user", "u1").endpoint("/");
/// assert!(limiter.check_now(&check)?.allowed());
/// assert!(limiter.check_now(&check)?.allowed(), "a shadow rule never denies");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies the request.
    #[default]
    Enforce,
    /// Evaluates and counts, but never denies.
    Shadow,
}

named!(Mode { Enforce => "enforce", Shadow => "shadow" });

/// What a rule keeps a separate counter for.
///
/// ```
/// use pacegate::{Limit, Rule, Scope};
///
/// let rule = Rule::builder("per-page", "ip", Limit::per_minute(5)).build()?;
/// assert_eq!(rule.scope, Scope::Pattern, "one counter for all endpoints by default");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One counter for all endpoints that the pattern matches.
    #[default]
    Pattern,
    /// One counter for each concrete endpoint.
    Endpoint,
}

named!(Scope { Pattern => "pattern", Endpoint => "endpoint" });

/// A named limit, and the requests it applies to.
///
/// Rules with the same name are variants of one limit: of those that match a request, the most
/// specific applies.
///
/// ```
/// use pacegate::{Check, Limit, Limiter, Rule};
///
/// let all = Rule::builder("per-user", "user", Limit::per_minute(100)).endpoint("/api/{*rest}");
/// let pro = Rule::builder("per-user", "user", Limit::per_minute(1_000)).endpoint("/api/{*rest}").tier("pro");
/// let limiter = Limiter::builder().rule(all).rule(pro).build()?;
/// let check = Check::new("user", "u1").endpoint("/api/orders").tier("pro");
/// assert_eq!(limiter.check_now(check)?.remaining(), Some(999));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name. Counters belong to the name, so they survive a change of the numbers.
    pub name: String,
    /// The dimension that is counted: `user`, `ip`, `apikey` or a custom word.
    pub dimension: String,
    /// Applies only to this identifier.
    pub identifier: Option<String>,
    /// Applies only to users of this tier.
    pub tier: Option<String>,
    /// Applies only to endpoints that match this pattern.
    pub endpoint: Pattern,
    /// Applies only to these methods.
    pub methods: Methods,
    /// The limit.
    pub limit: Limit,
    /// Exempts what the rule matches: nothing is counted and the limit is ignored. Use it for a
    /// tier or an identifier that other variants of the same name would limit.
    pub unlimited: bool,
    /// The unit that is counted, such as `tokens` or `bytes`. Default: requests.
    pub unit: Option<String>,
    /// A fixed cost per request, instead of the cost of the check.
    pub cost: Option<Cost>,
    /// Allows a request while at least 1 remains and charges its full cost, into a debt of up to
    /// one capacity. Use it for costs that are known only afterwards.
    pub overdraw: bool,
    /// Whether the rule denies requests or only counts them.
    pub mode: Mode,
    /// What the rule keeps a separate counter for.
    pub scope: Scope,
    /// The name of the store for the counters. Default: the default store.
    pub store: Option<String>,
    /// What happens while that store is unavailable. Default: the mode of the limiter.
    pub on_store_error: Option<FailureMode>,
}

impl Rule {
    /// Returns a rule for every identifier of a dimension, at every endpoint.
    pub fn new(name: &str, dimension: &str, limit: Limit) -> Self {
        Self {
            name: name.into(),
            dimension: dimension.into(),
            identifier: None,
            tier: None,
            endpoint: Pattern::all(),
            methods: Methods::default(),
            limit,
            unlimited: false,
            unit: None,
            cost: None,
            overdraw: false,
            mode: Mode::Enforce,
            scope: Scope::Pattern,
            store: None,
            on_store_error: None,
        }
    }

    /// Whether this is a policy: a rule for one key, in any of the [policy
    /// dimensions](crate::LimiterBuilder::policy_dimensions).
    pub fn is_policy(&self) -> bool {
        self.name == POLICY_NAME
            && self.dimension == identity::KEY
            && self.identifier.is_some()
            && self.tier.is_none()
            && self.methods.is_empty()
            && self.endpoint.as_str() == "*"
    }

    /// Returns the rule with its dimension, identifier and unit in canonical form; clones only if
    /// something changes. `ipv6_prefix` is the number of leading bits by which IPv6 addresses are
    /// counted.
    ///
    /// # Errors
    /// [`Invalid`] with the first field that is not valid.
    pub fn canonical(&self, ipv6_prefix: u8) -> Result<Cow<'_, Self>, Invalid> {
        identity::check_name(&self.name)?;
        let dimension = identity::dimension(&self.dimension)?;
        let identifier = self.identifier.as_deref();
        let identifier = identifier.map(|text| identity::identifier(dimension, text, ipv6_prefix));
        let identifier = identifier.transpose()?;
        self.tier.as_deref().map(identity::check_tier).transpose()?;
        self.unit.as_deref().map(identity::check_unit).transpose()?;
        let counts_requests = self.unit.as_deref() == Some(identity::REQUESTS);
        let is_own = dimension == self.dimension
            && identifier.as_deref() == self.identifier.as_deref()
            && !counts_requests;
        if is_own {
            return Ok(Cow::Borrowed(self));
        }
        Ok(Cow::Owned(Self {
            dimension: dimension.to_owned(),
            identifier: identifier.map(Cow::into_owned),
            unit: self.unit.clone().filter(|_| !counts_requests),
            ..self.clone()
        }))
    }

    /// Like [`canonical`](Self::canonical), with the endpoint in the form that `paths` compares.
    ///
    /// # Errors
    /// [`Invalid`] with the first field that is not valid.
    pub fn compared(&self, ipv6_prefix: u8, paths: PathOptions) -> Result<Cow<'_, Self>, Invalid> {
        let mut rule = self.canonical(ipv6_prefix)?;
        if let Cow::Owned(endpoint) = self.endpoint.compared_by(paths) {
            rule.to_mut().endpoint = endpoint;
        }
        Ok(rule)
    }

    /// Returns what distinguishes this rule from the other variants of its name.
    pub fn variant(&self) -> impl Eq + std::hash::Hash + '_ {
        let subject = (&self.name, &self.dimension, &self.identifier, &self.tier);
        (subject, self.endpoint.canonical(), &self.methods)
    }

    /// Returns a stable hash of the variant, in hexadecimal. The catalog finds its rows by this
    /// hash, so its input must never change.
    pub fn variant_key(&self) -> String {
        let pattern = self.endpoint.canonical();
        let parts = [
            Some(self.name.as_str()),
            Some(&self.dimension),
            self.identifier.as_deref(),
            self.tier.as_deref(),
            Some(&pattern),
            self.methods.as_text(),
        ];
        let mut hasher = Sha256::new();
        for part in parts {
            // A missing part differs from an empty one.
            hasher.update([u8::from(part.is_some())]);
            if let Some(part) = part {
                hasher.update((part.len() as u64).to_be_bytes());
                hasher.update(part);
            }
        }
        hexadecimal(&hasher.finalize())
    }
}

/// Why a limit applies to a request, most specific first.
///
/// ```
/// use pacegate::{Limit, Limiter, LimitSource};
///
/// let limiter = Limiter::new(Limit::per_second(10))?;
/// let decision = limiter.check_now("user-1")?;
/// assert_eq!(decision.binding_limit().map(|limit| limit.why), Some(LimitSource::Default));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitSource {
    /// A temporary override for the user.
    Override,
    /// A rule for exactly this identifier.
    Identifier,
    /// A custom limit of the user.
    Custom,
    /// A rule for the user's tier.
    Tier,
    /// A rule without an identifier or tier.
    Anyone,
    /// A descriptor rule.
    Descriptor,
    /// A plan that the check names.
    Plan,
    /// An ad-hoc limit that the check contains.
    AdHoc,
    /// The default limit, because no other limit applies.
    Default,
}

named!(LimitSource {
    Override => "override",
    Identifier => "identifier",
    Custom => "custom",
    Tier => "tier",
    Anyone => "anyone",
    Descriptor => "descriptor",
    Plan => "plan",
    AdHoc => "ad_hoc",
    Default => "default",
});

/// The name of all policies.
pub const POLICY_NAME: &str = "policy";

/// The name of the default limit. Overrides and custom limits refer to the default limit by this
/// name.
pub const DEFAULT_NAME: &str = "default";

/// Maximum length of a policy key in labels, in bytes. Longer keys are replaced by their hash.
const LABEL_KEY_LENGTH_MAX: usize = 128;

/// The key of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    key: Box<str>,
    label: Box<str>,
}

impl Policy {
    fn of(rule: &Rule) -> Option<Box<Self>> {
        let key = rule.identifier.as_deref().filter(|_| rule.is_policy())?;
        let label = if key.len() <= LABEL_KEY_LENGTH_MAX {
            format!("{POLICY_NAME}:{key}")
        } else {
            format!("{POLICY_NAME}:{}", hexadecimal(&Sha256::digest(key)[..8]))
        };
        Some(Box::new(Self { key: key.into(), label: label.into() }))
    }
}

/// A limit that applied to a request, with its name and its counter.
///
/// ```
/// use pacegate::{Check, Limit, Limiter};
///
/// let limiter = Limiter::builder().plan("gold", [Limit::per_minute(10)]).build()?;
/// let decision = limiter.check_now(Check::key("user-1").plan("gold"))?;
/// let limit = &decision.limits()[0];
/// assert_eq!((&*limit.name, limit.limit.quota(), limit.dimension()), ("gold", 10, "key"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NamedLimit {
    /// The name of the rule or plan; `default` or `ad-hoc` for limits without one.
    pub name: Box<str>,
    /// The limit.
    pub limit: Limit,
    /// Whether it denies requests or only counts them.
    pub mode: Mode,
    /// Why it applies.
    pub why: LimitSource,
    /// The unit that is counted. Default: requests.
    pub unit: Option<Box<str>>,
    /// A fixed cost per request, instead of the cost of the check.
    pub cost: Option<Cost>,
    /// Whether it can be charged into debt.
    pub overdraw: bool,
    pub(crate) counter: Counter,
    /// The index of its store.
    pub(crate) store: usize,
    pub(crate) on_store_error: FailureMode,
    pub(crate) policy: Option<Box<Policy>>,
}

impl NamedLimit {
    fn new(
        name: &str,
        limit: Limit,
        why: LimitSource,
        counter: Counter,
        on_store_error: FailureMode,
    ) -> Self {
        Self {
            name: name.into(),
            limit,
            mode: Mode::Enforce,
            why,
            unit: None,
            cost: None,
            overdraw: false,
            counter,
            store: 0,
            on_store_error,
            policy: None,
        }
    }

    /// Returns the cost of a request for this limit; `None` if the limit does not apply, because
    /// the request has no cost in its unit.
    #[inline(always)]
    pub(crate) fn cost_of(&self, costs: &Costs<'_>) -> Option<Cost> {
        let cost = costs.of(self.unit.as_deref())?;
        Some(self.cost.unwrap_or(cost))
    }

    /// How much must remain for a charge to be allowed.
    #[inline(always)]
    pub(crate) fn fit(&self) -> Fit {
        if self.overdraw { Fit::Overdraw } else { Fit::Whole }
    }

    /// Returns the label for metrics: the name and, for a policy, its key, which operators choose
    /// as well.
    pub fn label(&self) -> &str {
        self.policy.as_ref().map_or(&self.name, |policy| &policy.label)
    }

    /// Whether it counts this identity.
    pub fn counts(&self, dimension: &str, identifier: &str) -> bool {
        match &self.policy {
            Some(policy) => *policy.key == *identifier,
            None => self.dimension() == dimension,
        }
    }

    /// Returns the index of its store in the limiter.
    #[doc(hidden)]
    #[inline]
    pub fn store_index(&self) -> usize {
        self.store
    }

    /// Returns a limit as reported by another limiter.
    #[doc(hidden)]
    pub fn reported(name: &str, dimension: &str, limit: Limit, why: LimitSource) -> Self {
        Self::new(name, limit, why, Counter::new(name, dimension, ""), FailureMode::default())
    }

    /// `store` is the index of the store; `otherwise` is the failure mode if the rule has none.
    pub(crate) fn of_rule(rule: &Rule, store: usize, otherwise: FailureMode) -> Self {
        let counter =
            rule_counter(&rule.name, &rule.dimension, rule.scope, &rule.endpoint.canonical(), &rule.limit);
        let on_store_error = rule.on_store_error.unwrap_or(otherwise);
        let why = match (&rule.identifier, &rule.tier) {
            (Some(_), _) => LimitSource::Identifier,
            (None, Some(_)) => LimitSource::Tier,
            (None, None) => LimitSource::Anyone,
        };
        let policy = Policy::of(rule);
        let (mode, named) = (rule.mode, Self::new(&rule.name, rule.limit, why, counter, on_store_error));
        let unit = rule.unit.as_deref().map(Into::into);
        Self { mode, store, policy, unit, cost: rule.cost, overdraw: rule.overdraw, ..named }
    }

    /// Returns this limit with other numbers. It keeps its counter unless the window changes.
    /// `pattern` is the pattern of the rule; the default limit has none.
    pub(crate) fn with_numbers(
        &self,
        numbers: &LimitOverride,
        why: LimitSource,
        pattern: Option<&Pattern>,
    ) -> Option<Self> {
        let limit = numbers.apply_to(&self.limit).ok()?;
        let counter = if limit.window() == self.limit.window() {
            self.counter.clone()
        } else {
            self.counter_of(&limit, pattern)
        };
        Some(Self { limit, why, counter, ..self.clone() })
    }

    /// Returns the default limit with the counter that it has when an override changes its window.
    pub(crate) fn with_own_window(&self) -> Self {
        Self { counter: self.counter_of(&self.limit, None), ..self.clone() }
    }

    fn counter_of(&self, limit: &Limit, pattern: Option<&Pattern>) -> Counter {
        let scope = if self.is_per_endpoint() { Scope::Endpoint } else { Scope::Pattern };
        let pattern = pattern.map(Pattern::canonical).unwrap_or_default();
        let counter = rule_counter(&self.name, self.dimension(), scope, &pattern, limit);
        counter.with_origin(self.counter.origin())
    }

    /// A limit of a plan. Its counter depends on the plan and on the limit itself, so reordering
    /// the limits of a plan keeps their counters.
    pub(crate) fn of_plan(
        plan: &str,
        dimension: &str,
        limit: &PlanLimit,
        on_store_error: FailureMode,
    ) -> Self {
        let scope = format!("{PLAN_SCOPE}{}", limit.distinction());
        let counter = Counter::variant(plan, dimension, &scope, PLAN_SCOPE.len()..scope.len());
        let counter = counter.with_origin(origin_in(dimension));
        let named = Self::new(plan, limit.limit, LimitSource::Plan, counter, on_store_error);
        let unit = limit.unit.as_deref().filter(|unit| *unit != identity::REQUESTS).map(Into::into);
        Self { unit, cost: limit.cost, ..named }
    }

    /// The default limit.
    pub(crate) fn default(dimension: &str, limit: Limit, on_store_error: FailureMode) -> Self {
        let counter = Counter::per_endpoint(DEFAULT_NAME, dimension, DEFAULT_SCOPE);
        let counter = counter.with_origin(origin_in(dimension));
        Self::new(DEFAULT_NAME, limit, LimitSource::Default, counter, on_store_error)
    }

    /// An ad-hoc limit. Each algorithm and window has a separate counter, so alternating between
    /// them does not reset one.
    pub(crate) fn ad_hoc(dimension: &str, limit: Limit, on_store_error: FailureMode) -> Self {
        let scope = format!("{AD_HOC_SCOPE}{}", distinction(&limit));
        let variant = AD_HOC_SCOPE.len()..scope.len();
        let counter = Counter::variant_per_endpoint("ad-hoc", dimension, &scope, variant);
        let counter = counter.with_origin(Origin::AdHoc);
        Self::new("ad-hoc", limit, LimitSource::AdHoc, counter, on_store_error)
    }

    /// Whether both use the same counter. A [`reported`](Self::reported) limit is compared by the
    /// fields that it has.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let kind = |limit: &Self| (limit.why, limit.limit.algorithm(), limit.limit.window());
        let alike =
            self.name == other.name && self.dimension() == other.dimension() && kind(self) == kind(other);
        alike || self.counter == other.counter
    }

    /// Whether it is evaluated and counted but never denies.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    /// Whether each concrete endpoint has a separate counter.
    pub fn is_per_endpoint(&self) -> bool {
        self.counter.is_per_endpoint()
    }

    /// Returns the dimension that is counted.
    pub fn dimension(&self) -> &str {
        self.counter.dimension()
    }
}

/// Returns the counter for the name and pattern of a rule, one per algorithm and window. If
/// variants with different windows shared a counter, each would reset it for the other, and a
/// client that alternates between them would never be limited.
fn rule_counter(name: &str, dimension: &str, scope: Scope, pattern: &str, limit: &Limit) -> Counter {
    // A pattern starts with a slash, and the text before it contains none.
    let mut text = distinction(limit);
    let variant = 0..text.len();
    text.push_str(pattern);
    match scope {
        Scope::Pattern => Counter::variant(name, dimension, &text, variant),
        Scope::Endpoint => Counter::variant_per_endpoint(name, dimension, &text, variant),
    }
}

/// The origin of the counter of a plan or of the default limit. It must not depend on the
/// dimensions of the rules, because a counter must stay the same when rules change.
fn origin_in(dimension: &str) -> Origin {
    let known = [identity::USER, identity::IP, identity::API_KEY, identity::KEY].contains(&dimension);
    if known { Origin::Configured } else { Origin::CallersDimension }
}

/// Differs from the scope of every rule, which contains a pattern and thus a slash.
const DEFAULT_SCOPE: &str = "default";
/// Prefixes of the scopes of plans and of ad-hoc limits. The suffix distinguishes their counters.
const PLAN_SCOPE: &str = "plan:";
const AD_HOC_SCOPE: &str = "ad-hoc:";

/// Distinguishes limits that cannot share a counter.
pub(crate) fn distinction(limit: &Limit) -> String {
    format!("{}:{}", limit.algorithm(), limit.window().as_micros())
}

/// A limit of a plan, with its unit and a fixed cost if it has one.
///
/// ```
/// use pacegate::{Check, Limit, Limiter, PlanLimit};
///
/// let requests = PlanLimit::builder(Limit::per_minute(60));
/// let tokens = PlanLimit::builder(Limit::per_minute(10_000)).unit("tokens");
/// let limiter = Limiter::builder().plan("chat", [requests, tokens]).build()?;
/// let check = Check::key("user-123").plan("chat").cost_in("tokens", 4_000);
/// let decision = limiter.check_now(&check)?;
/// assert_eq!(decision.answers()[1].remaining, Some(6_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLimit {
    /// The limit.
    pub limit: Limit,
    /// The unit that is counted. Default: requests.
    pub unit: Option<String>,
    /// A fixed cost per request, instead of the cost of the check.
    pub cost: Option<Cost>,
}

impl From<Limit> for PlanLimit {
    fn from(limit: Limit) -> Self {
        Self { limit, unit: None, cost: None }
    }
}

impl PlanLimit {
    /// Validates the limits of a plan of a file or a catalog: 1 to [`PLAN_LIMITS_MAX`] limits, no
    /// two with the same unit, algorithm and window.
    ///
    /// # Errors
    /// [`Invalid`] with the field `limits`.
    pub fn check_all(limits: &[Self]) -> Result<(), Invalid> {
        let invalid = |reason| Err(Invalid::new("limits", reason));
        if !(1..=PLAN_LIMITS_MAX).contains(&limits.len()) {
            return invalid(format!(
                "must have between 1 and {PLAN_LIMITS_MAX} limits, got {}",
                limits.len()
            ));
        }
        let unit = limits.iter().filter_map(|limit| limit.unit.as_deref()).try_for_each(identity::check_unit);
        if let Err(wrong) = unit {
            return invalid(wrong.to_string());
        }
        match Self::duplicate(limits) {
            None => Ok(()),
            Some(limit) => {
                invalid(format!("duplicate {} limit over {:?}", limit.algorithm(), limit.window()))
            }
        }
    }

    /// Returns a limit that would share its counter with an earlier limit of the same plan.
    pub(crate) fn duplicate(limits: &[PlanLimit]) -> Option<&Limit> {
        let same = |a: &PlanLimit, b: &PlanLimit| a.distinction() == b.distinction();
        limits
            .iter()
            .enumerate()
            .find(|(index, limit)| limits[..*index].iter().any(|other| same(other, limit)))
            .map(|(_, limit)| &limit.limit)
    }

    /// Distinguishes its counter from those of the other limits of the plan.
    fn distinction(&self) -> String {
        match self.unit.as_deref().filter(|unit| *unit != identity::REQUESTS) {
            None => distinction(&self.limit),
            Some(unit) => format!("{}:{unit}", distinction(&self.limit)),
        }
    }
}

/// The limits of a plan, with their counters in one dimension.
pub(crate) type NamedLimits = Arc<[Arc<NamedLimit>]>;

/// Maximum number of limits in a plan of a file or a catalog.
pub const PLAN_LIMITS_MAX: usize = 16;

/// A named list of limits.
#[derive(Clone, Debug)]
pub(crate) struct PlanLimits {
    name: Box<str>,
    limits: Vec<PlanLimit>,
    on_store_error: FailureMode,
    /// The limits for well-known dimensions; those of other dimensions are created on demand.
    prepared: Vec<(Box<str>, NamedLimits)>,
}

impl PlanLimits {
    pub(crate) fn new(
        name: &str,
        limits: Vec<PlanLimit>,
        on_store_error: FailureMode,
        dimensions: &[&str],
    ) -> Self {
        let mut plan = Self { name: name.into(), limits, on_store_error, prepared: Vec::new() };
        plan.prepared =
            dimensions.iter().map(|dimension| ((*dimension).into(), plan.make(dimension))).collect();
        plan
    }

    /// Returns the limits with their counters in `dimension`.
    pub(crate) fn of(&self, dimension: &str) -> NamedLimits {
        let prepared = self.prepared.iter().find(|(known, _)| **known == *dimension);
        prepared.map_or_else(|| self.make(dimension), |(_, limits)| limits.clone())
    }

    /// Returns the limits in `dimension` if they are prepared.
    pub(crate) fn prepared(&self, dimension: &str) -> Option<&[Arc<NamedLimit>]> {
        let prepared = self.prepared.iter().find(|(known, _)| **known == *dimension);
        prepared.map(|(_, limits)| &**limits)
    }

    fn make(&self, dimension: &str) -> NamedLimits {
        let named = |limit| NamedLimit::of_plan(&self.name, dimension, limit, self.on_store_error);
        self.limits.iter().map(|limit| Arc::new(named(limit))).collect()
    }
}
