//! Rules and limits as JSON. These types exist only here; inside, a rule is a `Rule`.

use std::time::Duration;

use pacegate::{Algorithm, Cost, FailureMode, Limit, Limiter, Methods, Pattern, Rule};
use pacegate_catalog::StoredRule;
use pacegate_core::Named;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::{rfc3339, unchanged, unchanged_time};
use crate::ad_hoc::{SLIDING_WINDOW, is_sliding_window};
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::answer::burst;
use crate::rest::wire::{Kind, parse_strategy, read_object};
use pacegate_catalog::Sources;

/// The body that makes or replaces a rule. What only the service sets is taken, so that an answer can be edited and sent back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleRequest {
    /// Rules that share a name are variants of one limit.
    #[schema(value_type = value::Name, required = true)]
    name: Option<String>,
    #[schema(value_type = value::Dimension, required = true)]
    dimension: Option<String>,
    /// For one identifier only.
    #[schema(value_type = Option<value::Identifier>)]
    identifier: Option<String>,
    /// For users of one tier only.
    #[schema(value_type = Option<value::TierName>)]
    tier: Option<String>,
    /// `*` unless given.
    #[schema(value_type = Option<value::EndpointPattern>)]
    endpoint_pattern: Option<String>,
    /// For one method only.
    #[schema(value_type = Option<value::MethodName>)]
    method: Option<String>,
    /// For several methods only, instead of `method`.
    #[schema(value_type = Option<Vec<value::MethodName>>)]
    methods: Option<Vec<String>>,
    /// This, `window_seconds` and `algorithm` are required unless the rule is unlimited.
    #[schema(value_type = Option<value::Quota>)]
    limit: Option<u64>,
    #[schema(value_type = Option<value::Window>)]
    window_seconds: Option<Number>,
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<u64>,
    #[schema(value_type = Option<value::AlgorithmChoice>)]
    algorithm: Option<String>,
    /// Whether what it applies to is not limited.
    unlimited: Option<bool>,
    /// What it counts; `requests` unless given.
    #[schema(value_type = Option<value::UnitName>)]
    unit: Option<String>,
    /// What each request takes, instead of the cost that a check names.
    #[schema(value_type = Option<value::CostNumber>)]
    cost: Option<u64>,
    /// Whether a request passes while at least 1 is left and is charged in full, into a debt of up to one capacity.
    overdraw: Option<bool>,
    #[schema(value_type = Option<value::ModeName>)]
    mode: Option<String>,
    #[schema(value_type = Option<value::CounterScope>)]
    counter: Option<String>,
    /// One of the configuration's stores.
    #[schema(value_type = Option<value::Name>)]
    store: Option<String>,
    #[schema(value_type = Option<value::FailureModeName>)]
    on_store_error: Option<String>,
    /// Must be the one in the path, if given.
    pub(super) rule_id: Option<String>,
    /// As `If-Match`, if given.
    pub(super) version: Option<i64>,
    /// This and the times must be those shown, if given.
    source: Option<String>,
    created_at: Option<String>,
    pub(super) updated_at: Option<String>,
}

const FIELDS: [(&str, Kind); 24] = [
    ("name", Kind::Text),
    ("dimension", Kind::Text),
    ("identifier", Kind::Text),
    ("tier", Kind::Text),
    ("endpoint_pattern", Kind::Text),
    ("method", Kind::Text),
    ("methods", Kind::Texts),
    ("unlimited", Kind::Flag),
    ("unit", Kind::Text),
    ("cost", Kind::Count),
    ("overdraw", Kind::Flag),
    ("limit", Kind::Count),
    ("window_seconds", Kind::Number),
    ("burst_capacity", Kind::Count),
    ("algorithm", Kind::Text),
    ("mode", Kind::Text),
    ("counter", Kind::Text),
    ("store", Kind::Text),
    ("on_store_error", Kind::Text),
    ("rule_id", Kind::Text),
    ("version", Kind::Integer),
    ("source", Kind::Text),
    ("created_at", Kind::Text),
    ("updated_at", Kind::Text),
];

impl RuleRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        read_object(body, &FIELDS)
    }

    /// Whether the client calls the sliding log `sliding_window`.
    pub(super) fn says_sliding_window(&self) -> bool {
        self.algorithm.as_deref().is_some_and(is_sliding_window)
    }

    /// Refuses a changed field of those that only the server sets, for a rule that exists.
    pub(super) fn check_owned(&self, stored: &StoredRule) -> Result<(), ApiError> {
        unchanged("rule_id", self.rule_id.as_deref(), &stored.rule_id)?;
        unchanged("source", self.source.as_deref(), CATALOG)?;
        unchanged_time("created_at", self.created_at.as_deref(), stored.created_at)
    }

    /// The rule, if every field is right.
    pub(super) fn rule(self, limiter: &Limiter) -> Result<Rule, ApiError> {
        let required =
            |field: &str, value: Option<String>| value.ok_or_else(|| ApiError::input(field, "is missing"));
        let unlimited = self.unlimited.unwrap_or_default();
        let limit = if unlimited {
            Limit::largest()
        } else {
            let algorithm = required("algorithm", self.algorithm)?;
            let algorithm = parse_strategy("algorithm", &algorithm)?;
            read_limit(algorithm, self.limit, self.window_seconds.as_ref(), self.burst_capacity)?
        };
        let methods = read_methods(self.method.as_deref(), self.methods.as_deref())?;
        let pattern = self.endpoint_pattern.as_deref().unwrap_or("*");
        let rule = Rule {
            endpoint: Pattern::parse(pattern)
                .map_err(|error| ApiError::input("endpoint_pattern", error.to_string()))?,
            name: required("name", self.name)?,
            dimension: required("dimension", self.dimension)?,
            identifier: self.identifier,
            tier: self.tier,
            methods,
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
            return Err(ApiError::input("store", format!("there is no store `{store}`")));
        }
        Ok(rule)
    }
}

/// `method` for one, `methods` for several.
fn read_methods(method: Option<&str>, methods: Option<&[String]>) -> Result<Methods, ApiError> {
    if let (Some(_), Some([_, ..])) = (method, methods) {
        return Err(ApiError::input("methods", "use either method or methods"));
    }
    let field = if method.is_some() { "method" } else { "methods" };
    let names = method.into_iter().chain(methods.unwrap_or_default().iter().map(String::as_str));
    Methods::try_new(names).map_err(|invalid| ApiError::input(field, invalid.reason()))
}

/// A cost of a rule's or plan's own.
pub(super) fn read_cost(cost: Option<u64>) -> Result<Option<Cost>, ApiError> {
    cost.map(Cost::try_new).transpose().map_err(|invalid| ApiError::input("cost", invalid.reason()))
}

/// The numbers of a limit, each under the name it has in requests.
pub(super) fn read_limit(
    algorithm: Algorithm,
    quota: Option<u64>,
    window: Option<&Number>,
    burst: Option<u64>,
) -> Result<Limit, ApiError> {
    let missing = |field| ApiError::field(Code::InvalidLimit, field, "is missing");
    let quota = quota.ok_or_else(|| missing("limit"))?;
    let window = read_window(window.ok_or_else(|| missing("window_seconds"))?)?;
    let limit = Limit::try_new(algorithm, quota, window).map_err(invalid_limit)?;
    match burst {
        Some(burst) => limit.with_burst(burst).map_err(invalid_limit),
        None => Ok(limit),
    }
}

/// Seconds, with milliseconds as a fraction.
pub(super) fn read_window(seconds: &Number) -> Result<Duration, ApiError> {
    let window = match seconds.as_u64() {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => seconds.as_f64().and_then(|seconds| {
            let milliseconds = seconds * 1_000.0;
            let whole = milliseconds.round();
            // Doubles near the longest window are 7e-6 ms apart.
            let exact = (milliseconds - whole).abs() < 1e-5 && (0.0..1e15).contains(&whole);
            exact.then(|| Duration::from_millis(whole as u64))
        }),
    };
    let reason = "must be a positive number of seconds, in steps of a millisecond";
    window.ok_or_else(|| ApiError::field(Code::InvalidLimit, "window_seconds", reason))
}

/// A value of an enum, by its name.
fn named<T: Named>(field: &str, text: Option<&str>) -> Result<Option<T>, ApiError> {
    let expected = || ApiError::input(field, format!("expected {}", T::expected()));
    text.map(|text| T::parse(text).ok_or_else(expected)).transpose()
}

/// The `source` of what can be changed here.
pub(super) const CATALOG: &str = "catalog";

/// A rule as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rule)]
pub(super) struct RuleResponse<'a> {
    rule_id: String,
    name: &'a str,
    dimension: &'a str,
    #[schema(required = true)]
    identifier: Option<&'a str>,
    #[schema(required = true)]
    tier: Option<&'a str>,
    endpoint_pattern: &'a str,
    #[schema(required = true)]
    method: Option<&'a str>,
    /// If there are several; `method` is null then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    methods: Vec<&'a str>,
    /// This and the numbers are not there for a rule that is unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<value::AlgorithmName>)]
    algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<u32>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "crate::rest::answer::optional_seconds"
    )]
    #[schema(nullable = false, value_type = Option<value::Window>)]
    window_seconds: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    burst_capacity: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    unlimited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cost: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    overdraw: bool,
    #[schema(value_type = value::ModeName)]
    mode: &'static str,
    #[schema(value_type = value::CounterScope)]
    counter: &'static str,
    #[schema(required = true)]
    store: Option<&'a str>,
    #[schema(required = true, value_type = Option<value::FailureModeName>)]
    on_store_error: Option<&'static str>,
    #[schema(value_type = value::SourceName)]
    source: &'static str,
    version: i64,
    /// Null for rules of the configuration file.
    #[schema(required = true, value_type = Option<value::Time>)]
    created_at: Option<String>,
    #[schema(required = true, value_type = Option<value::Time>)]
    updated_at: Option<String>,
}

impl<'a> RuleResponse<'a> {
    pub(super) fn stored(stored: &'a StoredRule) -> Self {
        Self {
            rule_id: stored.rule_id.clone(),
            source: CATALOG,
            version: stored.version,
            created_at: Some(rfc3339(stored.created_at)),
            updated_at: Some(rfc3339(stored.updated_at)),
            ..Self::file(&stored.rule)
        }
    }

    /// Calls the sliding log `sliding_window`, if the client does.
    pub(super) fn says_sliding_window(mut self, says: bool) -> Self {
        if says && self.algorithm == Some(Algorithm::SlidingLog.name()) {
            self.algorithm = Some(SLIDING_WINDOW);
        }
        self
    }

    /// A rule of the configuration file, which knows no times.
    pub(super) fn file(rule: &'a Rule) -> Self {
        let mut methods: Vec<&str> = rule.methods.iter().collect();
        let method = if methods.len() == 1 { methods.pop() } else { None };
        let limit = Some(&rule.limit).filter(|_| !rule.unlimited);
        Self {
            rule_id: Sources::file_rule_id(rule),
            name: &rule.name,
            dimension: &rule.dimension,
            identifier: rule.identifier.as_deref(),
            tier: rule.tier.as_deref(),
            endpoint_pattern: rule.endpoint.as_str(),
            method,
            methods,
            algorithm: limit.map(|limit| limit.algorithm().name()),
            limit: limit.map(Limit::quota),
            window_seconds: limit.map(Limit::window),
            burst_capacity: limit.and_then(burst),
            unlimited: rule.unlimited,
            unit: rule.unit.as_deref(),
            cost: rule.cost.map(|cost| cost.get()),
            overdraw: rule.overdraw,
            mode: rule.mode.name(),
            counter: rule.scope.name(),
            store: rule.store.as_deref(),
            on_store_error: rule.on_store_error.map(FailureMode::name),
            source: "file",
            version: 1,
            created_at: None,
            updated_at: None,
        }
    }
}
