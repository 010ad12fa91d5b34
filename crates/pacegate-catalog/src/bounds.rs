//! Validation of the values that the catalog stores.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use pacegate::identity;
use pacegate::{Algorithm, Limit, LimitOverride, Rule};

use crate::error::CatalogError;

/// Maximum length of the reason for an override, in bytes.
pub const REASON_LENGTH_MAX: usize = 1_024;
/// Maximum number of records on a page.
pub const PAGE_MAX: usize = 1_000;
/// Maximum number of custom limits of a user.
pub const CUSTOM_LIMITS_MAX: usize = 100;

pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), CatalogError> {
    identity::check_name(name).map_err(|invalid| invalid.named(field).into())
}

pub(crate) fn check_user_id(user_id: &str) -> Result<(), CatalogError> {
    identity::check_identifier(user_id).map_err(|invalid| invalid.named("user_id").into())
}

pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), CatalogError> {
    let kept = reason.is_none_or(|reason| reason.len() <= REASON_LENGTH_MAX && !reason.contains('\0'));
    // PostgreSQL cannot store NUL in text.
    let expected = "must be at most 1024 bytes long and must not contain NUL";
    if kept { Ok(()) } else { Err(CatalogError::invalid("reason", expected)) }
}

/// Returns the rule in its canonical form. Addresses keep all their bits: the limiter applies the
/// prefix length.
pub(crate) fn check_rule(rule: &Rule) -> Result<Cow<'_, Rule>, CatalogError> {
    let rule = rule.canonical(128)?;
    if rule.endpoint.as_str().len() > pacegate::path::ENDPOINT_LENGTH_MAX {
        return Err(CatalogError::invalid("endpoint_pattern", "must be at most 2048 bytes long"));
    }
    if let Some(store) = &rule.store {
        identity::check_store(store)?;
    }
    Ok(rule)
}

/// Checks the values for any algorithm that they may be used with.
pub(crate) fn check_numbers(numbers: &LimitOverride) -> Result<(), CatalogError> {
    let window = numbers.window.unwrap_or(Duration::from_secs(1));
    let limit = Limit::try_new(Algorithm::TokenBucket, numbers.quota, window);
    let checked = limit.and_then(|limit| numbers.burst.map_or(Ok(limit), |burst| limit.with_burst(burst)));
    checked.map(drop).map_err(|error| CatalogError::invalid(error.field(), error.reason()))
}

pub(crate) fn check_custom_limits(limits: &[(String, LimitOverride)]) -> Result<(), CatalogError> {
    let mut names = HashSet::new();
    for (rule, numbers) in limits {
        check_name("custom_limits", rule)?;
        check_numbers(numbers)?;
        if !names.insert(rule) {
            return Err(CatalogError::invalid("custom_limits", format!("duplicate rule `{rule}`")));
        }
    }
    if limits.len() > CUSTOM_LIMITS_MAX {
        return Err(CatalogError::invalid("custom_limits", "must have at most 100 entries"));
    }
    Ok(())
}

/// Whether the text can be an id of the catalog. Other texts are not queried, because PostgreSQL
/// rejects NUL and MySQL ignores trailing spaces.
pub(crate) fn is_id(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(digit)
}

/// Checks the number of records on a page.
pub(crate) fn check_page(limit: usize) -> Result<i64, CatalogError> {
    match i64::try_from(limit) {
        Ok(number) if (1..=PAGE_MAX).contains(&limit) => Ok(number),
        _ => Err(CatalogError::invalid("limit", "must be between 1 and 1000")),
    }
}
