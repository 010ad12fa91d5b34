//! `descriptors`: limits on the descriptors that Envoy, and other clients of its protocol, send.

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

/// A rule for descriptors: which ones are limited, and to how much.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescriptorEntry {
    /// Applies only to this domain. Defaults to all domains.
    domain: Option<Text<Literal>>,
    /// Name of the rule, which responses, logs and `replaces` refer to.
    name: Option<Text<Label>>,
    /// Keys and values that a descriptor must have in this order, as in Envoy's rate limit service.
    #[serde(default)]
    #[schemars(extend("minItems" = 1))]
    entries: Part<Vec<PathStep>>,
    /// Conditions on entries in any order, as in Limitador. Mutually exclusive with `entries`.
    #[serde(default)]
    when: Part<Vec<ConditionEntry>>,
    /// Keys of entries whose values have separate counters. Mutually exclusive with `entries`.
    by: Option<Vec<Text<Literal>>>,
    /// Index of the only descriptor of a request that the rule applies to. Mutually exclusive with
    /// `entries`.
    descriptor: Option<Between<0, 63>>,
    /// Whether matching requests are not limited.
    #[serde(default)]
    unlimited: bool,
    /// Whether matching requests are always denied.
    #[serde(default)]
    deny: bool,
    /// The algorithm. `sliding_window` is another name for `sliding_log`.
    algorithm: Option<Text<Algorithm>>,
    /// Number of hits allowed per window. `sliding_log` allows at most 1000000.
    limit: Option<Quota>,
    /// Length of the window.
    window: Option<Window>,
    /// Maximum number allowed at once, for `token_bucket`, `leaky_bucket` and `gcra`. Defaults to
    /// `limit`.
    burst: Option<Quota>,
    /// Whether the rule denies requests (`enforce`) or only counts the requests it would deny
    /// (`shadow`).
    #[serde(default)]
    mode: Word<Mode>,
    /// Name of the store that keeps the counters. Defaults to `default`.
    store: Option<String>,
    /// What happens while the store is unavailable. Defaults to `failure.mode`.
    on_store_error: Option<Word<FailureMode>>,
    /// Names of rules that do not apply where this one does.
    #[serde(default)]
    replaces: Vec<Text<Label>>,
    /// Whether a request is allowed while at least 1 is left and then charged in full. The debt is
    /// at most one capacity.
    #[serde(default)]
    overdraw: bool,
    /// Whether callers without an API key can refund hits (`is_negative_hits`).
    #[serde(default)]
    refundable: bool,
}

/// An entry of a path.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PathStep {
    /// Key of the entry.
    key: Text<Literal>,
    /// Value of the entry, in which `*` matches any characters. Defaults to any value, each with
    /// its own counter.
    value: Option<Text<Literal>>,
}

/// A condition on an entry: exactly one of `is`, `is_not` and `starts_with`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConditionEntry {
    /// Key of the entry.
    key: Text<Literal>,
    /// The value that the entry must have.
    is: Option<Text<LiteralOrEmpty>>,
    /// The value that the entry must not have.
    is_not: Option<Text<LiteralOrEmpty>>,
    /// The prefix that the value of the entry must have.
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
                cursor.reject("", "expected exactly one of `is`, `is_not` and `starts_with`");
            }
            return None;
        };
        Some(Condition { key: self.key.0, test })
    }
}

impl DescriptorEntry {
    fn rule(self, stores: &[StoreConfig], cursor: &Cursor<'_>) -> Option<DescriptorRule> {
        check_store(self.store.as_deref(), stores, cursor);
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
                cursor.reject(name, format!("`entries` and `{name}` are mutually exclusive"));
            }
            let items = entries.items();
            let max = DescriptorRule::ENTRIES_MAX;
            if entries.is_wrong("") {
                return None;
            }
            if !(1..=max).contains(&items.len()) {
                entries.reject("", format!("expected 1 to {max} entries, got {}", items.len()));
                return None;
            }
            let step = |step: PathStep| PathEntry { key: step.key.0, value: step.value.map(|value| value.0) };
            // Every entry is read before one fails, so that all errors are reported.
            let steps: Vec<Option<_>> = items.iter().map(|item| item.read().map(step)).collect();
            return steps.into_iter().collect::<Option<_>>().map(Selector::Path);
        }
        let is_missing = is_set[..2].iter().all(|(name, is_set)| !is_set && !cursor.is_wrong(name));
        if is_missing && !cursor.is_wrong("entries") {
            let hint = "use `when` or `by` for entries in any order";
            cursor.reject("entries", format!("required field is missing; {hint}"));
            return None;
        }
        let when = when.map(|when| when.items()).unwrap_or_default();
        let when = when.iter().map(|item| item.read::<ConditionEntry>()?.condition(item));
        Some(Selector::Conditions {
            // Every condition is read before one fails, so that all errors are reported.
            when: when.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?,
            descriptor: self.descriptor.and_then(|index| usize::try_from(index.0).ok()),
            by: self.by.iter().flatten().map(|key| key.0.clone()).collect(),
        })
    }

    pub(crate) fn read_all(descriptors: Option<Cursor<'_>>, stores: &[StoreConfig]) -> Vec<DescriptorRule> {
        let mut found: Vec<(DescriptorRule, Cursor<'_>)> = Vec::new();
        let mut unread_names: Vec<String> = Vec::new();
        for item in descriptors.map(|cursor| cursor.rejecting_null().items()).unwrap_or_default() {
            let errors = item.error_count();
            let rule = item.read::<Self>().and_then(|entry| entry.rule(stores, &item));
            if let Some(rule) = &rule {
                validate(rule.clone(), &item);
            }
            match rule {
                Some(rule) if item.error_count() == errors => found.push((rule, item)),
                // A rule with errors is not compared with others, but its name is known.
                _ => unread_names.extend(item.text("name").map(|name| format!("`{name}`"))),
            }
        }
        for conflict in DescriptorRule::conflicts(found.iter().map(|(rule, _)| rule)) {
            let (_, cursor) = &found[conflict.index];
            match conflict.earlier {
                Some(earlier) => {
                    let earlier = found[earlier].1.path();
                    cursor.reject(conflict.field, format!("selects the same as {earlier}"));
                }
                None if unread_names.iter().any(|name| conflict.message.contains(name)) => {}
                None => cursor.reject(conflict.field, conflict.message),
            }
        }
        found.into_iter().map(|(rule, _)| rule).collect()
    }
}

/// Reports every invalid field of `rule`. Validation stops at the first, which is therefore reset
/// before the next attempt.
fn validate(mut rule: DescriptorRule, cursor: &Cursor<'_>) {
    while let Err(error) = rule.validate() {
        cursor.reject(error.field(), error.reason());
        match error.field() {
            "replaces" => rule.replaces.clear(),
            "overdraw" => rule.overdraw = false,
            "refundable" => rule.refundable = false,
            _ => return,
        }
    }
}

/// Returns what the rule allows: nothing, everything or a limit.
fn allowance(unlimited: bool, deny: bool, entry: LimitEntry, cursor: &Cursor<'_>) -> Option<Allowance> {
    let (word, allowance) = match (unlimited, deny) {
        (false, false) => return entry.limit(cursor).map(Allowance::Limit),
        (true, false) => ("unlimited", Allowance::Unlimited),
        (false, true) => ("deny", Allowance::Nothing),
        (true, true) => {
            cursor.reject("deny", "`unlimited` and `deny` are mutually exclusive");
            ("unlimited", Allowance::Unlimited)
        }
    };
    for name in ["algorithm", "limit", "window", "burst"] {
        if cursor.get(name).is_some() {
            cursor.reject(name, format!("`{word}` and `{name}` are mutually exclusive"));
        }
    }
    Some(allowance)
}
