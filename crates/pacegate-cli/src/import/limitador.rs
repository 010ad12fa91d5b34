//! Limits files of Limitador: a list of limits, each with conditions and variables in CEL.

use std::time::Duration;

use pacegate::{
    Algorithm, Limit,
    descriptor::{Allowance, Condition, DescriptorRule, Selector},
};
use pacegate_config::reading::{AsWritten, Cursor, Part};
use serde::Deserialize;

use super::Imported;
use super::cel::{self, Operand};

/// One limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry {
    namespace: Option<AsWritten>,
    max_value: Option<u64>,
    seconds: Option<u64>,
    #[serde(default)]
    conditions: Part<Vec<AsWritten>>,
    #[serde(default)]
    variables: Part<Vec<AsWritten>>,
    name: Option<AsWritten>,
    id: Option<AsWritten>,
}

pub(super) fn read<'a>(document: &Cursor<'a>, imported: &mut Imported<'a>) {
    for item in document.items() {
        if let Some(rule) = item.read().and_then(|entry| convert(entry, &item, imported)) {
            imported.add(rule, &item);
        }
    }
    let limits = |rule: &DescriptorRule| matches!(rule.allowance, Allowance::Limit(_));
    if imported.rules.iter().any(limits) {
        let message = "Limitador's windows begin at the first request; Pacegate's begin at multiples of their length since 1970";
        imported.notes.insert(0, document.remark("", message));
    }
}

fn convert(entry: LimitEntry, item: &Cursor<'_>, imported: &mut Imported<'_>) -> Option<DescriptorRule> {
    let namespace = item.require("namespace", entry.namespace);
    let max_value = item.require("max_value", entry.max_value);
    let seconds = item.require("seconds", entry.seconds);
    let allowance = max_value.zip(seconds).and_then(|(quota, seconds)| allowance(quota, seconds, item));
    let conditions = read_all(entry.conditions.cursor(item), cel::predicate);
    let variables = read_all(entry.variables.cursor(item), cel::variable);
    if entry.name.is_some() && entry.id.is_some() {
        imported.notes.push(item.remark("id", "ignored: a limit has one name, which is `name`"));
    }
    let name = entry.name.or(entry.id).map(|name| name.0);
    let conditions: Vec<(Operand, _)> = conditions?.into_iter().flatten().collect();
    let variables = variables?;
    let mut indexes: Vec<Option<usize>> = conditions
        .iter()
        .map(|(operand, _)| operand)
        .chain(&variables)
        .map(|operand| operand.descriptor)
        .collect();
    indexes.sort_unstable();
    indexes.dedup();
    let descriptor = match indexes[..] {
        // A limit without conditions counts each request once, whatever its number of descriptors.
        [] => Some(0),
        [index] => index,
        _ => {
            let message =
                "no equivalent: all conditions and variables of a limit must use the same descriptor";
            item.reject("", message);
            return None;
        }
    };
    if descriptor.is_none() {
        let message = "has keys without `descriptors[…]` (the syntax before Limitador 2.0): they match in any one descriptor of a request";
        imported.notes.push(item.remark("", message));
    }
    let when = conditions.into_iter().map(|(operand, test)| Condition { key: operand.key, test }).collect();
    let by = variables.into_iter().map(|operand| operand.key).collect();
    Some(DescriptorRule {
        domain: Some(namespace?.0),
        name,
        ..DescriptorRule::new(Selector::Conditions { descriptor, when, by }, allowance?)
    })
}

/// Reads the expressions of a list and reports those without an equivalent.
fn read_all<T>(list: Option<Cursor<'_>>, read: fn(&str) -> Result<T, String>) -> Option<Vec<T>> {
    let read = |expression: Cursor<'_>| {
        let AsWritten(text) = expression.read()?;
        let reject = |reason| expression.reject("", format!("`{text}` has no equivalent: {reason}"));
        read(&text).map_err(reject).ok()
    };
    let expressions = list.map(|list| list.items()).unwrap_or_default();
    // Read all expressions first, so that all errors are reported.
    let found: Vec<Option<T>> = expressions.into_iter().map(read).collect();
    found.into_iter().collect()
}

fn allowance(quota: u64, seconds: u64, item: &Cursor<'_>) -> Option<Allowance> {
    // A window that is out of range is an error even if the limit denies everything.
    match Limit::try_new(Algorithm::FixedWindow, quota.max(1), Duration::from_secs(seconds)) {
        Ok(_) if quota == 0 => Some(Allowance::Nothing),
        Ok(limit) => Some(Allowance::Limit(limit)),
        Err(error) => {
            let field = if error.field() == "window" { "seconds" } else { "max_value" };
            item.reject(field, format!("no equivalent: {error}"));
            None
        }
    }
}
