//! What may make the result less than it seems: each is one sentence.

use pacegate::{LimitSource, Mode, Rule};

use crate::build::share;
use crate::log::LogReader;
use crate::options::{Options, RuleFile};
use crate::reading::Read;
use crate::replay::{Replay, ReplaySet};
use crate::time::{format_duration, format_time};
use crate::words::{first_lines, number};

/// More rules than this are not named one by one.
const NAMED_MAX: usize = 20;
/// Shares that are worth a word.
const BROKEN_SHARE: f64 = 0.01;
const LATE_SHARE: f64 = 0.001;

/// About the log.
pub(super) fn of_log(log: &LogReader, read: &Read, replay: &Replay, options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    if read.already_denied > 0 {
        warnings.push(format!(
            "{} requests were already answered 429: some limit was in force, and clients may have wanted more than the log shows",
            number(read.already_denied)
        ));
    }
    if share(read.broken, read.lines) >= BROKEN_SHARE {
        warnings.push(format!("{} of {} lines are not requests", number(read.broken), number(read.lines)));
    }
    if share(read.late.count, read.requests) >= LATE_SHARE {
        warnings.push(format!(
            "{} requests go back in time, by up to {}: is the log sorted, and are several logs in the order of their times? A longer --reorder may help",
            number(read.late.count),
            format_duration(read.late.most)
        ));
    }
    if let Some((place, time)) = read.odd.shown.first() {
        let lines = if read.odd.count == 1 {
            "1 line was"
        } else {
            &format!("{} lines were", number(read.odd.count))
        };
        warnings.push(format!(
            "{lines} left out, because the log never comes to the time there, as in line {} of {}: {}",
            place.line,
            log.names()[place.file],
            format_time(*time)
        ));
    }
    if replay.customers.untracked > 0 {
        warnings.push(format!(
            "{} requests are of customers beyond the first {}, who are in the totals but in no list: raise --max-keys",
            number(replay.customers.untracked),
            number(options.max_keys as u64)
        ));
    }
    let mapping = log.mapping();
    if mapping.endpoint.is_none() && mapping.request.is_none() {
        warnings.push(format!(
            "no field{} is known to be the endpoint, and every request counts as one of `/`; say which one is with --map endpoint=FIELD",
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

/// Where was looked for fields, if not everywhere.
fn in_first_lines(log: &LogReader) -> String {
    log.sampled().map_or(String::new(), |lines| format!(" in its {}", first_lines(lines)))
}

/// What to say of something that a log does not have.
fn lacks(log: &LogReader) -> String {
    match log.sampled() {
        None => "which the log does not have".to_owned(),
        Some(lines) => format!("which is not in the log's {}", first_lines(lines)),
    }
}

/// About one set of rules.
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
        warnings.push(format!("{more} further rules never applied for such reasons"));
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
            "{} rules for one method were applied to every request: the method is in no field{}; say which one it is with --map method=FIELD",
            number(of_methods as u64),
            in_first_lines(log)
        ));
    }
    if !file.config.descriptors.is_empty() {
        warnings.push(format!(
            "{} rules on descriptors were left out: a log has none",
            number(file.config.descriptors.len() as u64)
        ));
    }
    if !file.config.plans.is_empty() {
        warnings.push("plans were left out: programs name them, a log does not".to_owned());
    }
    if let Some(at) = set.full_at {
        warnings.push(format!(
            "from {} on there were {} keys at a time: further ones shared a counter, and the result is stricter than it would be; raise --max-keys",
            format_time(at),
            number(options.max_keys as u64)
        ));
    }
    let untracked: u64 = set.tally.rows().iter().map(|row| row.untracked).sum();
    if untracked > 0 {
        warnings.push(format!(
            "{} checks were of keys beyond the first {}, which no number of keys includes: raise --max-keys",
            number(untracked),
            number(options.max_keys as u64)
        ));
    }
    warnings
}

/// Whether a limit that applied comes from `rule`, as far as can be told.
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

/// Why a rule cannot apply to any request of this log.
fn obstacle(rule: &Rule, log: &LogReader, options: &Options) -> Option<String> {
    let mapping = log.mapping();
    let dimension = &rule.dimension;
    if !mapping.dimensions.iter().any(|(known, _)| known == dimension) {
        return Some(format!(
            "it counts by `{dimension}`, {}; say where it is with --map {dimension}=FIELD",
            lacks(log)
        ));
    }
    if let Some(tier) = &rule.tier
        && mapping.tier.is_none()
        && options.tiers.is_empty()
    {
        return Some(format!(
            "it is for the tier `{tier}`, and no user has one; say who has with --tiers FILE or --map tier=FIELD"
        ));
    }
    None
}
