//! Warnings about the result, each in one sentence.

use pacegate::{LimitSource, Mode, Rule};

use crate::build::share;
use crate::log::LogReader;
use crate::options::{Options, RuleFile};
use crate::reading::Read;
use crate::replay::{Replay, ReplaySet};
use crate::time::{format_duration, format_time};
use crate::words::{first_lines, number, plural};

/// Maximum number of rules that are listed by name.
const NAMED_MAX: usize = 20;
/// Shares above which there is a warning.
const BROKEN_SHARE: f64 = 0.01;
const LATE_SHARE: f64 = 0.001;

/// Returns warnings about the log.
pub(super) fn of_log(log: &LogReader, read: &Read, replay: &Replay, options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    if read.already_denied > 0 {
        warnings.push(format!(
            "{} with status 429: a limit was in force already, so clients may have wanted more than the log shows",
            plural(read.already_denied, "request")
        ));
    }
    if share(read.broken, read.lines) >= BROKEN_SHARE {
        let are = if read.broken == 1 { "is not a request" } else { "are not requests" };
        warnings.push(format!("{} of {} {are}", number(read.broken), plural(read.lines, "line")));
    }
    if share(read.late.count, read.requests) >= LATE_SHARE {
        let are = if read.late.count == 1 { "is" } else { "are" };
        warnings.push(format!(
            "{} {are} older than an earlier line, by up to {}; sort the log by time, or use a longer --reorder",
            plural(read.late.count, "request"),
            format_duration(read.late.most)
        ));
    }
    if let Some((place, time)) = read.odd.shown.first() {
        let lines =
            if read.odd.count == 1 { "1 line is" } else { &format!("{} lines are", number(read.odd.count)) };
        warnings.push(format!(
            "{lines} ignored because of a time far ahead of the rest of the log, such as line {} of {}: {}",
            place.line,
            log.names()[place.file],
            format_time(*time)
        ));
    }
    if replay.customers.untracked > 0 {
        warnings.push(format!(
            "{} requests are of customers beyond the first {}; they are in the totals but in no list; raise --max-keys",
            number(replay.customers.untracked),
            number(options.max_keys as u64)
        ));
    }
    let mapping = log.mapping();
    if mapping.endpoint.is_none() && mapping.request.is_none() {
        warnings.push(format!(
            "no field{} is known to be the endpoint, so every request counts as `/`; set it with --map endpoint=FIELD",
            in_first_lines(log)
        ));
    }
    for (place, (dimension, slot)) in mapping.dimensions.iter().enumerate() {
        if replay.seen[place] == 0 {
            warnings.push(format!(
                "no request has a {dimension}: the field `{}` is empty",
                mapping.fields[*slot]
            ));
        }
    }
    warnings
}

/// Returns which lines were searched for fields, if not all of them.
fn in_first_lines(log: &LogReader) -> String {
    log.sampled().map_or(String::new(), |lines| format!(" in its {}", first_lines(lines)))
}

/// Returns the relative clause about a field that the log does not have.
fn lacks(log: &LogReader) -> String {
    match log.sampled() {
        None => "which the log does not have".to_owned(),
        Some(lines) => format!("which is not in the log's {}", first_lines(lines)),
    }
}

/// Returns warnings about one set of rules.
pub(super) fn of_rules(set: &ReplaySet, file: &RuleFile, log: &LogReader, options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut idle = Vec::new();
    for rule in &file.config.rules {
        if set.tally.rows().iter().any(|row| is_row_of(&row.limit, rule)) {
            continue;
        }
        match obstacle(rule, log, options) {
            Some(obstacle) => warnings.push(format!("rule `{}` never applied: {obstacle}", rule.name)),
            None => idle.push(format!("`{}`", rule.name)),
        }
    }
    if warnings.len() > NAMED_MAX {
        let more = warnings.len() - NAMED_MAX;
        warnings.truncate(NAMED_MAX);
        warnings.push(format!("{more} more rules never applied for similar reasons"));
    }
    if !idle.is_empty() {
        let more = idle.len().saturating_sub(NAMED_MAX);
        idle.truncate(NAMED_MAX);
        let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
        warnings.push(format!("no request of the log matches {}{and_more}", idle.join(", ")));
    }
    let has_method = log.mapping().method.is_some() || log.mapping().request.is_some();
    let of_methods = file.config.rules.iter().filter(|rule| !rule.methods.is_empty() && !has_method).count();
    if of_methods > 0 {
        warnings.push(format!(
            "{} with a method applied to every request, because no field{} is known to be the method; set it with --map method=FIELD",
            plural(of_methods as u64, "rule"),
            in_first_lines(log)
        ));
    }
    if !file.config.descriptors.is_empty() {
        warnings.push(format!(
            "{} ignored: a log has no descriptors",
            plural(file.config.descriptors.len() as u64, "descriptor rule")
        ));
    }
    if !file.config.plans.is_empty() {
        warnings.push("plans were ignored: a log does not name plans".to_owned());
    }
    if let Some(at) = set.full_at {
        warnings.push(format!(
            "from {} on, the limiter had {} keys; further keys shared one counter, which makes the result too strict; raise --max-keys",
            format_time(at),
            number(options.max_keys as u64)
        ));
    }
    let untracked: u64 = set.tally.rows().iter().map(|row| row.untracked).sum();
    if untracked > 0 {
        warnings.push(format!(
            "{} checks were of keys beyond the first {}, which are not in the number of keys; raise --max-keys",
            number(untracked),
            number(options.max_keys as u64)
        ));
    }
    warnings
}

/// Whether a limit that applied comes from `rule`, as far as the limit shows.
fn is_row_of(limit: &pacegate::NamedLimit, rule: &Rule) -> bool {
    let why = match (&rule.identifier, &rule.tier) {
        (Some(_), _) => LimitSource::Identifier,
        (None, Some(_)) => LimitSource::Tier,
        (None, None) => LimitSource::Anyone,
    };
    *limit.name == *rule.name
        && limit.dimension() == rule.dimension
        && limit.limit == rule.limit
        && (limit.mode == Mode::Shadow) == (rule.mode == Mode::Shadow)
        && limit.why == why
}

/// Returns why a rule cannot apply to any request of this log.
fn obstacle(rule: &Rule, log: &LogReader, options: &Options) -> Option<String> {
    let mapping = log.mapping();
    let dimension = &rule.dimension;
    if !mapping.dimensions.iter().any(|(known, _)| known == dimension) {
        return Some(format!(
            "it counts by `{dimension}`, {}; set the field with --map {dimension}=FIELD",
            lacks(log)
        ));
    }
    if let Some(tier) = &rule.tier
        && mapping.tier.is_none()
        && options.tiers.is_empty()
    {
        return Some(format!(
            "it applies to the tier `{tier}`, and no user has a tier; set tiers with --tiers FILE or --map tier=FIELD"
        ));
    }
    None
}
