//! `descriptors`: limits on what Envoy, and other clients of its protocol, send.

use pacegate::{
    Algorithm, FailureMode, Mode,
    descriptor::{Allowance, Condition, DescriptorRule, PathEntry, Selector, ValueTest},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::StoreConfig;
use crate::cursor::Cursor;
use crate::part::Part;
use crate::rule::{LimitEntry, Quota, Window, check_store};
use crate::value::{Between, Label, Literal, LiteralOrEmpty, Text, Word};

/// A limit on descriptors.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescriptorEntry {
    /// Only in this domain.
    domain: Option<Text<Literal>>,
    /// Its name.
    name: Option<Text<Label>>,
    /// A path of keys and values, as in Envoy's rate limit service.
    #[serde(default)]
    #[schemars(extend("minItems" = 1))]
    entries: Part<Vec<PathStep>>,
    /// Conditions on entries in any order, as in Limitador.
    #[serde(default)]
    when: Part<Vec<ConditionEntry>>,
    /// The keys of entries whose values are counted apart.
    by: Option<Vec<Text<Literal>>>,
    /// The index of the only descriptor that is looked at.
    descriptor: Option<Between<0, 63>>,
    /// Whether it never denies.
    #[serde(default)]
    unlimited: bool,
    /// Whether it always denies.
    #[serde(default)]
    deny: bool,
    /// How it counts; sliding_window is another name for sliding_log.
    algorithm: Option<Text<Algorithm>>,
    /// How many per window.
    limit: Option<Quota>,
    /// The window, from 1ms to 366d.
    window: Option<Window>,
    /// How many at once, for token_bucket, leaky_bucket and gcra; as many as the limit unless it is
    /// set.
    burst: Option<Quota>,
    /// Whether it denies requests, or only counts those that it would deny.
    #[serde(default)]
    mode: Word<Mode>,
    /// The store of its counters; default unless it is set.
    store: Option<String>,
    /// What happens while its store fails; failure.mode unless it is set.
    on_store_error: Option<Word<FailureMode>>,
    /// The names of limits that it replaces.
    #[serde(default)]
    replaces: Vec<Text<Label>>,
    /// Whether a request passes while at least 1 is left and is charged in full, into a debt of up
    /// to one capacity.
    #[serde(default)]
    overdraw: bool,
    /// Whether callers without an API key may refund hits (is_negative_hits).
    #[serde(default)]
    refundable: bool,
}

/// An entry of a path.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PathStep {
    /// Its key.
    key: Text<Literal>,
    /// Its value; any value unless it is set, and * matches any characters.
    value: Option<Text<Literal>>,
}

/// A condition on an entry: one of is, is_not and starts_with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConditionEntry {
    /// The entry's key.
    key: Text<Literal>,
    /// The value it must have.
    is: Option<Text<LiteralOrEmpty>>,
    /// The value it must not have.
    is_not: Option<Text<LiteralOrEmpty>>,
    /// What its value must start with.
    starts_with: Option<Text<LiteralOrEmpty>>,
}

impl ConditionEntry {
    fn condition(self, cursor: &Cursor<'_>) -> Option<Condition> {
        let tests = [
            self.is.map(|text| ValueTest::Is(text.0)),
            self.is_not.map(|text| ValueTest::IsNot(text.0)),
            self.starts_with.map(|text| ValueTest::StartsWith(text.0)),
        ];
        let mut tests = tests.into_iter().flatten();
        let (Some(test), None) = (tests.next(), tests.next()) else {
            if !["is", "is_not", "starts_with"].iter().any(|name| cursor.is_wrong(name)) {
                cursor.refuse("", "expected exactly one of is, is_not and starts_with");
            }
            return None;
        };
        Some(Condition { key: self.key.0, test })
    }
}

impl DescriptorEntry {
    fn rule(self, cursor: &Cursor<'_>) -> Option<DescriptorRule> {
        let selects = self.selector(cursor);
        let Self { algorithm, limit, window, burst, .. } = self;
        let limit = LimitEntry { algorithm, limit, window, burst };
        let allowance = allowance(self.unlimited, self.deny, limit, cursor);
        Some(DescriptorRule {
            domain: self.domain.map(|domain| domain.0),
            name: self.name.map(|name| name.0),
            selects: selects?,
            allowance: allowance?,
            mode: self.mode.0,
            store: self.store,
            on_store_error: self.on_store_error.map(|mode| mode.0),
            replaces: self.replaces.into_iter().map(|name| name.0).collect(),
            overdraw: self.overdraw,
            refundable: self.refundable,
        })
    }

    fn selector(&self, cursor: &Cursor<'_>) -> Option<Selector> {
        let (entries, when) = (self.entries.cursor(cursor), self.when.cursor(cursor));
        let is_set =
            [("when", when.is_some()), ("by", self.by.is_some()), ("descriptor", self.descriptor.is_some())];
        if let Some(entries) = entries {
            for (name, _) in is_set.iter().filter(|(_, is_set)| *is_set) {
                cursor.refuse(name, "cannot be combined with entries");
            }
            let items = entries.items();
            let max = DescriptorRule::ENTRIES_MAX;
            if entries.is_wrong("") {
                return None;
            }
            if !(1..=max).contains(&items.len()) {
                entries.refuse("", format!("expected 1 to {max} entries, got {}", items.len()));
                return None;
            }
            let step = |step: PathStep| PathEntry { key: step.key.0, value: step.value.map(|value| value.0) };
            let steps: Option<Vec<_>> = items.iter().map(|item| item.read().map(step)).collect();
            return steps.map(Selector::Path);
        }
        let is_missing = is_set[..2].iter().all(|(name, is_set)| !is_set && !cursor.is_wrong(name));
        if is_missing && !cursor.is_wrong("entries") {
            cursor.refuse("entries", "is missing; expected it, or `when` or `by` for entries in any order");
            return None;
        }
        let when = when.map(|when| when.items()).unwrap_or_default();
        let when = when.iter().map(|item| item.read::<ConditionEntry>()?.condition(item));
        Some(Selector::Conditions {
            // Every condition is read before any gives up, so that all errors are reported.
            when: when.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?,
            descriptor: self.descriptor.and_then(|index| usize::try_from(index.0).ok()),
            by: self.by.iter().flatten().map(|key| key.0.clone()).collect(),
        })
    }

    pub(crate) fn read_all(descriptors: Option<Cursor<'_>>, stores: &[StoreConfig]) -> Vec<DescriptorRule> {
        let mut found: Vec<(DescriptorRule, Cursor<'_>)> = Vec::new();
        for item in descriptors.map(|cursor| cursor.rejecting_null().items()).unwrap_or_default() {
            let errors = item.error_count();
            if let Some(rule) = item.read::<Self>().and_then(|entry| entry.rule(&item)) {
                check_store(rule.store.as_deref(), stores, &item);
                if let Err(error) = rule.validate() {
                    item.refuse(error.field(), error.reason());
                }
                // A rule with errors may look like another one.
                if item.error_count() == errors {
                    found.push((rule, item));
                }
            }
        }
        for conflict in DescriptorRule::conflicts(found.iter().map(|(rule, _)| rule)) {
            let (_, cursor) = &found[conflict.index];
            match conflict.earlier {
                Some(earlier) => {
                    let earlier = found[earlier].1.path();
                    cursor.refuse(conflict.field, format!("selects the same as {earlier}"));
                }
                // A rule that could not be read may be the one that is missing.
                None if cursor.is_valid() => cursor.refuse(conflict.field, conflict.message),
                None => {}
            }
        }
        found.into_iter().map(|(rule, _)| rule).collect()
    }
}

/// `unlimited`, `deny`, or the numbers of a limit.
fn allowance(unlimited: bool, deny: bool, entry: LimitEntry, cursor: &Cursor<'_>) -> Option<Allowance> {
    let (word, allowance) = match (unlimited, deny) {
        (false, false) => return entry.limit(cursor).map(Allowance::Limit),
        (true, false) => ("unlimited", Allowance::Unlimited),
        (false, true) => ("deny", Allowance::Nothing),
        (true, true) => {
            cursor.refuse("deny", "cannot be combined with unlimited");
            return None;
        }
    };
    for name in ["algorithm", "limit", "window", "burst"] {
        if cursor.get(name).is_some() {
            cursor.refuse(name, format!("cannot be combined with {word}"));
        }
    }
    Some(allowance)
}
