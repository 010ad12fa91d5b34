//! What values the catalog takes.

use std::collections::HashSet;
use std::time::Duration;

use pacegate::{Algorithm, Limit, Numbers, Rule};

use crate::error::CatalogError;

/// The longest name of a rule, plan, tier, store or key, in bytes.
pub const NAME_LENGTH_MAX: usize = 128;
/// The longest identifier of a user, in bytes.
pub const USER_ID_LENGTH_MAX: usize = 1_024;
/// The longest reason for an override, in bytes.
pub const REASON_LENGTH_MAX: usize = 1_024;
/// The most records of a page.
pub const PAGE_MAX: usize = 1_000;
/// How many limits a plan, and a user of their own, may have.
pub const LIMITS_MAX: usize = 100;

/// Names of rules and plans stand in headers, metrics and logs.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), CatalogError> {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
    if printable && (1..=NAME_LENGTH_MAX).contains(&name.len()) {
        return Ok(());
    }
    let message = "must be 1 to 128 printable ASCII characters without quotes and backslashes";
    Err(CatalogError::invalid(field, format!("{field} {message}")))
}

pub(crate) fn check_user_id(user_id: &str) -> Result<(), CatalogError> {
    check_text("user_id", user_id, USER_ID_LENGTH_MAX)
}

/// A text of 1 to `length_max` bytes that can be counted by and shown.
pub(crate) fn check_text(field: &'static str, text: &str, length_max: usize) -> Result<(), CatalogError> {
    let clean = text.bytes().all(|byte| byte >= b' ' && byte != 0x7f);
    if clean && (1..=length_max).contains(&text.len()) {
        return Ok(());
    }
    let message = format!("{field} must be 1 to {length_max} bytes long and have no control characters");
    Err(CatalogError::invalid(field, message))
}

pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), CatalogError> {
    let kept = reason.is_none_or(|reason| reason.len() <= REASON_LENGTH_MAX && !reason.contains('\0'));
    // PostgreSQL has no place for a NUL in a text.
    let message = "reason must be at most 1024 bytes long and have no NUL";
    if kept { Ok(()) } else { Err(CatalogError::invalid("reason", message)) }
}

pub(crate) fn check_rule(rule: &Rule) -> Result<(), CatalogError> {
    check_name("name", &rule.name)?;
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !(1..=64).contains(&rule.dimension.len()) || !rule.dimension.bytes().all(word) {
        let message = "dimension must be 1 to 64 letters, digits, `_`, `-` or `.`";
        return Err(CatalogError::invalid("dimension", message));
    }
    if let Some(identifier) = &rule.identifier {
        check_text("identifier", identifier, USER_ID_LENGTH_MAX)?;
    }
    if let Some(tier) = &rule.tier {
        check_text("tier", tier, NAME_LENGTH_MAX)?;
    }
    if let Some(method) = &rule.method
        && !((1..=32).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_uppercase()))
    {
        return Err(CatalogError::invalid("method", "method must be a method like GET or POST"));
    }
    if rule.endpoint.as_str().len() > pacegate::ENDPOINT_LENGTH_MAX {
        let message = "endpoint_pattern must be at most 2048 bytes long";
        return Err(CatalogError::invalid("endpoint_pattern", message));
    }
    match &rule.store {
        Some(store) => check_text("store", store, NAME_LENGTH_MAX),
        None => Ok(()),
    }
}

/// Whatever the algorithm is that the numbers will be used with.
pub(crate) fn check_numbers(numbers: &Numbers) -> Result<(), CatalogError> {
    let window = numbers.window.unwrap_or(Duration::from_secs(1));
    let limit = Limit::try_new(Algorithm::TokenBucket, numbers.quota, window);
    let checked = limit.and_then(|limit| numbers.burst.map_or(Ok(limit), |burst| limit.with_burst(burst)));
    checked.map(drop).map_err(|error| CatalogError::invalid(error.field(), error.to_string()))
}

pub(crate) fn check_custom_limits(limits: &[(String, Numbers)]) -> Result<(), CatalogError> {
    let mut names = HashSet::new();
    for (rule, numbers) in limits {
        check_name("custom_limits", rule)?;
        check_numbers(numbers)?;
        if !names.insert(rule) {
            let message = format!("custom_limits has `{rule}` twice");
            return Err(CatalogError::invalid("custom_limits", message));
        }
    }
    if limits.len() > LIMITS_MAX {
        return Err(CatalogError::invalid("custom_limits", "custom_limits has more than 100 entries"));
    }
    Ok(())
}

/// Limits of one algorithm and window would share a counter.
pub(crate) fn check_plan(limits: &[Limit]) -> Result<(), CatalogError> {
    if !(1..=LIMITS_MAX).contains(&limits.len()) {
        return Err(CatalogError::invalid("limits", "limits must have 1 to 100 entries"));
    }
    let mut shapes = HashSet::new();
    for limit in limits {
        if !shapes.insert((limit.algorithm(), limit.window())) {
            let message = format!("limits has two {} limits over {:?}", limit.algorithm(), limit.window());
            return Err(CatalogError::invalid("limits", message));
        }
    }
    Ok(())
}

/// Whether the catalog could have given that id. Others are not asked for: PostgreSQL refuses a NUL, and MySQL ignores spaces at the end.
pub(crate) fn is_id(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(digit)
}

/// How many records a page has.
pub(crate) fn check_page(limit: usize) -> Result<i64, CatalogError> {
    match i64::try_from(limit) {
        Ok(number) if (1..=PAGE_MAX).contains(&limit) => Ok(number),
        _ => Err(CatalogError::invalid("limit", "limit must be between 1 and 1000")),
    }
}
