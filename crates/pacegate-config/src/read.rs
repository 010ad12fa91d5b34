//! What each part of the file means.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use pacegate::identity::{self, Invalid};
use pacegate::{
    Algorithm, Cost, Limit, MemoryOptions, Methods, Mode, PathOptions, Pattern, PlanLimit, Rule, Scope,
};
use pacegate_http::HeaderFamily;

use crate::descriptors::read_descriptors;
use crate::node::{Node, Place, Value};
use crate::reader::{Field, Fields, Mistakes};
use crate::server::read_server;
use crate::stores::{read_failure, read_store_tls, read_stores};
use crate::telemetry::{read_log, read_traces};
use crate::{
    AUDIT_KEY_LENGTH_MIN, AdHocConfig, Config, DecisionLogConfig, ManagementConfig, RetentionConfig,
    ServiceConfig,
};

const KEY_AGE_MIN: Duration = Duration::from_secs(1);
const KEY_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn read_config(root: Node, mistakes: &mut Mistakes) -> Config {
    let mut config = Config::default();
    let Some(mut fields) = Fields::new(Field { path: String::new(), node: root }, mistakes) else {
        return config;
    };
    let mode = fields.take("mode");
    let mode = mode.and_then(|field| Some((field.word(&["embedded", "service"], mistakes)?, field)));
    config.service = fields.take("service").and_then(|field| read_service(field, mistakes));
    match mode {
        Some(("service", field)) if config.service.is_none() => {
            mistakes.add(&field.node.place, &field.path, "needs service.url, the service to ask");
        }
        Some(("service", _)) => {}
        _ => config.service = None,
    }
    if let Some(field) = fields.take("server") {
        read_server(field, &mut config.server, mistakes);
    }
    if let Some(field) = fields.take("management") {
        read_management(field, &mut config.management, mistakes);
    }
    if let Some(field) = fields.take("stores") {
        read_stores(field, &mut config.stores, mistakes);
    }
    if let Some(field) = fields.take("catalog")
        && let Some(mut fields) = Fields::new(field, mistakes)
    {
        if let Some(url) = fields.take("url").and_then(|field| field.text(mistakes)) {
            config.catalog.url = url;
        }
        if let Some(field) = fields.take("audit_key")
            && let Some(key) = field.literal(mistakes)
        {
            if key.len() < AUDIT_KEY_LENGTH_MIN {
                // Never with the key itself.
                let reason = format!("must have at least {AUDIT_KEY_LENGTH_MIN} bytes, got {}", key.len());
                field.refuse::<()>(mistakes, reason);
            }
            config.catalog.audit_key = Some(key);
        }
        if let Some(field) = fields.take("key_max_age")
            && let Some(duration) = field.duration(mistakes)
        {
            if !(KEY_AGE_MIN..=KEY_AGE_MAX).contains(&duration) {
                mistakes.add(&field.node.place, &field.path, "must be between 1s and 1day");
            }
            config.catalog.key_max_age = duration;
        }
        fields.finish(mistakes);
    }
    if let Some(field) = fields.take("decision_log") {
        read_decision_log(field, &mut config.decision_log, mistakes);
    }
    if let Some(field) = fields.take("retention") {
        read_retention(field, &mut config.retention, mistakes);
    }
    if let Some(field) = fields.take("failure") {
        read_failure(field, &mut config, mistakes);
    }
    if let Some(field) = fields.take("paths") {
        read_paths(field, &mut config.paths, mistakes);
    }
    if let Some(field) = fields.take_filled("default_limit", mistakes) {
        config.default_limit = match &field.node.value {
            Value::Text(text) if text == "none" => None,
            _ => read_limit_alone(field, mistakes),
        };
    }
    if let Some(field) = fields.take("policies") {
        read_policies(field, &mut config.policy_dimensions, mistakes);
    }
    if let Some(field) = fields.take("log") {
        read_log(field, &mut config.log, mistakes);
    }
    config.traces = fields.take("traces").and_then(|field| read_traces(field, mistakes));
    if let Some(metrics) = fields.take("metrics").and_then(|field| field.flag(mistakes)) {
        config.metrics = metrics;
    }
    if let Some(field) = fields.take("headers") {
        config.headers = read_headers(field, mistakes);
    }
    if let Some(field) = fields.take("envoy")
        && let Some(mut fields) = Fields::new(field, mistakes)
    {
        config.envoy_headers = fields.take("headers").map(|field| read_headers(field, mistakes));
        fields.finish(mistakes);
    }
    if let Some(field) = fields.take("ad_hoc") {
        read_ad_hoc(field, &mut config.ad_hoc, mistakes);
    }
    for store in &mut config.stores {
        store.memory = config.ad_hoc.bound(store.memory);
    }
    if let Some(field) = fields.take("plans") {
        for (name, field) in field.entries(mistakes) {
            check_name(&name, &field, mistakes);
            let place = field.node.place.clone();
            let path = field.path.clone();
            let items = field.list(mistakes);
            let is_empty = items.is_empty();
            let limits: Vec<PlanLimit> =
                items.into_iter().filter_map(|item| read_plan_limit(item, mistakes)).collect();
            // Where no limit can be read, that is reported already.
            if let Err(invalid) = PlanLimit::check_all(&limits)
                && (is_empty || !limits.is_empty())
            {
                mistakes.add(&place, &path, invalid.reason());
            }
            config.plans.push((name, limits));
        }
    }
    if let Some(field) = fields.take("rules") {
        read_rules(field, &mut config, mistakes);
    }
    if let Some(field) = fields.take("descriptors") {
        read_descriptors(field, &mut config, mistakes);
    }
    fields.finish(mistakes);
    config
}

fn read_headers(field: Field, mistakes: &mut Mistakes) -> Vec<HeaderFamily> {
    field.list(mistakes).iter().filter_map(|item| item.named(mistakes)).collect()
}

fn read_service(field: Field, mistakes: &mut Mistakes) -> Option<ServiceConfig> {
    let mut fields = Fields::new(field, mistakes)?;
    let url = fields.require("url", mistakes).and_then(|field| {
        let url = field.text(mistakes)?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            mistakes.add(&field.node.place, &field.path, "must start with http:// or https://");
        }
        Some(url)
    });
    let key = fields.take("key").and_then(|field| field.text(mistakes));
    let tls = fields.take("tls").map(|field| read_store_tls(field, mistakes)).unwrap_or_default();
    fields.finish(mistakes);
    Some(ServiceConfig { url: url?, key, tls })
}

/// The most that a sliding log counts.
const MANAGEMENT_MAX: u64 = Limit::SLIDING_LOG_QUOTA_MAX;

fn read_management(field: Field, management: &mut ManagementConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    for (name, target) in [
        ("reads_per_minute", &mut management.reads_per_minute),
        ("writes_per_minute", &mut management.writes_per_minute),
    ] {
        if let Some(field) = fields.take(name)
            && let Some(number) = bounded(&field, 1, MANAGEMENT_MAX, mistakes)
        {
            *target = number as u64;
        }
    }
    fields.finish(mistakes);
}

fn read_paths(field: Field, paths: &mut PathOptions, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(field) = fields.take("encoded_slashes") {
        paths.encoded_slashes = field.named(mistakes);
    }
    for (name, target) in [
        ("merge_slashes", &mut paths.merge_slashes),
        ("ignore_parameters", &mut paths.ignore_parameters),
        ("ignore_case", &mut paths.ignore_case),
    ] {
        if let Some(flag) = fields.take(name).and_then(|field| field.flag(mistakes)) {
            *target = flag;
        }
    }
    fields.finish(mistakes);
}

fn read_ad_hoc(field: Field, ad_hoc: &mut AdHocConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(allow) = fields.take("allow").and_then(|field| field.named(mistakes)) {
        ad_hoc.allow = allow;
    }
    if let Some(field) = fields.take("max_window")
        && let Some(window) = field.duration(mistakes)
    {
        if !(Duration::from_secs(1)..=Limit::WINDOW_MAX).contains(&window) {
            mistakes.add(&field.node.place, &field.path, "must be between 1s and 366d");
        }
        ad_hoc.max_window = window;
    }
    let keys_max = MemoryOptions::KEYS_MAX as u64;
    if let Some(field) = fields.take("max_keys") {
        ad_hoc.max_keys = bounded(&field, 1, keys_max, mistakes);
    }
    fields.finish(mistakes);
}

fn read_policies(field: Field, dimensions: &mut Vec<String>, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    if let Some(field) = fields.take("dimensions") {
        *dimensions =
            field.list(mistakes).into_iter().filter_map(|item| read_dimension(&item, mistakes)).collect();
    }
    fields.finish(mistakes);
}

fn read_dimension(field: &Field, mistakes: &mut Mistakes) -> Option<String> {
    read_as(field, mistakes, |word| identity::dimension(word).map(str::to_owned))
}

fn read_decision_log(field: Field, log: &mut DecisionLogConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    for (name, target) in [("allowed", &mut log.allowed), ("denied", &mut log.denied)] {
        if let Some(share) = fields.take(name).and_then(|field| field.share(mistakes)) {
            *target = share;
        }
    }
    if let Some(field) = fields.take("rows_per_second")
        && let Some(number) = bounded(&field, 0, 1_000_000, mistakes)
    {
        log.rows_per_second = number as u64;
    }
    if let Some(field) = fields.take("queue")
        && let Some(number) = bounded(&field, 1, 1_000_000, mistakes)
    {
        log.queue = number;
    }
    fields.finish(mistakes);
}

fn read_retention(field: Field, retention: &mut RetentionConfig, mistakes: &mut Mistakes) {
    let Some(mut fields) = Fields::new(field, mistakes) else { return };
    for (name, target) in [
        ("audit", &mut retention.audit),
        ("decisions", &mut retention.decisions),
        ("usage_minutes", &mut retention.usage_minutes),
        ("usage_hours", &mut retention.usage_hours),
    ] {
        if let Some(field) = fields.take(name)
            && let Some(duration) = field.duration(mistakes)
        {
            if duration < Duration::from_secs(3_600) {
                mistakes.add(&field.node.place, &field.path, "must be at least 1h");
            }
            *target = duration;
        }
    }
    if let Some(field) = fields.take("usage_rows")
        && let Some(number) = bounded(&field, 10_000, 1_000_000_000, mistakes)
    {
        retention.usage_rows = number as u64;
    }
    fields.finish(mistakes);
}

pub(super) fn bounded(field: &Field, min: u64, max: u64, mistakes: &mut Mistakes) -> Option<usize> {
    let number = field.number(mistakes)?;
    if (min..=max).contains(&number) {
        return Some(number as usize);
    }
    mistakes.add(&field.node.place, &field.path, format!("must be between {min} and {max}, not {number}"));
    None
}

fn read_plan_limit(field: Field, mistakes: &mut Mistakes) -> Option<PlanLimit> {
    let mut fields = Fields::new(field, mistakes)?;
    let unit = fields.take_filled("unit", mistakes);
    let cost = fields.take_filled("cost", mistakes);
    let limit = read_limit(&mut fields, mistakes);
    let unit = unit.and_then(|field| read_unit(&field, mistakes));
    let cost = cost.and_then(|field| read_cost(&field, mistakes));
    fields.finish(mistakes);
    Some(PlanLimit { limit: limit?, unit, cost })
}

fn read_unit(field: &Field, mistakes: &mut Mistakes) -> Option<String> {
    read_as(field, mistakes, |unit| identity::check_unit(unit).map(|()| unit.to_owned()))
}

fn read_cost(field: &Field, mistakes: &mut Mistakes) -> Option<Cost> {
    let cost = bounded(field, 1, Cost::MAX.get().into(), mistakes)?;
    Cost::try_new(cost as u64).ok()
}

fn read_limit_alone(field: Field, mistakes: &mut Mistakes) -> Option<Limit> {
    let mut fields = Fields::new(field, mistakes)?;
    let limit = read_limit(&mut fields, mistakes);
    fields.finish(mistakes);
    limit
}

/// `algorithm`, `limit`, `window` and `burst`, wherever they stand.
pub(super) fn read_limit(fields: &mut Fields, mistakes: &mut Mistakes) -> Option<Limit> {
    let algorithm = fields.require("algorithm", mistakes);
    let quota = fields.require("limit", mistakes);
    let window = fields.require("window", mistakes);
    let burst = fields.take_filled("burst", mistakes);
    // Every field is read before any gives up, so that all mistakes are seen.
    let algorithm: Option<Algorithm> = algorithm.and_then(|field| field.parsed(mistakes));
    let quota = quota.and_then(|field| field.number(mistakes));
    let window = window.and_then(|field| field.duration(mistakes));
    let burst = burst.map(|field| field.number(mistakes));
    let limit = Limit::try_new(algorithm?, quota?, window?);
    let limit = match burst {
        None => limit,
        Some(burst) => {
            let burst = burst?;
            limit.and_then(|limit| limit.with_burst(burst))
        }
    };
    limit.map_err(|error| mistakes.add(&fields.place, &fields.path_of(error.field()), error.reason())).ok()
}

fn read_rules(field: Field, config: &mut Config, mistakes: &mut Mistakes) {
    let mut found: Vec<(Rule, Place, String)> = Vec::new();
    for item in field.list(mistakes) {
        let (place, path) = (item.node.place.clone(), item.path.clone());
        if let Some(rule) = read_rule(item, config.server.ipv6_prefix, mistakes) {
            found.push((rule, place, path));
        }
    }
    let mut variants = HashMap::new();
    for (rule, place, path) in &found {
        let known = |name: &String| config.stores.iter().any(|store| store.name == *name);
        if let Some(store) = rule.store.as_ref().filter(|store| !known(store)) {
            mistakes.add(
                place,
                &format!("{path}.store"),
                format!("there is no store `{store}` under stores"),
            );
        }
        if let Some(first) = variants.insert(rule.variant(), path) {
            let message = format!(
                "`{}` is the same variant as {first}; give it another name or another place",
                rule.name
            );
            mistakes.add(place, path, message);
        }
    }
    drop(variants);
    config.rules.extend(found.into_iter().map(|(rule, _, _)| rule));
}

fn read_rule(field: Field, ipv6_prefix: u8, mistakes: &mut Mistakes) -> Option<Rule> {
    let mut fields = Fields::new(field, mistakes)?;
    let name = fields.require("name", mistakes);
    let dimension = fields.require("dimension", mistakes);
    let identifier = fields.take_filled("identifier", mistakes);
    let tier = fields.take_filled("tier", mistakes);
    let endpoint = fields.take_filled("endpoint", mistakes);
    let method = fields.take_filled("method", mistakes);
    let methods = fields.take_filled("methods", mistakes);
    let unlimited = fields.take("unlimited").and_then(|field| field.flag(mistakes)).unwrap_or_default();
    let unit = fields.take_filled("unit", mistakes);
    let cost = fields.take_filled("cost", mistakes);
    let overdraw = fields.take("overdraw").and_then(|field| field.flag(mistakes)).unwrap_or_default();
    let mode = fields.take_filled("mode", mistakes);
    let scope = fields.take_filled("counter", mistakes);
    let store = fields.take_filled("store", mistakes);
    let on_store_error = fields.take_filled("on_store_error", mistakes);
    let limit = if unlimited { Some(Limit::largest()) } else { read_limit(&mut fields, mistakes) };

    let name = name.and_then(|field| {
        let name = field.text(mistakes)?;
        check_name(&name, &field, mistakes).then_some(name)
    });
    let dimension = dimension.and_then(|field| read_dimension(&field, mistakes));
    let identifier = identifier.and_then(|field| {
        // What is wrong with the dimension is said already.
        let dimension = dimension.as_deref().unwrap_or_default();
        let canonical = |text: &str| identity::identifier(dimension, text, ipv6_prefix).map(Cow::into_owned);
        read_as(&field, mistakes, canonical)
    });
    let tier = tier.and_then(|field| {
        read_as(&field, mistakes, |tier| identity::check_tier(tier).map(|()| tier.to_owned()))
    });
    let methods = read_methods(method, methods, mistakes);
    let unit = unit.and_then(|field| read_unit(&field, mistakes));
    let cost = cost.and_then(|field| read_cost(&field, mistakes));
    let endpoint = match endpoint {
        None => Some(Pattern::all()),
        Some(field) => field.text(mistakes).and_then(|text| {
            let pattern = Pattern::parse(&text);
            pattern.map_err(|error| mistakes.add(&field.node.place, &field.path, error.to_string())).ok()
        }),
    };
    let mode = mode.map_or(Some(Mode::Enforce), |field| field.named(mistakes));
    let scope = scope.map_or(Some(Scope::Pattern), |field| field.named(mistakes));
    let store = store.and_then(|field| field.text(mistakes));
    let on_store_error = on_store_error.and_then(|field| field.named(mistakes));
    fields.finish(mistakes);
    Some(Rule {
        name: name?,
        dimension: dimension?,
        identifier,
        tier,
        endpoint: endpoint?,
        methods,
        limit: limit?,
        unlimited,
        unit,
        cost,
        overdraw,
        mode: mode?,
        scope: scope?,
        store,
        on_store_error,
    })
}

/// `method` for one, `methods` for several.
fn read_methods(method: Option<Field>, methods: Option<Field>, mistakes: &mut Mistakes) -> Methods {
    if let (Some(_), Some(list)) = (&method, &methods) {
        mistakes.add(&list.node.place, &list.path, "use either method or methods");
    }
    let items = methods.into_iter().flat_map(|field| field.list(mistakes)).collect::<Vec<_>>();
    let canonical = |text: &str| identity::method(text).map(Cow::into_owned);
    let names: Vec<String> =
        method.iter().chain(&items).filter_map(|field| read_as(field, mistakes, canonical)).collect();
    // What is wrong with a name is reported already.
    Methods::try_new(names.iter().map(String::as_str)).unwrap_or_default()
}

/// A text as `canonical` writes it.
fn read_as(
    field: &Field,
    mistakes: &mut Mistakes,
    canonical: impl FnOnce(&str) -> Result<String, Invalid>,
) -> Option<String> {
    let text = field.text(mistakes)?;
    let invalid = |invalid: Invalid| {
        mistakes.add(&field.node.place, &field.path, invalid.reason());
    };
    canonical(&text).map_err(invalid).ok()
}

pub(super) fn check_name(name: &str, field: &Field, mistakes: &mut Mistakes) -> bool {
    let checked = identity::check_name(name);
    if let Err(invalid) = &checked {
        mistakes.add(&field.node.place, &field.path, invalid.reason());
    }
    checked.is_ok()
}
