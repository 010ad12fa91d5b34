//! Rules with conditions, indexed by one required value each, so that most are never evaluated.

use super::{Condition, ValueTest};
use crate::ruleset::Map;

/// The conditional rules of one domain.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    rules: Vec<Conditional>,
    /// The rules by the first key and value that they require.
    by_value: Map<Box<str>, Map<Box<str>, Vec<usize>>>,
    /// The rules that require no exact value.
    others: Vec<usize>,
}

#[derive(Debug)]
struct Conditional {
    descriptor: Option<usize>,
    when: Vec<Condition>,
    by: Vec<String>,
    /// The index among all rules.
    rule: usize,
}

impl Conditions {
    pub(super) fn insert(
        &mut self,
        descriptor: Option<usize>,
        when: &[Condition],
        by: &[String],
        rule: usize,
    ) {
        let required = when.iter().find_map(|condition| match &condition.test {
            ValueTest::Is(value) => Some((condition.key.as_str(), value.as_str())),
            _ => None,
        });
        let list = match required {
            Some((key, value)) => {
                self.by_value.entry(key.into()).or_default().entry(value.into()).or_default()
            }
            None => &mut self.others,
        };
        list.push(self.rules.len());
        self.rules.push(Conditional { descriptor, when: when.to_vec(), by: by.to_vec(), rule });
    }

    /// Calls `found` with each rule that applies to the descriptor at `index`, and the values that
    /// it counts, in the order of the rules.
    pub(super) fn for_each<'a>(
        &self,
        index: usize,
        entries: &[(&str, &'a str)],
        mut found: impl FnMut(usize, Vec<&'a str>),
    ) {
        let required = |(key, value): &(&str, &str)| self.by_value.get(*key)?.get(*value);
        let mut candidates: Vec<usize> = entries.iter().filter_map(required).flatten().copied().collect();
        candidates.extend(&self.others);
        candidates.sort_unstable();
        candidates.dedup();
        // Of duplicate keys, the last value counts.
        let value_of =
            |key: &str| entries.iter().rev().find(|(other, _)| *other == key).map(|(_, value)| *value);
        for rule in candidates.into_iter().map(|candidate| &self.rules[candidate]) {
            let here = rule.descriptor.is_none_or(|wanted| wanted == index);
            let holds = |condition: &Condition| {
                value_of(&condition.key).is_some_and(|value| condition.test.holds(value))
            };
            if here
                && rule.when.iter().all(holds)
                && let Some(values) = rule.by.iter().map(|key| value_of(key)).collect()
            {
                found(rule.rule, values);
            }
        }
    }
}
