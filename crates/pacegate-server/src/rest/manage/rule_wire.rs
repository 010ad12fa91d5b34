//! Rules and limits as JSON. These types exist only here; the rest of the crate works with `Rule`.

use pacegate::{Cost, Limit, Limiter, Methods, Pattern, Rule};
use pacegate_catalog::{Sources, StoredRule};
use pacegate_core::Named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{unchanged, unchanged_time};
use crate::ad_hoc::{is_sliding_window, name_for};
use crate::clock::rfc3339;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::answer::burst;
use crate::rest::decode::{Count, Integer, Seconds, Whole};
use crate::rest::wire::parse_strategy;

/// A rule, in requests and responses. A response can be edited and sent back.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Rule)]
pub(crate) struct RuleBody {
    /// Read-only, like `source`, `version` and the times. A request may send them back unchanged.
    rule_id: Option<String>,
    /// Rules that share a name are variants of one limit.
    #[schema(value_type = value::Name, required = true)]
    name: Option<String>,
    #[schema(value_type = value::Dimension, required = true)]
    dimension: Option<String>,
    /// Applies to this identifier only.
    #[schema(value_type = Option<value::Identifier>)]
    identifier: Option<String>,
    /// Applies to users of this tier only.
    #[schema(value_type = Option<value::TierName>)]
    tier: Option<String>,
    /// Default: `*`.
    #[schema(value_type = Option<value::EndpointPattern>)]
    endpoint_pattern: Option<String>,
    /// Applies to this method only.
    #[schema(value_type = Option<value::MethodName>)]
    method: Option<String>,
    /// Applies to these methods only. Replaces `method`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<value::MethodName>>)]
    methods: Option<Vec<String>>,
    /// Required, like `limit` and `window_seconds`, unless the rule is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::AlgorithmChoice>)]
    algorithm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Quota>)]
    limit: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Window>)]
    window_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<Count>,
    /// Whether matching requests are unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlimited: Option<bool>,
    /// The unit it counts. Default: `requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::UnitName>)]
    unit: Option<String>,
    /// The cost of each request. Overrides the cost of the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::CostNumber>)]
    cost: Option<Count>,
    /// Whether a request is allowed while at least 1 remains and is then charged in full, into a
    /// debt of up to one capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    overdraw: Option<bool>,
    #[schema(value_type = Option<value::ModeName>)]
    mode: Option<String>,
    #[schema(value_type = Option<value::CounterScope>)]
    counter: Option<String>,
    /// The name of a store in the configuration.
    #[schema(value_type = Option<value::Name>)]
    store: Option<String>,
    #[schema(value_type = Option<value::FailureModeName>)]
    on_store_error: Option<String>,
    #[schema(value_type = Option<value::SourceName>)]
    source: Option<String>,
    /// In requests: same effect as `If-Match`.
    #[schema(value_type = Option<i64>)]
    pub(super) version: Option<Integer>,
    /// Null for rules from the configuration file.
    #[schema(value_type = Option<value::Time>)]
    created_at: Option<String>,
    #[schema(value_type = Option<value::Time>)]
    pub(super) updated_at: Option<String>,
}

impl RuleBody {
    /// A rule from the configuration file, which has no times.
    pub(super) fn file(rule: &Rule) -> Self {
        let mut methods: Vec<String> = rule.methods.iter().map(str::to_owned).collect();
        let method = if methods.len() == 1 { methods.pop() } else { None };
        let limit = Some(&rule.limit).filter(|_| !rule.unlimited);
        let set = |flag: bool| flag.then_some(true);
        let count = |number: u32| Whole(u64::from(number));
        Self {
            rule_id: Some(Sources::file_rule_id(rule)),
            name: Some(rule.name.clone()),
            dimension: Some(rule.dimension.clone()),
            identifier: rule.identifier.clone(),
            tier: rule.tier.clone(),
            endpoint_pattern: Some(rule.endpoint.as_str().to_owned()),
            method,
            methods: Some(methods).filter(|methods| !methods.is_empty()),
            algorithm: limit.map(|limit| limit.algorithm().name().to_owned()),
            limit: limit.map(|limit| count(limit.quota())),
            window_seconds: limit.map(|limit| Seconds(limit.window())),
            burst_capacity: limit.and_then(burst).map(count),
            unlimited: set(rule.unlimited),
            unit: rule.unit.clone(),
            cost: rule.cost.map(|cost| count(cost.get())),
            overdraw: set(rule.overdraw),
            mode: Some(rule.mode.name().to_owned()),
            counter: Some(rule.scope.name().to_owned()),
            store: rule.store.clone(),
            on_store_error: rule.on_store_error.map(|mode| mode.name().to_owned()),
            source: Some(FILE.to_owned()),
            version: Some(Whole(1)),
            created_at: None,
            updated_at: None,
        }
    }

    /// A rule from the catalog. Its sliding log is called `sliding_window` for clients that do.
    pub(super) fn stored(stored: &StoredRule, sliding_window: bool) -> Self {
        let limit = Some(&stored.rule.limit).filter(|_| !stored.rule.unlimited);
        Self {
            rule_id: Some(stored.rule_id.clone()),
            algorithm: limit.map(|limit| name_for(limit.algorithm(), sliding_window).to_owned()),
            source: Some(CATALOG.to_owned()),
            version: Some(Whole(stored.version)),
            created_at: Some(rfc3339(stored.created_at)),
            updated_at: Some(rfc3339(stored.updated_at)),
            ..Self::file(&stored.rule)
        }
    }

    /// Returns whether the client calls the sliding log `sliding_window`.
    pub(super) fn uses_sliding_window(&self) -> bool {
        self.algorithm.as_deref().is_some_and(is_sliding_window)
    }

    /// Rejects changed read-only fields of an existing rule.
    pub(super) fn check_owned(&self, stored: &StoredRule) -> Result<(), ApiError> {
        unchanged("rule_id", self.rule_id.as_deref(), &stored.rule_id)?;
        unchanged("source", self.source.as_deref(), CATALOG)?;
        unchanged_time("created_at", self.created_at.as_deref(), stored.created_at)
    }

    /// Returns the rule if every field is valid.
    pub(super) fn rule(self, limiter: &Limiter) -> Result<Rule, ApiError> {
        let unlimited = self.unlimited.unwrap_or_default();
        let limit = if unlimited {
            Limit::largest()
        } else {
            let algorithm = ("algorithm", self.algorithm.as_deref());
            read_limit(algorithm, self.limit, self.window_seconds, self.burst_capacity)?
        };
        let pattern = self.endpoint_pattern.as_deref().unwrap_or("*");
        let rule = Rule {
            endpoint: Pattern::parse(pattern)
                .map_err(|error| ApiError::input("endpoint_pattern", error.to_string()))?,
            name: required("name", self.name)?,
            dimension: required("dimension", self.dimension)?,
            identifier: self.identifier,
            tier: self.tier,
            methods: read_methods(self.method.as_deref(), self.methods.as_deref())?,
            limit,
            unlimited,
            unit: self.unit,
            cost: read_cost(self.cost)?,
            overdraw: self.overdraw.unwrap_or_default(),
            mode: named("mode", self.mode.as_deref())?.unwrap_or_default(),
            scope: named("counter", self.counter.as_deref())?.unwrap_or_default(),
            store: self.store,
            on_store_error: named("on_store_error", self.on_store_error.as_deref())?,
        };
        let rule = rule.canonical(limiter.ipv6_prefix());
        let rule = rule.map_err(|invalid| ApiError::input(invalid.field(), invalid.reason()))?.into_owned();
        if let Some(store) = rule.store.as_deref().filter(|store| !limiter.stores().has(store)) {
            let store: String = store.chars().take(64).collect();
            return Err(ApiError::input("store", format!("unknown store `{store}`")));
        }
        Ok(rule)
    }
}

/// Returns a required field.
pub(in crate::rest) fn required<T>(field: &str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::input(field, "required field is missing"))
}

/// Reads `method` (one) or `methods` (several).
fn read_methods(method: Option<&str>, methods: Option<&[String]>) -> Result<Methods, ApiError> {
    if let (Some(_), Some([_, ..])) = (method, methods) {
        return Err(ApiError::input("methods", "`method` and `methods` are mutually exclusive"));
    }
    let field = if method.is_some() { "method" } else { "methods" };
    let names = method.into_iter().chain(methods.unwrap_or_default().iter().map(String::as_str));
    Methods::try_new(names).map_err(|invalid| ApiError::input(field, invalid.reason()))
}

/// Reads the cost of a rule or plan.
pub(super) fn read_cost(cost: Option<Count>) -> Result<Option<Cost>, ApiError> {
    let cost = cost.map(|Whole(cost)| Cost::try_new(cost)).transpose();
    cost.map_err(|invalid| ApiError::input("cost", invalid.reason()))
}

/// Reads a limit from its numbers and its algorithm, whose name depends on the API.
pub(super) fn read_limit(
    (field, algorithm): (&str, Option<&str>),
    quota: Option<Count>,
    window: Option<Seconds>,
    burst: Option<Count>,
) -> Result<Limit, ApiError> {
    let algorithm = parse_strategy(field, required(field, algorithm)?)?;
    let missing = |field| ApiError::field(Code::InvalidLimit, field, "required field is missing");
    let Whole(quota) = quota.ok_or_else(|| missing("limit"))?;
    let Seconds(window) = window.ok_or_else(|| missing("window_seconds"))?;
    let limit = Limit::try_new(algorithm, quota, window).map_err(invalid_limit)?;
    match burst {
        Some(Whole(burst)) => limit.with_burst(burst).map_err(invalid_limit),
        None => Ok(limit),
    }
}

/// Reads an enum value by its name.
fn named<T: Named>(field: &str, text: Option<&str>) -> Result<Option<T>, ApiError> {
    let expected = || ApiError::input(field, format!("expected {}", T::expected()));
    text.map(|text| T::parse(text).ok_or_else(expected)).transpose()
}

/// The `source` of rules and plans that can be changed here.
pub(super) const CATALOG: &str = "catalog";
/// The `source` of rules and plans that are changed in the configuration file.
pub(super) const FILE: &str = "file";
