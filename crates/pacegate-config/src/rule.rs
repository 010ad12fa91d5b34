//! `default_limit`, `plans` and `rules`: what is limited, and to how much.

use std::borrow::Cow;
use std::collections::HashMap;

use pacegate::identity;
use pacegate::{
    Algorithm, Cost, FailureMode, InvalidLimit, Limit, Methods, Mode, PathOptions, Pattern, PlanLimit, Rule,
    Scope, rules::PLAN_LIMITS_MAX,
};
use schemars::{JsonSchema, json_schema};
use serde::Deserialize;

use crate::StoreConfig;
use crate::cursor::Cursor;
use crate::value::{Between, DAY, Dimension, Method, Name, Span, Text, Tier, Unit, Word, Written, schema};
use crate::warning;

pub(crate) type Quota = Between<1, { Limit::QUOTA_MAX }>;
pub(crate) type Window = Text<Span<1, { 366 * DAY }>>;
type FixedCost = Between<1, 1_000_000_000>;
const _: () = assert!(Cost::MAX.get() == 1_000_000_000 && Limit::WINDOW_MAX.as_millis() == 366 * DAY as u128);

/// A limit: how many per window, and how they are counted.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitEntry {
    /// The algorithm. `sliding_window` is another name for `sliding_log`.
    #[schemars(required)]
    pub(crate) algorithm: Option<Text<Algorithm>>,
    /// Number of requests, or of units, allowed per window. `sliding_log` allows at most 1000000.
    #[schemars(required)]
    pub(crate) limit: Option<Quota>,
    /// Length of the window.
    #[schemars(required)]
    pub(crate) window: Option<Window>,
    /// Maximum number allowed at once, for `token_bucket`, `leaky_bucket` and `gcra`. Defaults to
    /// `limit`.
    pub(crate) burst: Option<Quota>,
}

impl LimitEntry {
    /// Returns the limit. Each field is checked on its own, so that one error does not hide
    /// another.
    pub(crate) fn limit(self, cursor: &Cursor<'_>) -> Option<Limit> {
        let algorithm = cursor.require("algorithm", self.algorithm).map(|algorithm| algorithm.0);
        let quota = cursor.require("limit", self.limit).map(|quota| quota.0);
        let window = cursor.require("window", self.window).map(|window| window.0);
        let burst = self.burst.map(|burst| burst.0);
        let report = |error: InvalidLimit| cursor.reject(error.field(), error.reason());
        if let (Some(algorithm), Some(quota)) = (algorithm, quota) {
            let _ = Limit::try_new(algorithm, quota, Limit::WINDOW_MAX).map_err(report);
        }
        if let Some(window) = window {
            let _ = Limit::try_new(Algorithm::TokenBucket, 1, window).map_err(report);
        }
        if let Some(algorithm) = algorithm.filter(|algorithm| !algorithm.takes_burst())
            && burst.is_some()
            && burst != quota
        {
            report(InvalidLimit::BurstNotSupported { algorithm });
        }
        let limit = Limit::try_new(algorithm?, quota?, window?).ok()?;
        burst.map_or(Some(limit), |burst| limit.with_burst(burst).ok())
    }
}

/// A limit of a plan.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanEntry {
    /// The algorithm. `sliding_window` is another name for `sliding_log`.
    #[schemars(required)]
    algorithm: Option<Text<Algorithm>>,
    /// Number of requests, or of units, allowed per window. `sliding_log` allows at most 1000000.
    #[schemars(required)]
    limit: Option<Quota>,
    /// Length of the window.
    #[schemars(required)]
    window: Option<Window>,
    /// Maximum number allowed at once, for `token_bucket`, `leaky_bucket` and `gcra`. Defaults to
    /// `limit`.
    burst: Option<Quota>,
    /// What the limit counts: `requests` (the default), `tokens`, `bytes` or another word.
    unit: Option<Text<Unit>>,
    /// Fixed cost of each request, instead of the cost that the check sends.
    cost: Option<FixedCost>,
}

/// The limits of a plan.
pub(crate) struct Plan;

schema!([] Plan, generator => json_schema!({
    "type": "array",
    "items": generator.subschema_for::<PlanEntry>(),
    "minItems": 1,
    "maxItems": PLAN_LIMITS_MAX,
}));

impl PlanEntry {
    fn plan_limit(self, cursor: &Cursor<'_>) -> Option<PlanLimit> {
        let Self { algorithm, limit, window, burst, unit, cost } = self;
        Some(PlanLimit {
            limit: LimitEntry { algorithm, limit, window, burst }.limit(cursor)?,
            unit: unit.map(|unit| unit.0),
            cost: cost.and_then(|cost| Cost::try_new(cost.0).ok()),
        })
    }

    pub(crate) fn read_all(plans: Option<Cursor<'_>>) -> Vec<(String, Vec<PlanLimit>)> {
        let plans = plans.map(|cursor| cursor.rejecting_null().entries()).unwrap_or_default();
        plans.into_iter().map(|(name, plan)| (name.to_owned(), Self::read_plan(name, &plan))).collect()
    }

    fn read_plan(name: &str, plan: &Cursor<'_>) -> Vec<PlanLimit> {
        if let Err(reason) = Name::parse(name) {
            plan.reject("", format!("plan name {reason}"));
        }
        let items = plan.items();
        if !(1..=PLAN_LIMITS_MAX).contains(&items.len()) && !plan.is_wrong("") {
            let count = items.len();
            plan.reject("", format!("must have between 1 and {PLAN_LIMITS_MAX} limits, got {count}"));
        }
        let mut limits: Vec<PlanLimit> = Vec::new();
        for item in &items {
            let Some(limit) = item.read::<Self>().and_then(|entry| entry.plan_limit(item)) else { continue };
            let is_duplicate =
                |other: &PlanLimit| PlanLimit::check_all(&[other.clone(), limit.clone()]).is_err();
            if limits.iter().any(is_duplicate) {
                let algorithm = limit.limit.algorithm();
                let window = Span::<1, { 366 * DAY }>::show(&limit.limit.window());
                item.reject("", format!("duplicate {algorithm} limit over {window}"));
            }
            limits.push(limit);
        }
        limits
    }
}

/// A rule: which requests are limited, by what they are counted, and to how much.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [
    {"required": ["algorithm", "limit", "window"]},
    {"required": ["unlimited"], "properties": {"unlimited": {"const": true}}},
]))]
pub(crate) struct RuleEntry {
    /// Name of the rule. Rules with the same name are variants of one limit, of which the most
    /// specific one applies.
    #[schemars(required)]
    name: Option<Text<Name>>,
    /// What requests are counted by: `user`, `ip`, `apikey`, `key` or another lower-case word.
    #[schemars(required)]
    dimension: Option<Text<Dimension>>,
    /// Applies only to this identifier of the dimension, such as one user or one address.
    #[schemars(with = "Option<Text<Name>>")]
    identifier: Option<String>,
    /// Applies only to users of this tier.
    tier: Option<Text<Tier>>,
    /// Endpoints that the rule applies to: a path such as `/login`, a pattern such as
    /// `/orders/{id}` or `/api/{*rest}`, or `*` (the default) for all endpoints.
    endpoint: Option<Text<Pattern>>,
    /// Applies only to this HTTP method. `GET` includes `HEAD`.
    method: Option<Text<Method>>,
    /// Applies only to these HTTP methods. Mutually exclusive with `method`.
    methods: Option<Vec<Text<Method>>>,
    /// Whether the rule denies requests (`enforce`) or only counts the requests it would deny
    /// (`shadow`).
    #[serde(default)]
    mode: Word<Mode>,
    /// Whether all endpoints of the pattern share one counter (`pattern`) or each endpoint has its
    /// own (`endpoint`).
    #[serde(default)]
    counter: Word<Scope>,
    /// Name of the store that keeps the counters. Defaults to `default`.
    store: Option<String>,
    /// What happens while the store is unavailable. Defaults to `failure.mode`.
    on_store_error: Option<Word<FailureMode>>,
    /// Whether matching requests are not limited. `algorithm`, `limit` and `window` are required
    /// unless it is `true`.
    #[serde(default)]
    unlimited: bool,
    /// What the rule counts: `requests` (the default), `tokens`, `bytes` or another word. Checks
    /// send their cost in this unit.
    unit: Option<Text<Unit>>,
    /// Fixed cost of each request, instead of the cost that the check sends.
    cost: Option<FixedCost>,
    /// Whether a request is allowed while at least 1 is left and then charged in full. The debt is
    /// at most one capacity.
    #[serde(default)]
    overdraw: bool,
    /// The algorithm. `sliding_window` is another name for `sliding_log`.
    algorithm: Option<Text<Algorithm>>,
    /// Number of requests, or of units, allowed per window. `sliding_log` allows at most 1000000.
    limit: Option<Quota>,
    /// Length of the window.
    window: Option<Window>,
    /// Maximum number allowed at once, for `token_bucket`, `leaky_bucket` and `gcra`. Defaults to
    /// `limit`.
    burst: Option<Quota>,
}

/// The settings that rules depend on.
#[derive(Clone, Copy)]
pub(crate) struct RuleContext<'a> {
    pub(crate) ipv6_prefix: u8,
    pub(crate) paths: PathOptions,
    pub(crate) stores: &'a [StoreConfig],
}

/// The fields that tell variants of one name apart.
const VARIANT_FIELDS: [&str; 7] =
    ["name", "dimension", "identifier", "tier", "endpoint", "method", "methods"];

impl RuleEntry {
    /// Returns the rule, unless a field is invalid that tells it from its variants. A rule without
    /// a valid limit gets a stand-in, so that it can still be compared with other rules.
    fn rule(self, context: RuleContext<'_>, cursor: &Cursor<'_>) -> Option<Rule> {
        let Self { algorithm, limit, window, burst, .. } = self;
        let limit =
            if self.unlimited { None } else { LimitEntry { algorithm, limit, window, burst }.limit(cursor) };
        let name = cursor.require("name", self.name);
        let dimension = cursor.require("dimension", self.dimension);
        check_store(self.store.as_deref(), context.stores, cursor);
        // What an identifier can be depends on the dimension. An invalid dimension is reported
        // already.
        let counted = dimension.as_ref().map_or("", |dimension| dimension.0.as_str());
        let identifier = self.identifier.as_deref().map(|text| {
            let identifier = identity::identifier(counted, text, context.ipv6_prefix).map(Cow::into_owned);
            identifier.map_err(|error| {
                let network = warning::network_instead_of_address(counted, text);
                cursor.reject("identifier", network.unwrap_or_else(|| error.reason().to_owned()));
            })
        });
        let identifier = identifier.transpose();
        if self.method.is_some() && self.methods.is_some() {
            cursor.reject("methods", "`method` and `methods` are mutually exclusive");
        }
        let methods = self.method.iter().chain(self.methods.iter().flatten()).map(|method| method.0.as_str());
        let methods = Methods::try_new(methods).unwrap_or_default();
        if VARIANT_FIELDS.iter().any(|field| cursor.is_wrong_inside(field)) {
            return None;
        }
        Some(Rule {
            name: name?.0,
            dimension: dimension?.0,
            identifier: identifier.ok()?,
            tier: self.tier.map(|tier| tier.0),
            endpoint: self.endpoint.map_or_else(Pattern::all, |pattern| pattern.0),
            methods,
            limit: limit.unwrap_or_else(Limit::largest),
            unlimited: self.unlimited,
            unit: self.unit.map(|unit| unit.0),
            cost: self.cost.and_then(|cost| Cost::try_new(cost.0).ok()),
            overdraw: self.overdraw,
            mode: self.mode.0,
            scope: self.counter.0,
            store: self.store,
            on_store_error: self.on_store_error.map(|mode| mode.0),
        })
    }

    pub(crate) fn read_all(rules: Option<Cursor<'_>>, context: RuleContext<'_>) -> Vec<Rule> {
        let mut found: Vec<(Rule, Cursor<'_>)> = Vec::new();
        for item in rules.map(|cursor| cursor.rejecting_null().items()).unwrap_or_default() {
            if let Some(rule) = item.read::<Self>().and_then(|entry| entry.rule(context, &item)) {
                warn(&rule, context.ipv6_prefix, &item);
                found.push((rule, item));
            }
        }
        // Compared as the limiter compares them when it compiles the rules.
        let compared: Vec<Cow<'_, Rule>> = found
            .iter()
            .map(|(rule, _)| rule.compared(context.ipv6_prefix, context.paths).unwrap_or(Cow::Borrowed(rule)))
            .collect();
        let mut variants = HashMap::new();
        for (rule, (_, cursor)) in compared.iter().zip(&found) {
            let first = *variants.entry(rule.variant()).or_insert(cursor);
            if first.path() != cursor.path() {
                let (name, first) = (&rule.name, first.path());
                let same = "the same dimension, identifier, tier, endpoint and method";
                cursor.reject("", format!("duplicate rule `{name}`: {first} has {same}"));
            }
        }
        drop(variants);
        drop(compared);
        found.into_iter().map(|(rule, _)| rule).collect()
    }
}

/// Reports values of a rule that can never match.
fn warn(rule: &Rule, ipv6_prefix: u8, cursor: &Cursor<'_>) {
    if let Some(message) = cursor.text("endpoint").and_then(warning::endpoint) {
        cursor.warn("endpoint", message);
    }
    let written = rule.identifier.as_deref().and(cursor.text("identifier"));
    if let Some(message) = written.and_then(|text| warning::identifier(&rule.dimension, text, ipv6_prefix)) {
        cursor.warn("identifier", message);
    }
    let methods = cursor.get("methods").map(|methods| methods.items()).unwrap_or_default();
    for method in cursor.get("method").into_iter().chain(methods) {
        let name = method.text("").and_then(|text| identity::method(text).ok());
        if let Some(message) = name.and_then(|name| warning::method(&name)) {
            method.warn("", message);
        }
    }
}

/// Reports a store that is not among `stores`.
pub(crate) fn check_store(store: Option<&str>, stores: &[StoreConfig], cursor: &Cursor<'_>) {
    if let Some(name) = store.filter(|name| stores.iter().all(|store| store.name != *name)) {
        let known: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
        cursor.reject("store", format!("unknown store `{name}`; expected one of {}", known.join(", ")));
    }
}
