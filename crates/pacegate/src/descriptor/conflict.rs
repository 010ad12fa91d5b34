//! Conflicts between rules that are valid on their own.

use std::collections::{HashMap, HashSet};

use super::{Allowance, DescriptorRule, Selector};

/// A rule that conflicts with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The index of the rule.
    pub index: usize,
    /// The field.
    pub field: &'static str,
    /// The index of the earlier rule that it conflicts with.
    pub earlier: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl DescriptorRule {
    /// Returns every conflict between rules: two rules with the same selector, a rule that replaces
    /// an unknown rule, or two rules that replace each other.
    ///
    /// ```
    /// use pacegate::{Limit, descriptor::{DescriptorRule, PathEntry}};
    ///
    /// let rule = DescriptorRule::path([PathEntry::any("remote_address")], Limit::per_second(10).build()?);
    /// let found = DescriptorRule::conflicts([&rule, &rule]);
    /// assert_eq!((found[0].index, found[0].earlier), (1, Some(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conflicts<'a>(rules: impl IntoIterator<Item = &'a Self>) -> Vec<Conflict> {
        let rules: Vec<&Self> = rules.into_iter().collect();
        let names: HashSet<&str> = rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
        let mut found = Vec::new();
        let mut seen = HashMap::new();
        for (index, rule) in rules.iter().enumerate() {
            let (field, counts) = match (&rule.selects, &rule.allowance) {
                (Selector::Path(_), _) => ("entries", None),
                // All matching conditional rules are charged, so the same conditions with different
                // windows are separate limits.
                (Selector::Conditions { .. }, Allowance::Limit(limit)) => {
                    ("when", Some((&rule.name, limit.algorithm(), limit.window())))
                }
                (Selector::Conditions { .. }, _) => ("when", None),
            };
            let selects = (&rule.domain, rule.selects.canonical(), counts);
            // All later duplicates are reported against the first one.
            let earlier = *seen.entry(selects).or_insert(index);
            if earlier < index {
                let message = "selects the same descriptors as another rule".to_owned();
                found.push(Conflict { index, field, earlier: Some(earlier), message });
            }
            for name in &rule.replaces {
                let message = if !names.contains(name.as_str()) {
                    format!("unknown rule `{name}`")
                } else if rule.name.as_ref().is_some_and(|own| replaces(&rules, name, own)) {
                    format!("`{name}` replaces this rule in turn, so neither would apply")
                } else {
                    continue;
                };
                found.push(Conflict { index, field: "replaces", earlier: None, message });
            }
        }
        found
    }
}

/// Whether a rule named `name` replaces one named `other`, directly or through rules that it
/// replaces.
fn replaces(rules: &[&DescriptorRule], name: &str, other: &str) -> bool {
    let mut reached = vec![name];
    let mut next = 0;
    while let Some(name) = reached.get(next).copied() {
        for rule in rules.iter().filter(|rule| rule.name.as_deref() == Some(name)) {
            for replaced in &rule.replaces {
                if replaced == other {
                    return true;
                }
                if !reached.contains(&replaced.as_str()) {
                    reached.push(replaced);
                }
            }
        }
        next += 1;
    }
    false
}
