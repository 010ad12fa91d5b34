//! Files of Envoy's rate limit service: one domain, and descriptors nested by key and value.

use std::collections::HashMap;
use std::time::Duration;

use pacegate::{Algorithm, Allowance, DescriptorRule, Limit, Mode, PathEntry, Selector};
use pacegate_config::ConfigError;
use pacegate_config::reading::{Field, Fields, Mistakes};

use super::Imported;

const DAY: u64 = 86_400;
/// Units and their lengths in seconds. A month has 30 days there, and a year 365.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

pub(super) fn read(document: Field, imported: &mut Imported) {
    let Some(mut fields) = Fields::new(document, &mut imported.mistakes) else { return };
    let domain = fields.require("domain", &mut imported.mistakes);
    let domain = domain.and_then(|field| filled(&field, &mut imported.mistakes));
    let descriptors = fields.take("descriptors");
    fields.finish(&mut imported.mistakes);
    // Without a domain the rest is read for its mistakes alone.
    let domain = domain.unwrap_or_else(|| "?".to_owned());
    if let Some(descriptors) = descriptors {
        read_level(descriptors, &domain, &[], imported);
    }
}

/// The descriptors below `path`.
fn read_level(field: Field, domain: &str, path: &[PathEntry], imported: &mut Imported) {
    let mut seen: HashMap<PathEntry, ConfigError> = HashMap::new();
    for item in field.list(&mut imported.mistakes) {
        let origin = item.remark("");
        let Some(entry) = read_node(item, domain, path, imported) else { continue };
        if let Some(first) = seen.insert(entry.clone(), origin.clone()) {
            let value =
                entry.value.as_deref().map_or(String::new(), |value| format!(" with value `{value}`"));
            let message = format!("key `{}`{value} is at {} already", entry.key, first.place);
            imported.mistakes.push(ConfigError { message, ..origin });
        }
    }
}

/// One descriptor and those inside it; its key and value, if it has a key.
fn read_node(item: Field, domain: &str, path: &[PathEntry], imported: &mut Imported) -> Option<PathEntry> {
    let origin = item.remark("");
    let mistakes = &mut imported.mistakes;
    let mut fields = Fields::new(item, mistakes)?;
    let key = fields.require("key", mistakes);
    let value_field = fields.take("value");
    // An empty value is the same as none to Envoy's service.
    let value =
        value_field.as_ref().and_then(|field| field.literal(mistakes)).filter(|text| !text.is_empty());
    let key = key.and_then(|field| {
        let key = filled(&field, mistakes)?;
        if key.ends_with('*') && value.is_none() {
            // It would match other keys there.
            return field.refuse(mistakes, "cannot be expressed: a `*` can be in a value, not in a key");
        }
        Some(key)
    });
    if let (Some(field), Some(value)) = (&value_field, &value)
        && value.trim_end_matches('*').contains('*')
    {
        let message =
            "a `*` before the end stands for any run of characters here; Envoy's service takes it literally";
        imported.notes.push(field.remark(message));
    }
    let shadow = fields.take("shadow_mode");
    let is_shadow = shadow.as_ref().and_then(|field| field.flag(mistakes)).unwrap_or(false);
    let limit = fields.take("rate_limit");
    let inner = fields.take("descriptors").filter(|field| !field.is_empty());
    for name in ["detailed_metric", "value_to_metric"] {
        if let Some(field) = fields.take(name)
            && field.flag(mistakes) == Some(true)
        {
            imported.notes.push(field.remark("is about metrics and limits nothing; left out"));
        }
    }
    for (name, meaning) in [
        ("share_threshold", "values that match a `*` cannot share a counter here"),
        ("quota_mode", "limits that answer without denying are `shadow_mode` here"),
    ] {
        if let Some(field) = fields.take(name)
            && field.flag(mistakes) == Some(true)
        {
            field.refuse::<()>(mistakes, format!("cannot be expressed: {meaning}"));
        }
    }
    fields.finish(mistakes);

    let entry = key.map(|key| PathEntry { key, value });
    // Without a key the rest is read for its mistakes alone.
    let step = entry.clone().unwrap_or_else(|| PathEntry::any("?"));
    let path: Vec<PathEntry> = path.iter().cloned().chain([step]).collect();
    let has_limit = limit.is_some();
    let rate = limit.and_then(|field| read_rate_limit(field, mistakes));
    let rule = match rate {
        Some(rate) => Some(rate),
        None if has_limit => None,
        None => {
            if is_shadow && let Some(field) = &shadow {
                imported.notes.push(field.remark("has no effect without a rate_limit; left out"));
            }
            // It takes the limit of its key away from this value, which no other rule would do.
            inner.is_none().then(|| {
                imported.notes.push(note(&origin, "has no rate_limit: whoever matches it is not limited"));
                RateLimit { allowance: Allowance::Unlimited, name: None, replaces: Vec::new() }
            })
        }
    };
    if let Some(RateLimit { allowance, name, replaces }) = rule
        && entry.is_some()
    {
        let watches = is_shadow && allowance != Allowance::Unlimited;
        let rule = DescriptorRule {
            domain: Some(domain.to_owned()),
            name,
            mode: if watches { Mode::Shadow } else { Mode::Enforce },
            replaces,
            ..DescriptorRule::new(Selector::Path(path.clone()), allowance)
        };
        imported.add(rule, origin);
    }
    if let Some(inner) = inner {
        read_level(inner, domain, &path, imported);
    }
    entry
}

fn note(origin: &ConfigError, message: &str) -> ConfigError {
    ConfigError { message: message.to_owned(), ..origin.clone() }
}

fn filled(field: &Field, mistakes: &mut Mistakes) -> Option<String> {
    let text = field.literal(mistakes)?;
    if text.is_empty() { field.refuse(mistakes, "must not be empty") } else { Some(text) }
}

struct RateLimit {
    allowance: Allowance,
    name: Option<String>,
    replaces: Vec<String>,
}

fn read_rate_limit(field: Field, mistakes: &mut Mistakes) -> Option<RateLimit> {
    let mut fields = Fields::new(field, mistakes)?;
    let unlimited = fields.take("unlimited").and_then(|field| field.flag(mistakes)).unwrap_or(false);
    let name = fields.take("name").and_then(|field| filled(&field, mistakes));
    let replaces = fields.take("replaces").map(|field| field.list(mistakes)).unwrap_or_default();
    let replaces = replaces.into_iter().filter_map(|item| {
        let mut fields = Fields::new(item, mistakes)?;
        let name = fields.require("name", mistakes).and_then(|field| filled(&field, mistakes));
        fields.finish(mistakes);
        name
    });
    let replaces = replaces.collect();
    let allowance = if unlimited {
        for name in ["unit", "requests_per_unit"] {
            if let Some(field) = fields.take(name) {
                field.refuse::<()>(mistakes, "cannot go with unlimited");
            }
        }
        Some(Allowance::Unlimited)
    } else {
        let unit = fields.require("unit", mistakes);
        let quota = fields.require("requests_per_unit", mistakes);
        let seconds = unit.and_then(|field| read_unit(&field, mistakes));
        quota.and_then(|field| read_quota(&field, seconds, mistakes))
    };
    fields.finish(mistakes);
    Some(RateLimit { allowance: allowance?, name, replaces })
}

fn read_unit(field: &Field, mistakes: &mut Mistakes) -> Option<u64> {
    let text = field.literal(mistakes)?;
    let unit = UNITS.iter().find(|(unit, _)| text.eq_ignore_ascii_case(unit));
    if unit.is_none() {
        let known = UNITS.map(|(unit, _)| unit).join(", ");
        return field.refuse(mistakes, format!("`{text}` is not one of {known}"));
    }
    unit.map(|(_, seconds)| *seconds)
}

fn read_quota(field: &Field, seconds: Option<u64>, mistakes: &mut Mistakes) -> Option<Allowance> {
    let quota = field.number(mistakes)?;
    if quota == 0 {
        return Some(Allowance::Nothing);
    }
    match Limit::try_new(Algorithm::FixedWindow, quota, Duration::from_secs(seconds.unwrap_or(1))) {
        Ok(limit) => Some(Allowance::Limit(limit)).filter(|_| seconds.is_some()),
        Err(error) => field.refuse(mistakes, format!("cannot be expressed: {error}")),
    }
}
