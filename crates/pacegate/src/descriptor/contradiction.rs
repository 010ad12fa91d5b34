//! Rules that are valid one by one and cannot be in force together.

use std::collections::{HashMap, HashSet};

use super::{Allowance, DescriptorRule, Selector};

/// A rule that contradicts others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contradiction {
    /// Its place among the rules.
    pub place: usize,
    /// The field.
    pub field: &'static str,
    /// The place of the rule before it that it contradicts.
    pub earlier: Option<usize>,
    /// What is wrong with it.
    pub message: String,
}

impl DescriptorRule {
    /// Every contradiction between rules: two that select the same, or one that replaces what there is not or what replaces it.
    ///
    /// ```
    /// use pacegate::{Limit, descriptor::{DescriptorRule, PathEntry}};
    ///
    /// let rule = DescriptorRule::path([PathEntry::any("remote_address")], Limit::per_second(10).build()?);
    /// let found = DescriptorRule::contradictions([&rule, &rule]);
    /// assert_eq!((found[0].place, found[0].earlier), (1, Some(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contradictions<'a>(rules: impl IntoIterator<Item = &'a Self>) -> Vec<Contradiction> {
        let rules: Vec<&Self> = rules.into_iter().collect();
        let names: HashSet<&str> = rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
        let mut found = Vec::new();
        let mut seen = HashMap::new();
        for (place, rule) in rules.iter().enumerate() {
            let (field, counts) = match (&rule.selects, &rule.allowance) {
                (Selector::Path(_), _) => ("entries", None),
                // Conditions add up, so the same ones with several windows are several limits.
                (Selector::Conditions { .. }, Allowance::Limit(limit)) => {
                    ("when", Some((&rule.name, limit.algorithm(), limit.window())))
                }
                (Selector::Conditions { .. }, _) => ("when", None),
            };
            let selects = (&rule.domain, rule.selects.canonical(), counts);
            // The first of several is the one that each of the others is compared with.
            let earlier = *seen.entry(selects).or_insert(place);
            if earlier < place {
                let message = "selects the same descriptors as another rule".to_owned();
                found.push(Contradiction { place, field, earlier: Some(earlier), message });
            }
            for name in &rule.replaces {
                let message = if !names.contains(name.as_str()) {
                    format!("unknown rule `{name}`")
                } else if rule.name.as_ref().is_some_and(|own| replaces(&rules, name, own)) {
                    format!("`{name}` replaces this rule in turn, so neither would apply")
                } else {
                    continue;
                };
                found.push(Contradiction { place, field: "replaces", earlier: None, message });
            }
        }
        found
    }
}

/// Whether a rule called `name` replaces one called `other`, itself or through those it replaces.
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
