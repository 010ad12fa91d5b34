//! Limits as JSON: exact in the tables, and with the field names of the REST API in the audit
//! trail.

use std::time::Duration;

use pacegate::{Algorithm, Cost, Limit, LimitOverride, PlanLimit, identity};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::CatalogError;
use crate::record::{Override, StoredKey, StoredPlan, User};
use crate::statement::micros;

#[derive(Serialize, Deserialize)]
struct StoredLimit {
    algorithm: String,
    quota: u64,
    window_micros: u64,
    burst: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredOverride {
    rule: String,
    quota: u64,
    window_micros: Option<u64>,
    burst: Option<u64>,
}

/// The limits of a plan, for its row.
pub(crate) fn write_limits(limits: &[PlanLimit]) -> Result<String, CatalogError> {
    let kept = limits.iter().map(|PlanLimit { limit, unit, cost }| StoredLimit {
        algorithm: limit.algorithm().name().to_owned(),
        quota: limit.quota().into(),
        window_micros: whole_micros(limit.window()),
        burst: limit.capacity().into(),
        unit: unit.clone(),
        cost: cost.map(|cost| cost.get().into()),
    });
    written(&kept.collect::<Vec<_>>())
}

pub(crate) fn read_limits(text: &str) -> Result<Vec<PlanLimit>, CatalogError> {
    let kept: Vec<StoredLimit> = serde_json::from_str(text).map_err(unreadable)?;
    let plan_limit = |kept: StoredLimit| {
        let limit = limit(&kept.algorithm, kept.quota, kept.window_micros, kept.burst)?;
        Ok(PlanLimit { limit, unit: kept.unit, cost: cost(kept.cost)? })
    };
    kept.into_iter().map(plan_limit).collect()
}

/// A cost, if there is one.
pub(crate) fn cost(kept: Option<u64>) -> Result<Option<Cost>, CatalogError> {
    kept.map(Cost::try_new).transpose().map_err(unreadable)
}

/// A limit from its stored fields.
pub(crate) fn limit(
    algorithm: &str,
    quota: u64,
    window_micros: u64,
    burst: u64,
) -> Result<Limit, CatalogError> {
    let algorithm: Algorithm = algorithm.parse().map_err(unreadable)?;
    let limit = Limit::try_new(algorithm, quota, Duration::from_micros(window_micros)).map_err(unreadable)?;
    limit.with_burst(burst).map_err(unreadable)
}

/// A user's custom limits, for the row.
pub(crate) fn write_custom_limits(limits: &[(String, LimitOverride)]) -> Result<String, CatalogError> {
    let kept = limits.iter().map(|(rule, numbers)| StoredOverride {
        rule: rule.clone(),
        quota: numbers.quota,
        window_micros: numbers.window.map(whole_micros),
        burst: numbers.burst,
    });
    written(&kept.collect::<Vec<_>>())
}

pub(crate) fn read_custom_limits(text: &str) -> Result<Vec<(String, LimitOverride)>, CatalogError> {
    let kept: Vec<StoredOverride> = serde_json::from_str(text).map_err(unreadable)?;
    let numbers = |kept: &StoredOverride| LimitOverride {
        quota: kept.quota,
        window: kept.window_micros.map(Duration::from_micros),
        burst: kept.burst,
    };
    Ok(kept
        .into_iter()
        .map(|kept| (numbers(&kept), kept.rule))
        .map(|(numbers, rule)| (rule, numbers))
        .collect())
}

pub(crate) fn plan(plan: &StoredPlan) -> Value {
    let limit = |PlanLimit { limit, unit, cost }: &PlanLimit| {
        json!({
            "unit": unit, "cost": cost.map(|cost| cost.get()), "algorithm": limit.algorithm().name(), "limit": limit.quota(),
            "window_seconds": seconds(limit.window()), "burst_capacity": limit.capacity(),
        })
    };
    let limits: Vec<Value> = plan.limits.iter().map(limit).collect();
    json!({ "name": plan.name, "version": plan.version, "limits": limits })
}

pub(crate) fn user(user: &User) -> Value {
    let custom = user.custom_limits.iter().map(|(rule, numbers)| (rule.clone(), self::numbers(numbers)));
    json!({
        "user_id": user.user_id, "version": user.version, "tier": user.tier,
        "custom_limits": custom.collect::<serde_json::Map<_, _>>(),
    })
}

pub(crate) fn of_override(of: &Override) -> Value {
    let mut value = numbers(&of.numbers);
    if let Value::Object(fields) = &mut value {
        fields.insert("override_id".to_owned(), of.override_id.clone().into());
        if of.dimension == identity::USER {
            fields.insert("user_id".to_owned(), of.user_id.clone().into());
        } else {
            fields.insert("dimension".to_owned(), of.dimension.clone().into());
            fields.insert("identifier".to_owned(), of.user_id.clone().into());
        }
        fields.insert("rule".to_owned(), of.rule.clone().into());
        fields.insert("reason".to_owned(), of.reason.clone().into());
        fields.insert("expires_at_micros".to_owned(), micros(of.expires_at).into());
    }
    value
}

/// A key, without the secret and its hash.
pub(crate) fn key(key: &StoredKey) -> Value {
    json!({
        "key_id": key.key_id, "name": key.name, "role": key.role,
        "expires_at_micros": key.expires_at.map(micros), "revoked_at_micros": key.revoked_at.map(micros),
    })
}

fn numbers(numbers: &LimitOverride) -> Value {
    let (window, burst) = (numbers.window.map(seconds), numbers.burst);
    json!({ "limit": numbers.quota, "window_seconds": window, "burst_capacity": burst })
}

/// A window is at most 366 days, far below the maximum.
pub(crate) fn whole_micros(window: Duration) -> u64 {
    u64::try_from(window.as_micros()).unwrap_or(u64::MAX)
}

/// A number of seconds, as an integer when it has no fraction.
pub(crate) fn seconds(window: Duration) -> Value {
    if window.subsec_nanos() == 0 { window.as_secs().into() } else { window.as_secs_f64().into() }
}

pub(crate) fn written(value: &impl Serialize) -> Result<String, CatalogError> {
    serde_json::to_string(value).map_err(unreadable)
}

/// The error for a row that this program did not write.
pub(crate) fn unreadable(error: impl std::fmt::Display) -> CatalogError {
    CatalogError::permanent(format!("unexpected content in the catalog tables: {error}"))
}
