//! Rules and plans: named limits, and whom and where they apply.

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
/// assert!(limiter.check_now(&check)?.allowed(), "it only watches");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Denies.
    #[default]
    Enforce,
    /// Only watches: it is evaluated and counted, but never denies.
    Shadow,
}

named!(Mode { Enforce => "enforce", Shadow => "shadow" });

/// What a rule has a counter for.
///
/// ```
/// use pacegate::{Limit, Rule, Scope};
///
/// let rule = Rule::builder("per-page", "ip", Limit::per_minute(5)).build()?;
/// assert_eq!(rule.scope, Scope::Pattern, "one counter for all endpoints, unless it says otherwise");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One for all endpoints its pattern covers.
    #[default]
    Pattern,
    /// One for each concrete endpoint.
    Endpoint,
}

named!(Scope { Pattern => "pattern", Endpoint => "endpoint" });

/// A named limit with whom and where it applies. Rules of one name are variants of one limit: the most specific one applies.
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
    /// The name; counters belong to it, not to the numbers.
    pub name: String,
    /// What is counted: `user`, `ip`, `apikey` or a word of one's own.
    pub dimension: String,
    /// Only for this identifier.
    pub identifier: Option<String>,
    /// Only for users of this tier.
    pub tier: Option<String>,
    /// Only for these endpoints.
    pub endpoint: Pattern,
    /// Only for these methods.
    pub methods: Methods,
    /// The numbers.
    pub limit: Limit,
    /// Whether what it applies to is not limited: for a tier or an identifier that the other variants of its name are not for.
    /// Then nothing is counted, whatever the numbers.
    pub unlimited: bool,
    /// What it counts: `tokens`, `bytes` or another word; requests unless it is set.
    pub unit: Option<String>,
    /// What each request takes, instead of the cost that a check names.
    pub cost: Option<Cost>,
    /// Whether a request passes while at least 1 is left and is charged in full, into a debt of up to one capacity: for costs
    /// that are known only afterwards.
    pub overdraw: bool,
    /// Whether it denies or only watches.
    pub mode: Mode,
    /// What has a counter of its own.
    pub scope: Scope,
    /// Which store its counters are in; the default one unless it is set.
    pub store: Option<String>,
    /// What happens while that store fails; the limiter's own mode unless it is set.
    pub on_store_error: Option<FailureMode>,
}

impl Rule {
    /// A rule for everyone of a dimension, everywhere.
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

    /// Whether this is a policy: it belongs to one key, whatever the dimension that the key comes in
    /// ([`LimiterBuilder::policy_dimensions`](crate::LimiterBuilder::policy_dimensions)).
    pub fn is_policy(&self) -> bool {
        self.name == POLICY_NAME
            && self.dimension == identity::KEY
            && self.identifier.is_some()
            && self.tier.is_none()
            && self.methods.is_empty()
            && self.endpoint.as_str() == "*"
    }

    /// The same rule in the one spelling that is compared and counted, copied only if it is in another one: the dimension, the identifier and the
    /// unit. `ipv6_prefix` is how many bits of an IPv6 address count.
    ///
    /// # Errors
    /// [`Invalid`] with the first field that cannot be what it is.
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

    /// As [`canonical`](Self::canonical), with the endpoint in the spelling that `paths` compares.
    ///
    /// # Errors
    /// [`Invalid`] with the first field that cannot be what it is.
    pub fn compared(&self, ipv6_prefix: u8, paths: PathOptions) -> Result<Cow<'_, Self>, Invalid> {
        let mut rule = self.canonical(ipv6_prefix)?;
        if let Cow::Owned(endpoint) = self.endpoint.compared_by(paths) {
            rule.to_mut().endpoint = endpoint;
        }
        Ok(rule)
    }

    /// What makes this a variant of its own among the rules of its name.
    pub fn variant(&self) -> impl Eq + std::hash::Hash + '_ {
        let who = (&self.name, &self.dimension, &self.identifier, &self.tier);
        (who, self.endpoint.canonical(), &self.methods)
    }

    /// A hash that stays the same as long as the variant does, in hexadecimal digits. The catalog finds its
    /// rows by it, so what is hashed never changes.
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
            // What is missing differs from what is empty.
            hasher.update([u8::from(part.is_some())]);
            if let Some(part) = part {
                hasher.update((part.len() as u64).to_be_bytes());
                hasher.update(part);
            }
        }
        hexadecimal(&hasher.finalize())
    }
}

/// Why a limit applies to a request, the most specific reason first.
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
    /// A rule for that very identifier.
    Identifier,
    /// The user has numbers of their own.
    Custom,
    /// A rule for the user's tier.
    Tier,
    /// A rule for everyone.
    Anyone,
    /// A rule for descriptors.
    Descriptor,
    /// The check names the plan.
    Plan,
    /// The check brought the limit along.
    AdHoc,
    /// No rule applies.
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

/// The name of rules that are policies.
pub const POLICY_NAME: &str = "policy";

/// The name of the limit that applies where no rule does; overrides and custom limits replace its numbers by it.
pub const DEFAULT_NAME: &str = "default";

/// A longer key of a policy is shown by its hash in labels.
const LABEL_KEY_LENGTH_MAX: usize = 128;

/// What tells a policy from the others.
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

/// A limit that applied to a request: what it is called and what it counts.
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
    /// The rule's or plan's name; `default` and `ad-hoc` for the limits that have none.
    pub name: Box<str>,
    /// The numbers.
    pub limit: Limit,
    /// Whether it denies or only watches.
    pub mode: Mode,
    /// Why it applies.
    pub why: LimitSource,
    /// What it counts; requests unless it is set.
    pub unit: Option<Box<str>>,
    /// What each request takes, instead of the cost that a check names.
    pub cost: Option<Cost>,
    /// Whether it may be charged into debt.
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

    /// What a request of these costs takes from it; `None` when they do not mention its unit, so that it does not apply.
    #[inline(always)]
    pub(crate) fn cost_of(&self, costs: &Costs<'_>) -> Option<Cost> {
        let cost = costs.of(self.unit.as_deref())?;
        Some(self.cost.unwrap_or(cost))
    }

    /// How much room a charge needs.
    #[inline(always)]
    pub(crate) fn fit(&self) -> Fit {
        if self.overdraw { Fit::Overdraw } else { Fit::Whole }
    }

    /// What operators know it by, for metrics: its name, and with that the key of a policy, which operators chose as well.
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

    /// The place of its store among those of the limiter.
    #[doc(hidden)]
    #[inline]
    pub fn store_place(&self) -> usize {
        self.store
    }

    /// A limit that another limiter applied, as far as it tells.
    #[doc(hidden)]
    pub fn reported(name: &str, dimension: &str, limit: Limit, why: LimitSource) -> Self {
        Self::new(name, limit, why, Counter::new(name, dimension, ""), FailureMode::default())
    }

    /// `store` is the place of the rule's store, `otherwise` what happens on a failure if the rule does not say.
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

    /// The same limit of a rule with other numbers: the counter stays unless the window is another one.
    /// `pattern` is the rule's; the default limit has none.
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

    /// The default limit with the counter that it has where its numbers have a window of their own.
    pub(crate) fn with_window_of_its_own(&self) -> Self {
        Self { counter: self.counter_of(&self.limit, None), ..self.clone() }
    }

    fn counter_of(&self, limit: &Limit, pattern: Option<&Pattern>) -> Counter {
        let scope = if self.is_per_endpoint() { Scope::Endpoint } else { Scope::Pattern };
        let pattern = pattern.map(Pattern::canonical).unwrap_or_default();
        let counter = rule_counter(&self.name, self.dimension(), scope, &pattern, limit);
        counter.with_origin(self.counter.origin())
    }

    /// A limit of a plan. Its counter belongs to the plan and to what tells its limits apart, so that reordering them moves nothing.
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

    /// The limit that applies where no rule does.
    pub(crate) fn default(dimension: &str, limit: Limit, on_store_error: FailureMode) -> Self {
        let counter = Counter::per_endpoint(DEFAULT_NAME, dimension, DEFAULT_SCOPE);
        let counter = counter.with_origin(origin_in(dimension));
        Self::new(DEFAULT_NAME, limit, LimitSource::Default, counter, on_store_error)
    }

    /// A limit that a caller brought along. Each algorithm and window has a counter of its own, so that changing them back and forth
    /// does not start a counter anew.
    pub(crate) fn ad_hoc(dimension: &str, limit: Limit, on_store_error: FailureMode) -> Self {
        let scope = format!("{AD_HOC_SCOPE}{}", distinction(&limit));
        let variant = AD_HOC_SCOPE.len()..scope.len();
        let counter = Counter::variant_per_endpoint("ad-hoc", dimension, &scope, variant);
        let counter = counter.with_origin(Origin::AdHoc);
        Self::new("ad-hoc", limit, LimitSource::AdHoc, counter, on_store_error)
    }

    /// Whether both count in the same place, as far as can be told where one of them is only [`reported`](Self::reported).
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let told = |limit: &Self| (limit.why, limit.limit.algorithm(), limit.limit.window());
        let alike =
            self.name == other.name && self.dimension() == other.dimension() && told(self) == told(other);
        alike || self.counter == other.counter
    }

    /// Whether it is evaluated and counted but never denies.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }

    /// Whether each concrete endpoint has a counter of its own.
    pub fn is_per_endpoint(&self) -> bool {
        self.counter.is_per_endpoint()
    }

    /// What is counted.
    pub fn dimension(&self) -> &str {
        self.counter.dimension()
    }
}

/// The counter of a rule's name and pattern, one for each algorithm and window: if variants that count differently shared one, each would start it
/// anew for the other, and who alternates between them would never be limited.
fn rule_counter(name: &str, dimension: &str, scope: Scope, pattern: &str, limit: &Limit) -> Counter {
    // Every pattern starts with a slash, and nothing before it has one.
    let mut text = distinction(limit);
    let variant = 0..text.len();
    text.push_str(pattern);
    match scope {
        Scope::Pattern => Counter::variant(name, dimension, &text, variant),
        Scope::Endpoint => Counter::variant_per_endpoint(name, dimension, &text, variant),
    }
}

/// Where the counter of a plan or of the default limit comes from. Which dimensions rules count by does
/// not matter: a counter must stay the same when rules change.
fn origin_in(dimension: &str) -> Origin {
    let known = [identity::USER, identity::IP, identity::API_KEY, identity::KEY].contains(&dimension);
    if known { Origin::Configured } else { Origin::CallersDimension }
}

/// No rule's scope: those have a pattern, which starts with a slash.
const DEFAULT_SCOPE: &str = "default";
/// What the scopes of plans and of ad-hoc limits start with; what follows tells their counters apart.
const PLAN_SCOPE: &str = "plan:";
const AD_HOC_SCOPE: &str = "ad-hoc:";

/// What tells apart limits that cannot share a counter.
pub(crate) fn distinction(limit: &Limit) -> String {
    format!("{}:{}", limit.algorithm(), limit.window().as_micros())
}

/// A limit of a plan: its numbers, what it counts, and what each request takes.
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
    /// The numbers.
    pub limit: Limit,
    /// What it counts; requests unless it is set.
    pub unit: Option<String>,
    /// What each request takes, instead of the cost that a check names.
    pub cost: Option<Cost>,
}

impl From<Limit> for PlanLimit {
    fn from(limit: Limit) -> Self {
        Self { limit, unit: None, cost: None }
    }
}

impl PlanLimit {
    /// Checks the limits of a plan of a file or a catalog: 1 to [`PLAN_LIMITS_MAX`], each of its own unit,
    /// algorithm or window.
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

    /// The numbers of a limit that would share its counter with an earlier one of the same plan.
    pub(crate) fn duplicate(limits: &[PlanLimit]) -> Option<&Limit> {
        let same = |a: &PlanLimit, b: &PlanLimit| a.distinction() == b.distinction();
        limits
            .iter()
            .enumerate()
            .find(|(index, limit)| limits[..*index].iter().any(|other| same(other, limit)))
            .map(|(_, limit)| &limit.limit)
    }

    /// What tells its counter from those of the plan's other limits.
    fn distinction(&self) -> String {
        match self.unit.as_deref().filter(|unit| *unit != identity::REQUESTS) {
            None => distinction(&self.limit),
            Some(unit) => format!("{}:{unit}", distinction(&self.limit)),
        }
    }
}

/// The limits of a plan, with their counters in one dimension.
pub(crate) type NamedLimits = Arc<[Arc<NamedLimit>]>;

/// How many limits a plan of a file or a catalog can have.
pub const PLAN_LIMITS_MAX: usize = 16;

/// A named list of limits that an embedding program refers to.
#[derive(Clone, Debug)]
pub(crate) struct PlanLimits {
    name: Box<str>,
    limits: Vec<PlanLimit>,
    on_store_error: FailureMode,
    /// The limits with their counters, for the dimensions that are likely; others are made as they come.
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

    /// The limits as they count in `dimension`.
    pub(crate) fn of(&self, dimension: &str) -> NamedLimits {
        let prepared = self.prepared.iter().find(|(likely, _)| **likely == *dimension);
        prepared.map_or_else(|| self.make(dimension), |(_, limits)| limits.clone())
    }

    /// The same, if they are there already.
    pub(crate) fn prepared(&self, dimension: &str) -> Option<&[Arc<NamedLimit>]> {
        let prepared = self.prepared.iter().find(|(likely, _)| **likely == *dimension);
        prepared.map(|(_, limits)| &**limits)
    }

    fn make(&self, dimension: &str) -> NamedLimits {
        let named = |limit| NamedLimit::of_plan(&self.name, dimension, limit, self.on_store_error);
        self.limits.iter().map(|limit| Arc::new(named(limit))).collect()
    }
}
