//! Limits files of Limitador: a list of limits, each with conditions and variables in CEL.

use std::time::Duration;

use pacegate::{Algorithm, Allowance, Condition, DescriptorRule, Limit, Selector};
use pacegate_config::ConfigError;
use pacegate_config::reading::{Field, Fields, Mistakes};

use super::Imported;
use super::cel::{self, Operand};

pub(super) fn read(document: Field, imported: &mut Imported) {
    let whole = document.remark("");
    for item in document.list(&mut imported.mistakes) {
        let origin = item.remark("");
        if let Some(rule) = read_limit(item, imported) {
            imported.add(rule, origin);
        }
    }
    let limits = |rule: &DescriptorRule| matches!(rule.allowance, Allowance::Limit(_));
    if imported.rules.iter().any(limits) {
        let message = "Limitador's windows begin with the first request in them; these begin at whole multiples of their length since 1970";
        imported.notes.insert(0, ConfigError { message: message.into(), ..whole });
    }
}

fn read_limit(item: Field, imported: &mut Imported) -> Option<DescriptorRule> {
    let origin = item.remark("");
    let mistakes = &mut imported.mistakes;
    let mut fields = Fields::new(item, mistakes)?;
    let namespace = fields.require("namespace", mistakes);
    let max_value = fields.require("max_value", mistakes);
    let seconds = fields.require("seconds", mistakes);
    let conditions = fields.take("conditions");
    let variables = fields.take("variables");
    let name = fields.take("name");
    let id = fields.take("id");
    fields.finish(mistakes);

    let namespace = namespace.and_then(|field| field.literal(mistakes));
    let allowance = read_allowance(max_value, seconds, mistakes);
    let conditions = conditions.map(|field| field.list(mistakes)).unwrap_or_default();
    let conditions: Vec<_> =
        conditions.iter().map(|field| read_cel(field, cel::predicate, mistakes)).collect();
    let variables = variables.map(|field| field.list(mistakes)).unwrap_or_default();
    let variables: Vec<_> = variables.iter().map(|field| read_cel(field, cel::variable, mistakes)).collect();
    if let (Some(_), Some(field)) = (&name, &id) {
        imported.notes.push(field.remark("left out: a limit has one name here, and name is it"));
    }
    let name = name.or(id).and_then(|field| field.literal(mistakes));

    let conditions: Vec<(Operand, _)> =
        conditions.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
    let variables = variables.into_iter().collect::<Option<Vec<_>>>()?;
    let mut places: Vec<Option<usize>> = conditions
        .iter()
        .map(|(operand, _)| operand)
        .chain(&variables)
        .map(|operand| operand.descriptor)
        .collect();
    places.sort_unstable();
    places.dedup();
    let descriptor = match places[..] {
        // A limit on everything counts each request once, however many descriptors it has.
        [] => Some(0),
        [place] => place,
        _ => {
            let message =
                "cannot be expressed: the conditions and variables of one limit must be about one descriptor";
            mistakes.push(ConfigError { message: message.into(), ..origin });
            return None;
        }
    };
    if descriptor.is_none() {
        let message = "has keys without `descriptors[…]`, as Limitador wrote them before 2.0: they may come from any one descriptor of a request";
        imported.notes.push(ConfigError { message: message.into(), ..origin });
    }
    let when = conditions.into_iter().map(|(operand, test)| Condition { key: operand.key, test }).collect();
    let by = variables.into_iter().map(|operand| operand.key).collect();
    Some(DescriptorRule {
        domain: Some(namespace?),
        name,
        ..DescriptorRule::new(Selector::Conditions { descriptor, when, by }, allowance?)
    })
}

fn read_cel<T>(field: &Field, read: fn(&str) -> Result<T, String>, mistakes: &mut Mistakes) -> Option<T> {
    let text = field.literal(mistakes)?;
    match read(&text) {
        Ok(value) => Some(value),
        Err(reason) => field.refuse(mistakes, format!("`{text}` cannot be expressed: {reason}")),
    }
}

fn read_allowance(
    max_value: Option<Field>,
    seconds: Option<Field>,
    mistakes: &mut Mistakes,
) -> Option<Allowance> {
    let window = seconds.as_ref().and_then(|field| field.number(mistakes));
    let quota = max_value.as_ref().and_then(|field| field.number(mistakes));
    let (window, quota) = (Duration::from_secs(window?), quota?);
    // What is denied needs no window, but one that cannot be is a mistake nevertheless.
    match Limit::try_new(Algorithm::FixedWindow, quota.max(1), window) {
        Ok(_) if quota == 0 => Some(Allowance::Nothing),
        Ok(limit) => Some(Allowance::Limit(limit)),
        Err(error) => {
            let field = if error.field() == "window" { seconds } else { max_value };
            field?.refuse(mistakes, format!("cannot be expressed: {error}"))
        }
    }
}
