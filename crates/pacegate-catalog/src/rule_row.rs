//! The stored form of a rule.

use std::borrow::Cow;

use pacegate::{Methods, Pattern, Rule, Timestamp};
use pacegate_core::Named;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::any::AnyRow;

use crate::error::CatalogError;
use crate::json::{self, unreadable, whole_micros};
use crate::record::{PolicyDetail, StoredRule};
use crate::statement::column;

/// The number, and all other columns as one text: each column costs the driver more than decoding
/// the whole rule.
pub(crate) const SELECT: &str = "SELECT number, rule_id || ' ' || variant_key || ' ' || version || ' ' || created_at || ' ' || updated_at || ' ' || \
    definition_json FROM pacegate_rules";

/// The stored definition of a rule. An unknown field makes the rule unreadable, so that it is never
/// applied with a different meaning.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition<'a> {
    name: String,
    dimension: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identifier: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// Used instead of `method` when there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    methods: Vec<String>,
    #[serde(borrow)]
    algorithm: Cow<'a, str>,
    quota: u64,
    window_micros: u64,
    burst: u64,
    #[serde(borrow)]
    mode: Cow<'a, str>,
    #[serde(borrow)]
    counter: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    on_store_error: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unlimited: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    overdraw: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<Policy>,
}

#[derive(Serialize, Deserialize)]
struct Policy {
    refill_rate: u64,
    window_seconds: u64,
}

/// The rule for the column `definition_json`.
pub(crate) fn write(rule: &Rule, policy: Option<PolicyDetail>) -> Result<String, CatalogError> {
    json::written(&definition(rule, policy))
}

/// The rule for the audit trail: its definition, with the management API's names for its values.
pub(crate) fn shown(stored: &StoredRule) -> Value {
    let Ok(Value::Object(mut shown)) = serde_json::to_value(definition(&stored.rule, stored.policy)) else {
        return Value::Null;
    };
    for (own, name) in [("endpoint", "endpoint_pattern"), ("quota", "limit"), ("burst", "burst_capacity")] {
        if let Some(value) = shown.remove(own) {
            shown.insert(name.to_owned(), value);
        }
    }
    shown.remove("window_micros");
    shown.insert("window_seconds".to_owned(), json::seconds(stored.rule.limit.window()));
    shown.insert("rule_id".to_owned(), stored.rule_id.clone().into());
    shown.insert("version".to_owned(), stored.version.into());
    Value::Object(shown)
}

fn definition(rule: &Rule, policy: Option<PolicyDetail>) -> Definition<'_> {
    let mut methods: Vec<String> = rule.methods.iter().map(str::to_owned).collect();
    let method = if methods.len() == 1 { methods.pop() } else { None };
    Definition {
        name: rule.name.clone(),
        dimension: rule.dimension.clone(),
        identifier: rule.identifier.clone(),
        tier: rule.tier.clone(),
        endpoint: rule.endpoint.as_str().into(),
        method,
        methods,
        algorithm: rule.limit.algorithm().name().into(),
        quota: rule.limit.quota().into(),
        window_micros: whole_micros(rule.limit.window()),
        burst: rule.limit.capacity().into(),
        mode: rule.mode.name().into(),
        counter: rule.scope.name().into(),
        store: rule.store.clone(),
        on_store_error: rule.on_store_error.map(|mode| mode.name().into()),
        unlimited: rule.unlimited,
        unit: rule.unit.clone(),
        cost: rule.cost.map(|cost| cost.get().into()),
        overdraw: rule.overdraw,
        policy: policy
            .map(|PolicyDetail { refill_rate, window_seconds }| Policy { refill_rate, window_seconds }),
    }
}

/// Reads a rule. An error, which means that the table was edited, names the rule.
pub(crate) fn read(row: &AnyRow) -> Result<StoredRule, CatalogError> {
    let (number, text): (i64, &str) = (column(row, 0)?, column(row, 1)?);
    let (rule_id, rest) = text.split_once(' ').unwrap_or((text, ""));
    stored(number, rule_id, rest)
        .map_err(|error| CatalogError::permanent(format!("rule {rule_id} cannot be read: {error}")))
}

fn stored(number: i64, rule_id: &str, text: &str) -> Result<StoredRule, CatalogError> {
    let mut parts = text.splitn(5, ' ');
    let mut part = || parts.next().ok_or_else(|| unreadable("the row is truncated"));
    let (key, version, created_at, updated_at, definition) = (part()?, part()?, part()?, part()?, part()?);
    let time = |text: &str| text.parse().map(Timestamp::from_micros).map_err(unreadable);
    let (rule, policy) = defined(definition)?;
    // Two rules of one variant would invalidate the whole set.
    if rule.variant_key() != key {
        return Err(unreadable("the definition does not match its variant key"));
    }
    Ok(StoredRule {
        number,
        rule_id: rule_id.to_owned(),
        rule,
        policy,
        version: version.parse().map_err(unreadable)?,
        created_at: time(created_at)?,
        updated_at: time(updated_at)?,
    })
}

fn defined(text: &str) -> Result<(Rule, Option<PolicyDetail>), CatalogError> {
    let definition: Definition<'_> = serde_json::from_str(text).map_err(unreadable)?;
    let Definition { quota, window_micros, burst, .. } = definition;
    let limit = json::limit(&definition.algorithm, quota, window_micros, burst)?;
    let on_store_error = definition.on_store_error.map(|word| named(&word)).transpose()?;
    let methods = definition.method.iter().chain(&definition.methods).map(String::as_str);
    let methods = Methods::try_new(methods).map_err(unreadable)?;
    let rule = Rule {
        name: definition.name,
        dimension: definition.dimension,
        identifier: definition.identifier,
        tier: definition.tier,
        endpoint: Pattern::parse(&definition.endpoint).map_err(unreadable)?,
        methods,
        limit,
        unlimited: definition.unlimited,
        unit: definition.unit,
        cost: json::cost(definition.cost)?,
        overdraw: definition.overdraw,
        mode: named(&definition.mode)?,
        scope: named(&definition.counter)?,
        store: definition.store,
        on_store_error,
    };
    let detail = |Policy { refill_rate, window_seconds }| PolicyDetail { refill_rate, window_seconds };
    Ok((rule, definition.policy.map(detail)))
}

fn named<T: Named>(word: &str) -> Result<T, CatalogError> {
    T::parse(word).ok_or_else(|| unreadable(format!("expected {}, got \"{word}\"", T::expected())))
}
