//! A rule and its row.

use sqlx::any::AnyRow;
use tollgate::{FailureMode, Mode, Pattern, Rule, Scope};

use crate::digest::Digest;
use crate::error::CatalogError;
use crate::json::{self, unreadable, whole_micros};
use crate::record::{PolicyDetail, StoredRule};
use crate::statement::{Statement, column, time, unsigned};

/// In the order in which [`read`] reads them.
pub(crate) const SELECT: &str = "SELECT number, rule_id, name, dimension, identifier, tier, endpoint_pattern, method, algorithm, quota, window_micros, burst, \
    mode, scope, store, on_store_error, policy_refill_rate, policy_window_seconds, version, created_at, updated_at FROM tollgate_rules";

/// What [`bind`] binds comes first.
pub(crate) const INSERT: &str = "INSERT INTO tollgate_rules (variant_key, name, dimension, identifier, tier, endpoint_pattern, method, algorithm, quota, \
    window_micros, burst, mode, scope, store, on_store_error, policy_refill_rate, policy_window_seconds, version, updated_at, number, rule_id, created_at) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// What [`bind`] binds comes first.
pub(crate) const UPDATE: &str = "UPDATE tollgate_rules SET variant_key = ?, name = ?, dimension = ?, identifier = ?, tier = ?, endpoint_pattern = ?, \
    method = ?, algorithm = ?, quota = ?, window_micros = ?, burst = ?, mode = ?, scope = ?, store = ?, on_store_error = ?, policy_refill_rate = ?, \
    policy_window_seconds = ?, version = ?, updated_at = ? WHERE rule_id = ?";

const MODES: [Mode; 2] = [Mode::Enforce, Mode::Shadow];
const SCOPES: [Scope; 2] = [Scope::Pattern, Scope::Endpoint];
const FAILURE_MODES: [FailureMode; 3] = [FailureMode::Open, FailureMode::Closed, FailureMode::Local];

/// The same for rules that are the same variant of the same name: of those there is one.
pub(crate) fn variant_key(rule: &Rule) -> String {
    Digest::new()
        .text(&rule.name)
        .text(&rule.dimension)
        .optional(rule.identifier.as_deref())
        .optional(rule.tier.as_deref())
        .text(&rule.endpoint.canonical())
        .optional(rule.method.as_deref())
        .hexadecimal()
}

/// The columns that can change.
pub(crate) fn bind<'q>(statement: Statement<'q>, stored: &StoredRule) -> Result<Statement<'q>, CatalogError> {
    let (rule, limit) = (&stored.rule, &stored.rule.limit);
    let kept = |field, number| {
        i64::try_from(number).map_err(|_| CatalogError::invalid(field, format!("{field} is too large")))
    };
    let refill_rate = stored.policy.map(|policy| kept("refillRate", policy.refill_rate)).transpose()?;
    let window = stored.policy.map(|policy| kept("windowSeconds", policy.window_seconds)).transpose()?;
    Ok(statement
        .bind(variant_key(rule))
        .bind(rule.name.clone())
        .bind(rule.dimension.clone())
        .bind(rule.identifier.clone())
        .bind(rule.tier.clone())
        .bind(rule.endpoint.as_str().to_owned())
        .bind(rule.method.clone())
        .bind(limit.algorithm().name())
        .bind(i64::from(limit.quota()))
        .bind(kept("window", whole_micros(limit.window()))?)
        .bind(i64::from(limit.capacity()))
        .bind(json::mode(rule.mode))
        .bind(json::scope(rule.scope))
        .bind(rule.store.clone())
        .bind(rule.on_store_error.map(FailureMode::name))
        .bind(refill_rate)
        .bind(window)
        .bind(stored.version)
        .time(stored.updated_at))
}

/// An error names the rule: somebody edited the table.
pub(crate) fn read(row: &AnyRow) -> Result<StoredRule, CatalogError> {
    let rule_id: String = column(row, 1)?;
    fields(row, &rule_id)
        .map_err(|error| CatalogError::permanent(format!("rule {rule_id} cannot be read: {error}")))
}

fn fields(row: &AnyRow, rule_id: &str) -> Result<StoredRule, CatalogError> {
    let number = |index| column::<i64>(row, index).and_then(unsigned);
    let limit = json::limit(column(row, 8)?, number(9)?, number(10)?, number(11)?)?;
    let (mode, scope): (&str, &str) = (column(row, 12)?, column(row, 13)?);
    let on_store_error =
        column::<Option<&str>>(row, 15)?.map(|word| named(&FAILURE_MODES, FailureMode::name, word));
    let refill_rate: Option<i64> = column(row, 16)?;
    let policy = match refill_rate.zip(column::<Option<i64>>(row, 17)?) {
        None => None,
        Some((refill_rate, window)) => {
            Some(PolicyDetail { refill_rate: unsigned(refill_rate)?, window_seconds: unsigned(window)? })
        }
    };
    let rule = Rule {
        name: column(row, 2)?,
        dimension: column(row, 3)?,
        identifier: column(row, 4)?,
        tier: column(row, 5)?,
        endpoint: Pattern::parse(column(row, 6)?).map_err(unreadable)?,
        method: column(row, 7)?,
        limit,
        mode: named(&MODES, json::mode, mode)?,
        scope: named(&SCOPES, json::scope, scope)?,
        store: column(row, 14)?,
        on_store_error: on_store_error.transpose()?,
    };
    crate::bounds::check_rule(&rule)?;
    Ok(StoredRule {
        number: column(row, 0)?,
        rule_id: rule_id.to_owned(),
        rule,
        policy,
        version: column(row, 18)?,
        created_at: time(row, 19)?,
        updated_at: time(row, 20)?,
    })
}

fn named<T: Copy>(values: &[T], name: impl Fn(T) -> &'static str, word: &str) -> Result<T, CatalogError> {
    let found = values.iter().copied().find(|value| name(*value) == word);
    found.ok_or_else(|| unreadable(format!("`{word}` has no meaning")))
}
