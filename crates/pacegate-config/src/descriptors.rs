//! `descriptors`: limits on what Envoy, and others who speak its protocol, send.

use crate::Config;
use crate::node::Place;
use crate::read::{check_name, read_limit};
use crate::reader::{Field, Fields, Mistakes};
use pacegate::identity::check_identifier;
use pacegate::{Allowance, Condition, DescriptorRule, Mode, PathEntry, Selector, ValueTest};

pub(super) fn read_descriptors(field: Field, config: &mut Config, mistakes: &mut Mistakes) {
    let mut found: Vec<(DescriptorRule, Place, String)> = Vec::new();
    for item in field.list(mistakes) {
        let (place, path) = (item.node.place.clone(), item.path.clone());
        if let Some(rule) = read_descriptor(item, mistakes) {
            found.push((rule, place, path));
        }
    }
    for (rule, place, path) in &found {
        let known = |name: &String| config.stores.iter().any(|store| store.name == *name);
        if let Some(store) = rule.store.as_ref().filter(|store| !known(store)) {
            let message = format!("there is no store `{store}` under stores");
            mistakes.add(place, &format!("{path}.store"), message);
        }
        if let Err(error) = rule.validate() {
            mistakes.add(place, &format!("{path}.{}", error.field()), error.reason());
        }
    }
    for contradiction in DescriptorRule::contradictions(found.iter().map(|(rule, _, _)| rule)) {
        let (_, place, path) = &found[contradiction.place];
        let path = format!("{path}.{}", contradiction.field);
        match contradiction.earlier {
            Some(earlier) => mistakes.add(place, &path, format!("selects the same as {}", found[earlier].2)),
            // A rule that could not be read may be the one that is missing.
            None if mistakes.0.is_empty() => mistakes.add(place, &path, contradiction.message),
            None => {}
        }
    }
    config.descriptors.extend(found.into_iter().map(|(rule, _, _)| rule));
}

fn read_descriptor(field: Field, mistakes: &mut Mistakes) -> Option<DescriptorRule> {
    let mut fields = Fields::new(field, mistakes)?;
    let domain = fields.take_filled("domain", mistakes);
    let name = fields.take_filled("name", mistakes);
    let selects = read_selector(&mut fields, mistakes);
    let allowance = read_allowance(&mut fields, mistakes);
    let mode = fields.take_filled("mode", mistakes);
    let store = fields.take_filled("store", mistakes);
    let on_store_error = fields.take_filled("on_store_error", mistakes);
    let replaces = fields.take_filled("replaces", mistakes);
    let [overdraw, refundable] = ["overdraw", "refundable"].map(|name| fields.take_filled(name, mistakes));

    let domain = domain.map(|field| clean(&field, mistakes));
    let name = name.map(|field| {
        let name = field.literal(mistakes)?;
        check_name(&name, &field, mistakes).then_some(name)
    });
    let mode = mode.map_or(Some(Mode::Enforce), |field| field.named(mistakes));
    let store = store.and_then(|field| field.text(mistakes));
    let on_store_error = on_store_error.and_then(|field| field.named(mistakes));
    let replaces = replaces.map(|field| field.list(mistakes)).unwrap_or_default();
    let replaces = replaces.iter().filter_map(|item| item.literal(mistakes)).collect();
    let [overdraw, refundable] = [overdraw, refundable]
        .map(|field| field.is_some_and(|field| field.flag(mistakes).unwrap_or_default()));
    fields.finish(mistakes);
    Some(DescriptorRule {
        // What is there and wrong is not the same as what is not there.
        domain: domain.map_or(Some(None), |domain| domain.map(Some))?,
        name: name.map_or(Some(None), |name| name.map(Some))?,
        selects: selects?,
        allowance: allowance?,
        mode: mode?,
        store,
        on_store_error,
        replaces,
        overdraw,
        refundable,
    })
}

fn read_selector(fields: &mut Fields, mistakes: &mut Mistakes) -> Option<Selector> {
    let entries = fields.take_filled("entries", mistakes);
    let when = fields.take_filled("when", mistakes);
    let by = fields.take_filled("by", mistakes);
    let descriptor = fields.take_filled("descriptor", mistakes);
    if let Some(entries) = entries {
        for other in [&when, &by, &descriptor].into_iter().flatten() {
            mistakes.add(&other.node.place, &other.path, "goes instead of entries, not with them");
        }
        let (place, path) = (entries.node.place.clone(), entries.path.clone());
        let items = entries.list(mistakes);
        let count = items.len();
        let max = DescriptorRule::ENTRIES_MAX;
        if !(1..=max).contains(&count) {
            mistakes.add(&place, &path, format!("must be 1 to {max} entries, not {count}"));
            return None;
        }
        let read: Vec<PathEntry> = items.into_iter().filter_map(|item| read_entry(item, mistakes)).collect();
        return (read.len() == count).then_some(Selector::Path(read));
    }
    if when.is_none() && by.is_none() {
        let path = fields.path_of("entries");
        mistakes.add(&fields.place, &path, "is missing; or give `when` or `by`, for entries in any order");
        return None;
    }
    let when = when.map(|field| field.list(mistakes)).unwrap_or_default();
    let count = when.len();
    let when: Vec<Condition> = when.into_iter().filter_map(|item| read_condition(item, mistakes)).collect();
    let by = by.map(|field| field.list(mistakes)).unwrap_or_default();
    let by: Vec<Option<String>> = by.iter().map(|item| clean(item, mistakes)).collect();
    let descriptor = match descriptor.map(|field| field.number(mistakes)) {
        None => None,
        Some(number) => Some(usize::try_from(number?).unwrap_or(usize::MAX)),
    };
    let by: Option<Vec<String>> = by.into_iter().collect();
    (when.len() == count).then_some(Selector::Conditions { descriptor, when, by: by? })
}

fn read_entry(field: Field, mistakes: &mut Mistakes) -> Option<PathEntry> {
    let mut fields = Fields::new(field, mistakes)?;
    let key = fields.require("key", mistakes).and_then(|field| clean(&field, mistakes));
    let value = fields.take_filled("value", mistakes).map(|field| clean(&field, mistakes));
    fields.finish(mistakes);
    Some(PathEntry { key: key?, value: value.map_or(Some(None), |value| value.map(Some))? })
}

fn read_condition(field: Field, mistakes: &mut Mistakes) -> Option<Condition> {
    type Make = fn(String) -> ValueTest;
    const TESTS: [(&str, Make); 3] =
        [("is", ValueTest::Is), ("is_not", ValueTest::IsNot), ("starts_with", ValueTest::StartsWith)];
    let mut fields = Fields::new(field, mistakes)?;
    let key = fields.require("key", mistakes).and_then(|field| clean(&field, mistakes));
    let mut tests = Vec::new();
    for (name, test) in TESTS {
        if let Some(field) = fields.take_filled(name, mistakes) {
            tests.push(clean_or_empty(&field, mistakes).map(test));
        }
    }
    if tests.len() != 1 {
        let path = fields.path_of("is");
        mistakes.add(&fields.place, &path, "exactly one of is, is_not and starts_with must be there");
    }
    fields.finish(mistakes);
    let test = tests.pop().filter(|_| tests.is_empty())?;
    Some(Condition { key: key?, test: test? })
}

/// `unlimited`, `deny`, or the numbers of a limit.
fn read_allowance(fields: &mut Fields, mistakes: &mut Mistakes) -> Option<Allowance> {
    let mut flag = |name| {
        let field = fields.take_filled(name, mistakes)?;
        let set = field.flag(mistakes).unwrap_or(true);
        set.then_some(field)
    };
    let allowance = match (flag("unlimited"), flag("deny")) {
        (None, None) => return read_limit(fields, mistakes).map(Allowance::Limit),
        (Some(_), Some(deny)) => {
            mistakes.add(&deny.node.place, &deny.path, "cannot go with unlimited");
            None
        }
        (Some(_), None) => Some(Allowance::Unlimited),
        (None, Some(_)) => Some(Allowance::Nothing),
    };
    let word = if allowance == Some(Allowance::Unlimited) { "unlimited" } else { "deny" };
    for name in ["algorithm", "limit", "window", "burst"] {
        if let Some(field) = fields.take(name) {
            mistakes.add(&field.node.place, &field.path, format!("cannot go with {word}"));
        }
    }
    allowance
}

fn clean(field: &Field, mistakes: &mut Mistakes) -> Option<String> {
    let text = clean_or_empty(field, mistakes)?;
    clean_text(field, text, mistakes)
}

fn clean_or_empty(field: &Field, mistakes: &mut Mistakes) -> Option<String> {
    let text = field.literal(mistakes)?;
    if text.is_empty() { Some(text) } else { clean_text(field, text, mistakes) }
}

fn clean_text(field: &Field, text: String, mistakes: &mut Mistakes) -> Option<String> {
    if let Err(invalid) = check_identifier(&text) {
        mistakes.add(&field.node.place, &field.path, invalid.reason());
        return None;
    }
    Some(text)
}
