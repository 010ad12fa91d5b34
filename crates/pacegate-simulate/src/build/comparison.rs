//! Compares two sets of rules.

use std::collections::HashMap;

use pacegate::{Mode, Rule};

use super::customers::People;
use super::describe_limit;
use crate::options::RuleFile;
use crate::report::{ComparisonReport, DimensionComparison, RuleChange};

const SHOWN: usize = 20;

/// Compares `b` with `a`: their rules, and the customers they block.
pub(super) fn compare(a: &RuleFile, b: &RuleFile, people: &People<'_>) -> ComparisonReport {
    let mut customers: Vec<DimensionComparison> = people
        .dimensions()
        .iter()
        .map(|dimension| DimensionComparison {
            dimension: (*dimension).to_owned(),
            only_a: 0,
            only_b: 0,
            both: 0,
        })
        .collect();
    for customer in people.all() {
        let dimension = &mut customers[usize::from(customer.dimension)];
        match (customer.hurt(0).is_some(), customer.hurt(1).is_some()) {
            (true, false) => dimension.only_a += 1,
            (false, true) => dimension.only_b += 1,
            (true, true) => dimension.both += 1,
            (false, false) => {}
        }
    }
    ComparisonReport {
        rules: changes(a, b, people),
        customers,
        only_a: people.listed(0, SHOWN, |customer| customer.hurt(1).is_none()),
        only_b: people.listed(1, SHOWN, |customer| customer.hurt(0).is_none()),
    }
}

/// Returns the rules that differ, and the default limit if it differs.
fn changes(a: &RuleFile, b: &RuleFile, people: &People<'_>) -> Vec<RuleChange> {
    let mut changes = Vec::new();
    let variants = |rules: &[Rule]| rules.iter().map(|rule| (rule.variant_key(), describe(rule))).collect();
    let (in_a, in_b): (HashMap<_, _>, HashMap<_, _>) = (variants(&a.config.rules), variants(&b.config.rules));
    for rule in &a.config.rules {
        let (before, after) = (describe(rule), in_b.get(&rule.variant_key()).cloned());
        if after.as_ref() != Some(&before) {
            changes.push(RuleChange { rule: label(rule, people), a: Some(before), b: after });
        }
    }
    for rule in b.config.rules.iter().filter(|rule| !in_a.contains_key(&rule.variant_key())) {
        changes.push(RuleChange { rule: label(rule, people), a: None, b: Some(describe(rule)) });
    }
    if a.config.default_limit != b.config.default_limit {
        let limit = |file: &RuleFile| file.config.default_limit.as_ref().map(describe_limit);
        changes.push(RuleChange { rule: "default".to_owned(), a: limit(a), b: limit(b) });
    }
    changes
}

fn describe(rule: &Rule) -> String {
    let mode = if rule.mode == Mode::Shadow { ", shadow" } else { "" };
    let scope = if rule.scope == pacegate::Scope::Endpoint { ", per endpoint" } else { "" };
    let limit = if rule.unlimited { "unlimited".to_owned() } else { describe_limit(&rule.limit) };
    let unit = rule.unit.as_ref().map(|unit| format!(", {unit}")).unwrap_or_default();
    let cost = rule.cost.map(|cost| format!(", each costs {}", cost.get())).unwrap_or_default();
    let overdraw = if rule.overdraw { ", overdraw" } else { "" };
    format!("{limit}{unit}{cost}{overdraw}{mode}{scope}")
}

/// Returns the name of a rule, and what distinguishes it from other rules of that name.
fn label(rule: &Rule, people: &People<'_>) -> String {
    let mut label = rule.name.clone();
    let identifier = rule.identifier.as_ref().map(|identifier| people.shown(&rule.dimension, identifier));
    let methods = rule.methods.as_text();
    let parts = [("identifier", identifier.as_deref()), ("tier", rule.tier.as_deref()), ("method", methods)];
    for (what, value) in parts {
        if let Some(value) = value {
            label.push_str(&format!(" [{what} {value}]"));
        }
    }
    if rule.endpoint.as_str() != "*" {
        label.push_str(&format!(" [{}]", rule.endpoint.as_str()));
    }
    label
}
