//! Files of Envoy's rate limit service: a domain, and descriptors nested by key and value.

use std::collections::HashMap;
use std::time::Duration;

use pacegate::{
    Algorithm, Limit, Mode,
    descriptor::{Allowance, DescriptorRule, PathEntry, Selector},
};
use pacegate_config::reading::{AsWritten, Cursor, Part};
use serde::Deserialize;

use super::Imported;

const DAY: u64 = 86_400;
/// Units and their lengths in seconds. Envoy's month has 30 days and its year 365.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    domain: Option<AsWritten>,
    #[serde(default)]
    descriptors: Part<Vec<Node>>,
}

/// A descriptor with its nested descriptors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    key: Option<AsWritten>,
    value: Option<AsWritten>,
    #[serde(default)]
    shadow_mode: bool,
    #[serde(default)]
    rate_limit: Part<RateLimit>,
    #[serde(default)]
    descriptors: Part<Vec<Node>>,
    #[serde(default)]
    detailed_metric: bool,
    #[serde(default)]
    value_to_metric: bool,
    #[serde(default)]
    share_threshold: bool,
    #[serde(default)]
    quota_mode: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    #[serde(default)]
    unlimited: bool,
    name: Option<AsWritten>,
    #[serde(default)]
    replaces: Part<Vec<Replaced>>,
    unit: Option<AsWritten>,
    requests_per_unit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replaced {
    name: Option<AsWritten>,
}

/// The limit of a descriptor.
struct Limited {
    allowance: Allowance,
    name: Option<String>,
    replaces: Vec<String>,
}

pub(super) fn read<'a>(document: &Cursor<'a>, imported: &mut Imported<'a>) {
    let Some(file) = document.read::<File>() else { return };
    let domain = filled("domain", document.require("domain", file.domain), document);
    // Without a domain, the rest is still read to report its errors.
    let domain = domain.unwrap_or_else(|| "?".to_owned());
    if let Some(descriptors) = file.descriptors.cursor(document) {
        read_level(&descriptors, &domain, &[], imported);
    }
}

/// Reads the descriptors below `path`.
fn read_level<'a>(list: &Cursor<'a>, domain: &str, path: &[PathEntry], imported: &mut Imported<'a>) {
    let mut seen: HashMap<PathEntry, String> = HashMap::new();
    for item in list.items() {
        let Some(node) = item.read::<Node>() else { continue };
        let Some(entry) = read_node(node, &item, domain, path, imported) else { continue };
        let value = entry.value.as_deref().map_or(String::new(), |value| format!(" with value `{value}`"));
        let duplicate = format!("duplicate key `{}`{value}", entry.key);
        if let Some(first) = seen.insert(entry, item.remark("", "").place) {
            item.reject("", format!("{duplicate}; {first} has it already"));
        }
    }
}

/// Reads a descriptor and its nested descriptors. Returns its key and value, if it has a key.
fn read_node<'a>(
    node: Node,
    item: &Cursor<'a>,
    domain: &str,
    path: &[PathEntry],
    imported: &mut Imported<'a>,
) -> Option<PathEntry> {
    // Envoy's service treats an empty value as none.
    let value = node.value.map(|value| value.0).filter(|value| !value.is_empty());
    let key = filled("key", item.require("key", node.key), item);
    let is_pattern = key.as_ref().is_some_and(|key| key.ends_with('*') && value.is_none());
    if is_pattern {
        // Envoy's service matches other keys with it.
        item.reject("key", "no equivalent: a `*` is only supported in values");
    }
    if value.as_ref().is_some_and(|value| value.trim_end_matches('*').contains('*')) {
        let message =
            "a `*` before the end matches any characters in Pacegate, but only itself in Envoy's service";
        imported.notes.push(item.remark("value", message));
    }
    for (name, is_set) in
        [("detailed_metric", node.detailed_metric), ("value_to_metric", node.value_to_metric)]
    {
        if is_set {
            let message = "ignored: affects only metrics";
            imported.notes.push(item.remark(name, message));
        }
    }
    for (name, is_set, meaning) in [
        ("share_threshold", node.share_threshold, "values that match a `*` have separate counters"),
        ("quota_mode", node.quota_mode, "use `shadow_mode` for limits that do not deny"),
    ] {
        if is_set {
            item.reject(name, format!("no equivalent: {meaning}"));
        }
    }

    let entry = key.filter(|_| !is_pattern).map(|key| PathEntry { key, value });
    // Without a key, the rest is still read to report its errors.
    let step = entry.clone().unwrap_or_else(|| PathEntry::any("?"));
    let path: Vec<PathEntry> = path.iter().cloned().chain([step]).collect();
    let inner = node.descriptors.cursor(item).filter(|inner| !inner.is_empty());
    let limited = match node.rate_limit.cursor(item) {
        Some(limit) => limit.read::<RateLimit>().and_then(|rate| rate.limited(&limit)),
        None => {
            if node.shadow_mode {
                let message = "ignored: has no effect without a rate_limit";
                imported.notes.push(item.remark("shadow_mode", message));
            }
            // It exempts this value from the limit of its key.
            inner.is_none().then(|| {
                let message = "has no rate_limit: requests that match it are unlimited";
                imported.notes.push(item.remark("", message));
                Limited { allowance: Allowance::Unlimited, name: None, replaces: Vec::new() }
            })
        }
    };
    if let Some(Limited { allowance, name, replaces }) = limited
        && entry.is_some()
    {
        let watches = node.shadow_mode && allowance != Allowance::Unlimited;
        let rule = DescriptorRule {
            domain: Some(domain.to_owned()),
            name,
            mode: if watches { Mode::Shadow } else { Mode::Enforce },
            replaces,
            ..DescriptorRule::new(Selector::Path(path.clone()), allowance)
        };
        imported.add(rule, item);
    }
    if let Some(inner) = inner {
        read_level(&inner, domain, &path, imported);
    }
    entry
}

impl RateLimit {
    fn limited(self, cursor: &Cursor<'_>) -> Option<Limited> {
        let name = filled("name", self.name, cursor);
        let replaces = self.replaces.cursor(cursor).map(|list| list.items()).unwrap_or_default();
        let replaced = |item: Cursor<'_>| {
            let name = item.read::<Replaced>()?.name;
            filled("name", item.require("name", name), &item)
        };
        let replaces = replaces.into_iter().filter_map(replaced).collect();
        let allowance = if self.unlimited {
            for (name, is_set) in
                [("unit", self.unit.is_some()), ("requests_per_unit", self.requests_per_unit.is_some())]
            {
                if is_set {
                    cursor.reject(name, format!("`{name}` and `unlimited` are mutually exclusive"));
                }
            }
            Some(Allowance::Unlimited)
        } else {
            let unit = cursor.require("unit", self.unit);
            let quota = cursor.require("requests_per_unit", self.requests_per_unit);
            let seconds = unit.and_then(|unit| seconds(&unit.0, cursor));
            quota.and_then(|quota| per_unit(quota, seconds, cursor))
        };
        Some(Limited { allowance: allowance?, name, replaces })
    }
}

/// The text of the field `name`. Reports an empty text.
fn filled(name: &str, text: Option<AsWritten>, cursor: &Cursor<'_>) -> Option<String> {
    let AsWritten(text) = text?;
    if text.is_empty() {
        cursor.reject(name, "must not be empty");
        return None;
    }
    Some(text)
}

fn seconds(unit: &str, cursor: &Cursor<'_>) -> Option<u64> {
    let known = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name));
    if known.is_none() {
        let names = UNITS.map(|(name, _)| name).join(", ");
        cursor.reject("unit", format!("expected one of {names}, got {unit:?}"));
    }
    known.map(|(_, seconds)| *seconds)
}

fn per_unit(quota: u64, seconds: Option<u64>, cursor: &Cursor<'_>) -> Option<Allowance> {
    if quota == 0 {
        return Some(Allowance::Nothing);
    }
    match Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(seconds.unwrap_or(1))) {
        Ok(limit) => Some(Allowance::Limit(limit)).filter(|_| seconds.is_some()),
        Err(error) => {
            cursor.reject("requests_per_unit", format!("no equivalent: {error}"));
            None
        }
    }
}
