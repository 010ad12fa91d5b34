//! The compiled descriptor rules. Immutable; replaced together with all other rules.

use std::sync::Arc;

use pacegate_core::{Counter, Limit, Origin};
use pacegate_store::FailureMode;
use smallvec::SmallVec;

use super::conditions::Conditions;
use super::tree::Tree;
use super::{Allowance, DescriptorRule, Selector};
use crate::error::InvalidRules;
use crate::rule::{LimitSource, Mode, NamedLimit, distinction};
use crate::ruleset::Map;
use crate::stores::Stores;

/// The dimension of all descriptor counters. The identifier contains the values.
const DIMENSION: &str = "descriptor";
/// The name of all path counters: they belong to the path, not to the rule.
const PATHS: &str = "descriptors";

/// Descriptor rules, compiled for lookups.
#[derive(Debug, Default)]
pub(crate) struct DescriptorSet {
    rules: Vec<CompiledDescriptor>,
    domains: Map<Box<str>, Domain>,
    /// Rules without a domain.
    any: Domain,
}

#[derive(Debug, Default)]
struct Domain {
    paths: Tree,
    conditions: Conditions,
}

/// A descriptor rule with its counter.
#[derive(Debug)]
pub(super) struct CompiledDescriptor {
    /// The name by which other rules replace it.
    pub(super) own_name: Option<String>,
    pub(super) display_name: Box<str>,
    pub(super) allows: Allows,
    pub(super) mode: Mode,
    pub(super) replaces: Vec<String>,
    /// Whether a request is allowed while at least 1 remains and charged in full.
    pub(super) overdraw: bool,
    /// Whether every caller may refund hits.
    pub(super) refundable: bool,
}

#[derive(Debug)]
pub(super) enum Allows {
    Limit(Arc<NamedLimit>),
    Everything,
    Nothing,
}

/// A rule that applies to a descriptor, and the identifier it counts.
#[derive(Debug)]
pub(super) struct Match<'a> {
    pub(super) rule: &'a CompiledDescriptor,
    pub(super) identifier: String,
}

impl DescriptorSet {
    pub(crate) fn compile(
        rules: &[DescriptorRule],
        on_store_error: FailureMode,
        stores: &Stores,
    ) -> Result<Self, InvalidRules> {
        for (index, rule) in rules.iter().enumerate() {
            rule.validate().map_err(|error| InvalidRules::InvalidDescriptor {
                index,
                field: error.field(),
                reason: error.reason().to_owned(),
            })?;
        }
        if let Some(found) = DescriptorRule::conflicts(rules).into_iter().next() {
            let (index, field, reason) = (found.index, found.field, found.message);
            return Err(InvalidRules::InvalidDescriptor { index, field, reason });
        }
        let mut set = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            let domain = match &rule.domain {
                None => &mut set.any,
                Some(domain) => set.domains.entry(domain.as_str().into()).or_default(),
            };
            match &rule.selects {
                Selector::Path(entries) => domain.paths.insert(entries, index),
                Selector::Conditions { descriptor, when, by } => {
                    domain.conditions.insert(*descriptor, when, &sorted(by), index);
                }
            }
            set.rules.push(CompiledDescriptor::new(rule, on_store_error, stores)?);
        }
        Ok(set)
    }

    /// Returns every rule that applies to the descriptor at `index` of a request: one for its path,
    /// and all whose conditions hold. Paths of the domain take precedence over paths for any
    /// domain. With `path_given`, rules for paths are ignored.
    pub(super) fn find<'a>(
        &'a self,
        domain: &str,
        index: usize,
        entries: &[(&str, &str)],
        path_given: bool,
    ) -> SmallVec<[Match<'a>; 1]> {
        let own = self.domains.get(domain);
        let mut found = SmallVec::new();
        if !path_given {
            let rule = self.of_path(domain, entries);
            let of_path =
                |rule: usize| Match { rule: &self.rules[rule], identifier: path_identifier(domain, entries) };
            found.extend(rule.map(of_path));
        }
        for rules in own.into_iter().chain([&self.any]) {
            rules.conditions.for_each(index, entries, |rule, values| {
                let identifier = identifier([domain].into_iter().chain(values));
                found.push(Match { rule: &self.rules[rule], identifier });
            });
        }
        found
    }

    fn of_path(&self, domain: &str, entries: &[(&str, &str)]) -> Option<usize> {
        let own = self.domains.get(domain).and_then(|own| own.paths.find(entries));
        own.or_else(|| self.any.paths.find(entries))
    }

    /// Returns an ad-hoc limit of a request for the path of a descriptor. It shares the counter of
    /// a rule for that path.
    pub(super) fn ad_hoc_limit(
        &self,
        limit: Limit,
        domain: &str,
        entries: &[(&str, &str)],
        on_store_error: FailureMode,
    ) -> Arc<NamedLimit> {
        let has_rule = self.of_path(domain, entries).is_some();
        let origin = if has_rule { Origin::Configured } else { Origin::AdHoc };
        Arc::new(NamedLimit {
            name: "ad-hoc".into(),
            limit,
            mode: Mode::Enforce,
            why: LimitSource::AdHoc,
            unit: None,
            cost: None,
            overdraw: false,
            counter: path_counter(&limit, entries.iter().map(|(key, _)| *key)).with_origin(origin),
            store: 0,
            on_store_error,
            policy: None,
        })
    }
}

impl CompiledDescriptor {
    fn new(rule: &DescriptorRule, otherwise: FailureMode, stores: &Stores) -> Result<Self, InvalidRules> {
        let display_name = rule.display_name();
        let store = match &rule.store {
            None => 0,
            Some(store) => stores.index(store).ok_or_else(|| InvalidRules::UnknownStore {
                rule: display_name.clone(),
                store: store.clone(),
            })?,
        };
        let allows = match &rule.allowance {
            Allowance::Unlimited => Allows::Everything,
            Allowance::Nothing => Allows::Nothing,
            Allowance::Limit(limit) => {
                let counter = match &rule.selects {
                    Selector::Path(entries) => {
                        path_counter(limit, entries.iter().map(|entry| entry.key.as_str()))
                    }
                    Selector::Conditions { .. } => {
                        let domain = rule.domain.as_deref().map_or_else(String::new, part);
                        let scope =
                            format!("when:{}:{domain}|{}", distinction(limit), rule.selects.canonical());
                        Counter::new(&display_name, DIMENSION, &scope)
                    }
                };
                Allows::Limit(Arc::new(NamedLimit {
                    name: display_name.as_str().into(),
                    limit: *limit,
                    mode: rule.mode,
                    why: LimitSource::Descriptor,
                    unit: None,
                    cost: None,
                    overdraw: rule.overdraw,
                    counter,
                    store,
                    on_store_error: rule.on_store_error.unwrap_or(otherwise),
                    policy: None,
                }))
            }
        };
        Ok(Self {
            own_name: rule.name.clone(),
            display_name: display_name.into(),
            allows,
            mode: rule.mode,
            replaces: rule.replaces.clone(),
            overdraw: rule.overdraw,
            refundable: rule.refundable,
        })
    }
}

impl Selector {
    /// Returns a text that is equal only for selectors that select the same descriptors.
    pub(super) fn canonical(&self) -> String {
        match self {
            Self::Path(entries) => {
                let step = |entry: &super::PathEntry| {
                    part(&entry.key) + &entry.value.as_deref().map_or_else(|| "-".to_owned(), part)
                };
                entries.iter().map(step).collect()
            }
            Self::Conditions { descriptor, when, by } => {
                let index = descriptor.map_or_else(|| "-".to_owned(), |index| index.to_string());
                let condition = |super::Condition { key, test }: &super::Condition| {
                    format!("{}{}{}", part(key), test.sign(), part(test.text()))
                };
                let when: String = sorted(&when.iter().map(condition).collect::<Vec<_>>()).concat();
                let by: String = sorted(by).iter().map(|key| part(key)).collect();
                format!("{index}|{when}|{by}")
            }
        }
    }
}

/// Returns the identifier of a path: its actual values, whichever rule limits it.
pub(super) fn path_identifier(domain: &str, entries: &[(&str, &str)]) -> String {
    identifier([domain].into_iter().chain(entries.iter().flat_map(|(key, value)| [*key, *value])))
}

/// One counter per list of keys, so a flood of values for one cannot fill the overflow counter of
/// another.
fn path_counter<'a>(limit: &Limit, keys: impl Iterator<Item = &'a str>) -> Counter {
    let keys: String = keys.map(part).collect();
    Counter::new(PATHS, DIMENSION, &format!("path:{}:{keys}", distinction(limit)))
}

/// Joins texts of any length and characters unambiguously.
fn identifier<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    // Enough for most descriptors.
    let mut texts = String::with_capacity(96);
    parts.for_each(|text| push_part(&mut texts, text));
    texts
}

fn part(text: &str) -> String {
    let mut part = String::with_capacity(text.len() + 8);
    push_part(&mut part, text);
    part
}

fn push_part(texts: &mut String, text: &str) {
    texts.push_str(itoa::Buffer::new().format(text.len()));
    texts.push(':');
    texts.push_str(text);
    texts.push(';');
}

fn sorted(texts: &[String]) -> Vec<String> {
    let mut texts = texts.to_vec();
    texts.sort_unstable();
    texts
}
