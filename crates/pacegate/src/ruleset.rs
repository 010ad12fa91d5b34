//! The compiled rules. Immutable; a lookup takes the same time with ten thousand rules as with ten.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use hashbrown::HashMap;
use pacegate_core::Limit;
use pacegate_store::FailureMode;
use smallvec::SmallVec;

use crate::check::Check;
use crate::decision::reuse;
use crate::descriptor::DescriptorRule;
use crate::descriptor::set::DescriptorSet;
use crate::endpoint::{Endpoint, PathOptions};
use crate::error::{CheckError, InvalidRules};
use crate::identity;
use crate::methods::Methods;
use crate::pattern::Pattern;
use crate::profile::{LimitOverride, Profile, find};
use crate::rule::{LimitSource, Mode, NamedLimit, PlanLimit, PlanLimits, Rule};
use crate::stores::Stores;
use crate::trie::Trie;

pub(crate) type Map<K, V> = HashMap<K, V, foldhash::quality::RandomState>;

/// The limits that apply to a request, each with the identifier it counts.
pub(crate) type Applied<'a> = SmallVec<[(Arc<NamedLimit>, &'a str); 2]>;

/// Rules in canonical form.
pub(crate) struct CanonicalRules<'a> {
    rules: Vec<Cow<'a, Rule>>,
    /// Number of leading bits by which IPv6 addresses are counted.
    ipv6_prefix: u8,
}

impl<'a> CanonicalRules<'a> {
    pub(crate) fn new(rules: &'a [Rule], ipv6_prefix: u8, paths: PathOptions) -> Result<Self, InvalidRules> {
        let mut canonical = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let invalid = |invalid| InvalidRules::InvalidRule { index, name: rule.name.clone(), invalid };
            canonical.push(rule.compared(ipv6_prefix, paths).map_err(invalid)?);
        }
        Ok(Self { rules: canonical, ipv6_prefix })
    }
}

/// Rules, plans and the default limit, compiled for lookups.
#[derive(Debug, Default)]
pub(crate) struct RuleSet {
    by_endpoint: Trie<Vec<ByDimension>>,
    /// Policies by key.
    policies: Map<Box<str>, Arc<CompiledRule>>,
    /// The dimensions, besides `key`, whose identifiers can have a policy.
    policy_dimensions: Vec<Box<str>>,
    /// All rules, in the order given.
    all: Vec<Arc<CompiledRule>>,
    plans: Map<Box<str>, PlanLimits>,
    descriptors: DescriptorSet,
    default_limit: Option<Limit>,
    /// The default limit for well-known dimensions; others are created on demand.
    defaults: Map<Box<str>, Arc<NamedLimit>>,
    /// The default limit in the dimension `key`, available without a lookup.
    default_of_keys: Option<Arc<NamedLimit>>,
    /// For limits without a mode of their own.
    on_store_error: FailureMode,
    /// Overrides for identities other than users, by dimension and identifier. Those of a user come
    /// with the check's profile.
    overrides: Overrides,
}

/// Overrides by dimension and identifier.
pub(crate) type Overrides = Map<Box<str>, Map<Box<str>, Profile>>;

/// The rules of one endpoint pattern and dimension.
#[derive(Debug)]
struct ByDimension {
    /// Shared by all patterns with the same dimension, so it stays in the CPU cache.
    dimension: Arc<str>,
    /// Most patterns have one.
    anyone: SmallVec<[Arc<CompiledRule>; 1]>,
    tiers: Map<Box<str>, Vec<Arc<CompiledRule>>>,
    identifiers: Map<Box<str>, Vec<Arc<CompiledRule>>>,
}

/// A rule, compiled for matching and comparison.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) limit: Arc<NamedLimit>,
    pub(crate) methods: Methods,
    /// Exempts what the rule matches.
    pub(crate) unlimited: bool,
    pub(crate) identifier: Option<Box<str>>,
    pub(crate) tier: Option<Box<str>>,
    pub(crate) endpoint: Pattern,
    is_policy: bool,
    /// Orders variants: exact identifier first, then tier, then endpoint, then method.
    specificity: (bool, bool, Vec<u8>, u8),
    /// The index in the list of rules. Limits are reported in that order.
    index: usize,
}

impl CompiledRule {
    /// Whether this policy was already found for another identity with the same identifier. Its
    /// counter is charged once.
    fn is_among(&self, applied: &Applied<'_>, identifier: &str) -> bool {
        let is_same = |limit: &NamedLimit| limit.counter == self.limit.counter;
        self.is_policy && applied.iter().any(|(limit, own)| *own == identifier && is_same(limit))
    }

    /// Whether this variant takes precedence where both match.
    pub(crate) fn beats(&self, other: &Self) -> bool {
        self.specificity > other.specificity
    }

    /// Whether the rule applies to `method`. An unknown method may be the rule's, so the rule
    /// applies.
    pub(crate) fn applies_to_method(&self, method: Option<&str>) -> bool {
        method.is_none_or(|method| self.methods.contain(method))
    }

    /// Returns the limit for an identity of `dimension` with `profile`.
    pub(crate) fn limit_for(&self, dimension: &str, profile: Option<&Profile>) -> Arc<NamedLimit> {
        limit_for(&self.limit, dimension, profile, self.identifier.is_none(), Some(&self.endpoint))
    }
}

/// Returns a limit for an identity of `dimension` with `profile`: with the numbers of an override,
/// or else, if `can_be_custom`, of a custom limit. `pattern` is the pattern of the rule. A policy
/// counts keys, whatever the dimension of the identity, and keeps its numbers.
fn limit_for(
    limit: &Arc<NamedLimit>,
    dimension: &str,
    profile: Option<&Profile>,
    can_be_custom: bool,
    pattern: Option<&Pattern>,
) -> Arc<NamedLimit> {
    // Most users have neither, and this test is cheap.
    let has_numbers = |profile: &&Profile| !profile.overrides.is_empty() || !profile.custom_limits.is_empty();
    let Some(profile) = profile.filter(has_numbers).filter(|_| limit.dimension() == dimension) else {
        return reuse(limit);
    };
    let replaced = |numbers: &[(String, LimitOverride)], why| {
        // Numbers that do not suit the algorithm of the rule are rejected when they are set, but
        // the rule may have changed since.
        find(numbers, &limit.name).and_then(|numbers| limit.with_numbers(numbers, why, pattern))
    };
    let custom = || if can_be_custom { replaced(&profile.custom_limits, LimitSource::Custom) } else { None };
    let replaced = replaced(&profile.overrides, LimitSource::Override).or_else(custom);
    replaced.map_or_else(|| reuse(limit), Arc::new)
}

/// Maximum number of rules in force: of the file, its descriptors and the catalog together.
pub const RULES_MAX: usize = 100_000;

impl RuleSet {
    pub(crate) fn compile(
        rules: &CanonicalRules<'_>,
        descriptors: &[DescriptorRule],
        plans: Vec<(String, Vec<PlanLimit>)>,
        default_limit: Option<Limit>,
        on_store_error: FailureMode,
        policy_dimensions: Vec<Box<str>>,
        stores: &Stores,
    ) -> Result<Self, InvalidRules> {
        let CanonicalRules { rules, ipv6_prefix } = rules;
        let count = rules.len() + descriptors.len();
        if count > RULES_MAX {
            return Err(InvalidRules::TooMany { rules: count, max: RULES_MAX });
        }
        let descriptors = DescriptorSet::compile(descriptors, on_store_error, stores)?;
        let mut variants = HashSet::new();
        let mut by_endpoint = Trie::<Vec<ByDimension>>::default();
        let mut policies: Map<Box<str>, Arc<CompiledRule>> = Map::default();
        let mut all = Vec::with_capacity(rules.len());
        let mut dimensions = vec![identity::USER, identity::IP, identity::API_KEY, identity::KEY];
        let mut shared: Map<&str, Arc<str>> = Map::default();
        for (index, rule) in rules.iter().enumerate() {
            if !variants.insert(rule.variant()) {
                return Err(InvalidRules::DuplicateRule { index, name: rule.name.clone() });
            }
            let store = match &rule.store {
                None => 0,
                Some(store) => stores.index(store).ok_or_else(|| InvalidRules::UnknownStore {
                    rule: rule.name.clone(),
                    store: store.clone(),
                })?,
            };
            dimensions.push(&rule.dimension);
            let compiled = Arc::new(CompiledRule {
                limit: Arc::new(NamedLimit::of_rule(rule, store, on_store_error)),
                methods: rule.methods.clone(),
                unlimited: rule.unlimited,
                identifier: rule.identifier.as_deref().map(Into::into),
                tier: rule.tier.as_deref().map(Into::into),
                endpoint: rule.endpoint.clone(),
                is_policy: rule.is_policy(),
                specificity: (
                    rule.identifier.is_some(),
                    rule.tier.is_some(),
                    rule.endpoint.specificity(),
                    rule.methods.specificity(),
                ),
                index,
            });
            all.push(compiled.clone());
            if let Some(key) = rule.identifier.as_deref().filter(|_| compiled.is_policy) {
                // A key that is an address is also found by its canonical form.
                if let Ok(Cow::Owned(address)) = identity::identifier(identity::IP, key, *ipv6_prefix) {
                    policies.entry(address.into()).or_insert_with(|| compiled.clone());
                }
                policies.insert(key.into(), compiled);
                continue;
            }
            let dimension = shared.entry(&rule.dimension).or_insert_with(|| rule.dimension.as_str().into());
            let list = ByDimension::of(by_endpoint.entry(&rule.endpoint), dimension);
            match (&rule.identifier, &rule.tier) {
                (None, None) => list.anyone.push(compiled),
                (None, Some(tier)) => list.tiers.entry(tier.as_str().into()).or_default().push(compiled),
                (Some(identifier), _) => {
                    list.identifiers.entry(identifier.as_str().into()).or_default().push(compiled)
                }
            }
        }
        dimensions.sort_unstable();
        dimensions.dedup();
        let mut compiled_plans = Map::default();
        for (name, limits) in plans {
            if let Some(limit) = PlanLimit::duplicate(&limits) {
                return Err(InvalidRules::DuplicateInPlan {
                    plan: name,
                    algorithm: limit.algorithm(),
                    window: limit.window(),
                });
            }
            let plan = PlanLimits::new(&name, limits, on_store_error, &dimensions);
            if compiled_plans.insert(name.as_str().into(), plan).is_some() {
                return Err(InvalidRules::DuplicatePlan { name });
            }
        }
        let plans = compiled_plans;
        let mut rules = Self {
            by_endpoint,
            policies,
            policy_dimensions,
            all,
            plans,
            descriptors,
            on_store_error,
            ..Self::default()
        };
        if let Some(limit) = default_limit {
            rules.set_default(limit, &dimensions);
        }
        Ok(rules)
    }

    /// One limit for all keys.
    pub(crate) fn only_default(limit: Limit) -> Self {
        let mut rules = Self::default();
        rules.set_default(limit, &[identity::KEY]);
        rules
    }

    fn set_default(&mut self, limit: Limit, dimensions: &[&str]) {
        let named = |dimension: &str| Arc::new(NamedLimit::default(dimension, limit, self.on_store_error));
        self.defaults = dimensions.iter().map(|dimension| ((*dimension).into(), named(dimension))).collect();
        self.default_of_keys = self.defaults.get(identity::KEY).cloned();
        self.default_limit = Some(limit);
    }

    /// Returns every limit that applies to `check` at `endpoint`.
    pub(crate) fn resolve<'a>(
        &self,
        check: &'a Check<'_>,
        endpoint: Option<&Endpoint<'_>>,
    ) -> Result<Applied<'a>, CheckError> {
        let costs = check.all_costs();
        let (mut applied, unlimited) = match endpoint {
            Some(_) => self.resolve_rules(check, endpoint),
            None => (Applied::new(), false),
        };
        for (index, name) in check.plans.iter().enumerate() {
            let plan = self.plan(name)?;
            if check.plans[..index].contains(name) {
                return Err(CheckError::DuplicatePlan { name: (*name).into() });
            }
            for (dimension, identifier) in check.pairs() {
                let limits = plan.of(dimension);
                let charged = limits.iter().filter(|limit| limit.cost_of(&costs).is_some());
                applied.extend(charged.map(|limit| (reuse(limit), identifier)));
            }
        }
        if let Some(limit) = check.own_limit() {
            for (dimension, identifier) in check.pairs() {
                let limit = NamedLimit::ad_hoc(dimension, limit, self.on_store_error);
                applied.push((Arc::new(limit), identifier));
            }
        }
        // A shadow rule does not replace the default limit. An `unlimited` rule does.
        if !unlimited && !applied.iter().any(|(limit, _)| limit.mode == Mode::Enforce) {
            self.defaults_for(check, &mut applied);
        }
        Ok(applied)
    }

    /// Returns the limits of the rules alone, and whether an `unlimited` rule matched. Without an
    /// endpoint, only rules for all endpoints apply.
    #[inline]
    pub(crate) fn resolve_rules<'a>(
        &self,
        check: &'a Check<'_>,
        endpoint: Option<&Endpoint<'_>>,
    ) -> (Applied<'a>, bool) {
        let (mut applied, mut unlimited, costs) = (Applied::new(), false, check.all_costs());
        for (dimension, identifier) in check.pairs() {
            let profile = self.profile_of(dimension, identifier, check.profile);
            for rule in self.chosen(check, dimension, identifier, endpoint) {
                if rule.limit.cost_of(&costs).is_none() {
                    continue;
                }
                if rule.unlimited {
                    unlimited = true;
                } else if !rule.is_among(&applied, identifier) {
                    applied.push((rule.limit_for(dimension, profile), identifier));
                }
            }
        }
        (applied, unlimited)
    }

    /// Returns the rules that apply to one identity of a check: the most specific of each name.
    #[inline]
    pub(crate) fn chosen(
        &self,
        check: &Check<'_>,
        dimension: &str,
        identifier: &str,
        endpoint: Option<&Endpoint<'_>>,
    ) -> SmallVec<[&CompiledRule; 8]> {
        let tier = Tiers::Only(check.effective_tier());
        let most_specific = |reading| {
            let mut rules = self.matching(dimension, identifier, tier, reading);
            rules.retain(|rule| {
                rule.applies_to_method(check.method)
                    && (endpoint.is_some() || rule.endpoint.covers(&Pattern::all()))
            });
            keep_most_specific(&mut rules);
            rules
        };
        let mut chosen = most_specific(endpoint.map_or("/", Endpoint::counted));
        for reading in endpoint.into_iter().flat_map(Endpoint::others) {
            // No other variant of a rule that already applies: otherwise the client could choose
            // the most generous one by its spelling of the path.
            let mut further = most_specific(reading);
            further.retain(|rule| chosen.iter().all(|other| other.limit.name != rule.limit.name));
            chosen.extend(further);
            chosen.sort_unstable_by_key(|rule| rule.index);
        }
        chosen
    }

    /// Returns one limit for every kind of counter that the identities of `check` can have at its
    /// endpoint: of matching rules of any tier and method, of every plan, the default limit and an
    /// ad-hoc limit. Their numbers do not matter, because a reset clears all variants of a counter.
    pub(crate) fn resolve_all<'a>(
        &self,
        check: &'a Check<'_>,
        endpoint: Option<&Endpoint<'_>>,
    ) -> Applied<'a> {
        let any = self.default_limit.unwrap_or_else(Limit::largest);
        let mut applied = Applied::new();
        for (dimension, identifier) in check.pairs() {
            let others = endpoint.into_iter().flat_map(Endpoint::others);
            for reading in std::iter::once(endpoint.map_or("/", Endpoint::counted)).chain(others) {
                let rules = self.matching(dimension, identifier, Tiers::All, reading);
                applied.extend(rules.into_iter().map(|rule| (rule.limit.clone(), identifier)));
            }
            let plans = self.plans.values().flat_map(|plan| plan.of(dimension).to_vec());
            applied.extend(plans.map(|limit| (limit, identifier)));
            let ad_hoc = NamedLimit::ad_hoc(dimension, any, self.on_store_error);
            let default = NamedLimit::default(dimension, any, self.on_store_error);
            let other_window = default.with_own_window();
            applied.extend([ad_hoc, default, other_window].map(|limit| (Arc::new(limit), identifier)));
        }
        // Rules that differ only in tier or method share a counter.
        let mut seen = HashSet::new();
        applied.retain(|(limit, identifier)| seen.insert((limit.store, limit.counter.family(), *identifier)));
        applied
    }

    fn defaults_for<'a>(&self, check: &'a Check<'_>, applied: &mut Applied<'a>) {
        for (dimension, identifier) in check.pairs() {
            let profile = self.profile_of(dimension, identifier, check.profile);
            applied.extend(self.default_for(dimension, profile).map(|limit| (limit, identifier)));
        }
    }

    pub(crate) fn plan(&self, name: &str) -> Result<&PlanLimits, CheckError> {
        self.plans.get(name).ok_or_else(|| CheckError::UnknownPlan { name: name.into() })
    }

    pub(crate) fn descriptors(&self) -> &DescriptorSet {
        &self.descriptors
    }

    /// Returns what happens while a store is unavailable, for limits without a mode of their own.
    pub(crate) fn on_store_error(&self) -> FailureMode {
        self.on_store_error
    }

    pub(crate) fn default_limit(&self) -> Option<Limit> {
        self.default_limit
    }

    /// Returns all rules, in the order given.
    pub(crate) fn rules(&self) -> &[Arc<CompiledRule>] {
        &self.all
    }

    /// Replaces the overrides for identities other than users.
    pub(crate) fn with_overrides(self, overrides: Overrides) -> Self {
        Self { overrides, ..self }
    }

    /// Returns what replaces numbers for one identity: the profile `of_user` in the dimension
    /// `user`, the overrides of the identity in others.
    #[inline]
    pub(crate) fn profile_of<'p>(
        &'p self,
        dimension: &str,
        identifier: &str,
        of_user: Option<&'p Profile>,
    ) -> Option<&'p Profile> {
        if dimension == identity::USER {
            return of_user;
        }
        if self.overrides.is_empty() {
            return None;
        }
        self.overrides.get(dimension)?.get(identifier)
    }

    /// Returns the default limit in `dimension`, for an identity with `profile`.
    pub(crate) fn default_for(&self, dimension: &str, profile: Option<&Profile>) -> Option<Arc<NamedLimit>> {
        let limit = self.default_limit?;
        let made;
        let known = match self.defaults.get(dimension) {
            Some(known) => known,
            None => {
                made = Arc::new(NamedLimit::default(dimension, limit, self.on_store_error));
                &made
            }
        };
        Some(limit_for(known, dimension, profile, true, None))
    }

    /// Returns the default limit in the dimension `key`.
    #[inline]
    pub(crate) fn default_of_keys(&self) -> Option<&Arc<NamedLimit>> {
        self.default_of_keys.as_ref().filter(|_| self.overrides.is_empty())
    }

    /// Whether a rule counts identities of `dimension`.
    pub(crate) fn counts_dimension(&self, rule: &CompiledRule, dimension: &str) -> bool {
        rule.limit.dimension() == dimension || (rule.is_policy && self.has_policies(dimension))
    }

    /// Whether identifiers of `dimension` can have a policy.
    fn has_policies(&self, dimension: &str) -> bool {
        dimension == identity::KEY || self.policy_dimensions.iter().any(|own| **own == *dimension)
    }

    /// Returns the rules that match one identity at an endpoint, with any method.
    #[inline]
    fn matching(
        &self,
        dimension: &str,
        identifier: &str,
        tiers: Tiers<'_>,
        endpoint: &str,
    ) -> SmallVec<[&CompiledRule; 8]> {
        let mut found = SmallVec::new();
        self.by_endpoint.for_each(endpoint, |lists| {
            let Some(list) = lists.iter().find(|list| *list.dimension == *dimension) else { return };
            let exact = list.identifiers.get(identifier).into_iter().flatten();
            match tiers {
                Tiers::Only(tier) => {
                    let exact = exact.filter(|rule| rule.tier.is_none() || rule.tier.as_deref() == tier);
                    let of_tier = tier.and_then(|tier| list.tiers.get(tier)).into_iter().flatten();
                    found.extend(exact.chain(of_tier).map(|rule| &**rule));
                }
                Tiers::All => found.extend(exact.chain(list.tiers.values().flatten()).map(|rule| &**rule)),
            }
            found.extend(list.anyone.iter().map(|rule| &**rule));
        });
        if !self.policies.is_empty() && self.has_policies(dimension) {
            found.extend(self.policies.get(identifier).map(|rule| &**rule));
        }
        found
    }
}

/// The tiers whose rules match.
#[derive(Clone, Copy)]
enum Tiers<'a> {
    Only(Option<&'a str>),
    All,
}

/// Keeps only the most specific rule of each name, in the order of the rules.
fn keep_most_specific(rules: &mut SmallVec<[&CompiledRule; 8]>) {
    if rules.len() < 2 {
        return;
    }
    rules.sort_unstable_by(|a, b| {
        let by_name = a.limit.name.cmp(&b.limit.name);
        by_name.then_with(|| b.specificity.cmp(&a.specificity)).then(a.index.cmp(&b.index))
    });
    rules.dedup_by(|later, first| later.limit.name == first.limit.name);
    rules.sort_unstable_by_key(|rule| rule.index);
}

impl ByDimension {
    fn of<'a>(lists: &'a mut Vec<Self>, dimension: &Arc<str>) -> &'a mut Self {
        let index = lists.iter().position(|list| list.dimension == *dimension).unwrap_or_else(|| {
            lists.push(Self {
                dimension: dimension.clone(),
                anyone: SmallVec::new(),
                tiers: Map::default(),
                identifiers: Map::default(),
            });
            lists.len() - 1
        });
        &mut lists[index]
    }
}
