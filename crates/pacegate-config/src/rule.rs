//! `default_limit`, `plans` and `rules`: what is limited, and to how much.

use std::borrow::Cow;
use std::collections::HashMap;

use pacegate::identity;
use pacegate::{
    Algorithm, Cost, FailureMode, Limit, Methods, Mode, Pattern, PlanLimit, Rule, Scope,
    rules::PLAN_LIMITS_MAX,
};
use schemars::{JsonSchema, json_schema};
use serde::Deserialize;

use crate::StoreConfig;
use crate::cursor::Cursor;
use crate::value::{Between, DAY, Dimension, Method, Name, Span, Text, Tier, Unit, Word, Written, schema};

pub(crate) type Quota = Between<1, { Limit::QUOTA_MAX }>;
pub(crate) type Window = Text<Span<1, { 366 * DAY }>>;
type FixedCost = Between<1, 1_000_000_000>;
const _: () = assert!(Cost::MAX.get() == 1_000_000_000 && Limit::WINDOW_MAX.as_millis() == 366 * DAY as u128);

/// A limit.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitEntry {
    /// How it counts; sliding_window is another name for sliding_log.
    #[schemars(required)]
    pub(crate) algorithm: Option<Text<Algorithm>>,
    /// How many per window.
    #[schemars(required)]
    pub(crate) limit: Option<Quota>,
    /// The window, from 1ms to 366d.
    #[schemars(required)]
    pub(crate) window: Option<Window>,
    /// How many at once, for token_bucket, leaky_bucket and gcra; as many as the limit unless it is
    /// set.
    pub(crate) burst: Option<Quota>,
}

impl LimitEntry {
    pub(crate) fn limit(self, cursor: &Cursor<'_>) -> Option<Limit> {
        let algorithm = cursor.require("algorithm", self.algorithm);
        let quota = cursor.require("limit", self.limit);
        let window = cursor.require("window", self.window);
        let limit = Limit::try_new(algorithm?.0, quota?.0, window?.0);
        let limit = match self.burst {
            None => limit,
            Some(burst) => limit.and_then(|limit| limit.with_burst(burst.0)),
        };
        limit.map_err(|error| cursor.refuse(error.field(), error.reason())).ok()
    }
}

/// A limit of a plan.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanEntry {
    /// How it counts; sliding_window is another name for sliding_log.
    #[schemars(required)]
    algorithm: Option<Text<Algorithm>>,
    /// How many per window.
    #[schemars(required)]
    limit: Option<Quota>,
    /// The window, from 1ms to 366d.
    #[schemars(required)]
    window: Option<Window>,
    /// How many at once, for token_bucket, leaky_bucket and gcra; as many as the limit unless it is
    /// set.
    burst: Option<Quota>,
    /// What it counts: requests (the default), tokens, bytes or another word.
    unit: Option<Text<Unit>>,
    /// What each request takes, instead of the cost that a check names.
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
        let read = |(name, plan): (&str, Cursor<'_>)| {
            if let Err(reason) = Name::parse(name) {
                plan.refuse("", reason);
            }
            let items = plan.items();
            let limits: Vec<PlanLimit> =
                items.iter().filter_map(|item| item.read::<Self>()?.plan_limit(item)).collect();
            // Limits that could not be read are reported already.
            if let Err(invalid) = PlanLimit::check_all(&limits)
                && limits.len() == items.len()
                && !plan.is_wrong("")
            {
                plan.refuse("", invalid.reason());
            }
            (name.to_owned(), limits)
        };
        plans.into_iter().map(read).collect()
    }
}

/// A rule: who is limited where.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [
    {"required": ["algorithm", "limit", "window"]},
    {"required": ["unlimited"], "properties": {"unlimited": {"const": true}}},
]))]
pub(crate) struct RuleEntry {
    /// Its name; rules that share it are variants of one limit.
    #[schemars(required)]
    name: Option<Text<Name>>,
    /// What is counted: user, ip, apikey, key or another word in lower case.
    #[schemars(required)]
    dimension: Option<Text<Dimension>>,
    /// Only for this identifier.
    #[schemars(with = "Option<Text<Name>>")]
    identifier: Option<String>,
    /// Only for users of this tier.
    tier: Option<Text<Tier>>,
    /// The endpoints it applies to: /orders/{id}, /api/{*rest} or * (the default).
    endpoint: Option<Text<Pattern>>,
    /// Only for this method.
    method: Option<Text<Method>>,
    /// Only for these methods, instead of method.
    methods: Option<Vec<Text<Method>>>,
    /// Whether it denies requests, or only counts those that it would deny.
    #[serde(default)]
    mode: Word<Mode>,
    /// One counter for the pattern, or one for each endpoint.
    #[serde(default)]
    counter: Word<Scope>,
    /// The store of its counters; default unless it is set.
    store: Option<String>,
    /// What happens while its store fails; failure.mode unless it is set.
    on_store_error: Option<Word<FailureMode>>,
    /// Whether requests it applies to are not limited; it has no limit then.
    #[serde(default)]
    unlimited: bool,
    /// What it counts: requests (the default), tokens, bytes or another word. Checks name their
    /// cost in it.
    unit: Option<Text<Unit>>,
    /// What each request takes, instead of the cost that a check names.
    cost: Option<FixedCost>,
    /// Whether a request passes while at least 1 is left and is charged in full, into a debt of up
    /// to one capacity.
    #[serde(default)]
    overdraw: bool,
    /// How it counts; sliding_window is another name for sliding_log.
    algorithm: Option<Text<Algorithm>>,
    /// How many per window.
    limit: Option<Quota>,
    /// The window, from 1ms to 366d.
    window: Option<Window>,
    /// How many at once, for token_bucket, leaky_bucket and gcra; as many as the limit unless it is
    /// set.
    burst: Option<Quota>,
}

impl RuleEntry {
    fn rule(self, ipv6_prefix: u8, cursor: &Cursor<'_>) -> Option<Rule> {
        let Self { algorithm, limit, window, burst, .. } = self;
        let limit = if self.unlimited {
            Some(Limit::largest())
        } else {
            LimitEntry { algorithm, limit, window, burst }.limit(cursor)
        };
        let name = cursor.require("name", self.name);
        let dimension = cursor.require("dimension", self.dimension);
        // What an identifier may be depends on its dimension, whose error is reported already.
        let counted = dimension.as_ref().map_or("", |dimension| dimension.0.as_str());
        let identifier = self.identifier.and_then(|text| {
            let identifier = identity::identifier(counted, &text, ipv6_prefix).map(Cow::into_owned);
            identifier.map_err(|error| cursor.refuse("identifier", error.reason())).ok()
        });
        if self.method.is_some() && self.methods.is_some() {
            cursor.refuse("methods", "method and methods exclude each other");
        }
        let methods = self.method.iter().chain(self.methods.iter().flatten()).map(|method| method.0.as_str());
        Some(Rule {
            name: name?.0,
            dimension: dimension?.0,
            identifier,
            tier: self.tier.map(|tier| tier.0),
            endpoint: self.endpoint.map_or_else(Pattern::all, |pattern| pattern.0),
            methods: Methods::try_new(methods).unwrap_or_default(),
            limit: limit?,
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

    pub(crate) fn read_all(rules: Option<Cursor<'_>>, ipv6_prefix: u8, stores: &[StoreConfig]) -> Vec<Rule> {
        let mut found: Vec<(Rule, Cursor<'_>)> = Vec::new();
        for item in rules.map(|cursor| cursor.rejecting_null().items()).unwrap_or_default() {
            let errors = item.error_count();
            let rule = item.read::<Self>().and_then(|entry| entry.rule(ipv6_prefix, &item));
            if let Some(rule) = rule {
                check_store(rule.store.as_deref(), stores, &item);
                // A rule with errors may look like a variant of another one.
                if item.error_count() == errors {
                    found.push((rule, item));
                }
            }
        }
        let mut variants = HashMap::new();
        for (rule, cursor) in &found {
            if let Some(first) = variants.insert(rule.variant(), cursor) {
                let (name, first) = (&rule.name, first.path());
                let message =
                    format!("`{name}` is the same variant as {first}; change its name or what it applies to");
                cursor.refuse("", message);
            }
        }
        drop(variants);
        found.into_iter().map(|(rule, _)| rule).collect()
    }
}

/// Reports a store that is not among `stores`.
pub(crate) fn check_store(store: Option<&str>, stores: &[StoreConfig], cursor: &Cursor<'_>) {
    if let Some(name) = store.filter(|name| stores.iter().all(|store| store.name != *name)) {
        cursor.refuse("store", format!("unknown store `{name}`; expected one under stores"));
    }
}
