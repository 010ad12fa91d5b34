//! Builds the report from what was counted.

mod comparison;
mod conclusion;
mod customers;
mod suggestions;
mod warnings;

use std::time::Duration;

use pacegate::{Limit, Mode, NamedLimit};

use self::customers::People;
use crate::log::LogReader;
use crate::options::{Options, RuleFile};
use crate::reading::Read;
use crate::replay::{Replay, ReplaySet};
use crate::report::{
    BrokenLine, EndpointReport, FieldReport, LogReport, NeededReport, OddLine, Report, RuleReport,
    RuleSeries, RuleSetReport, SeriesReport,
};
use crate::tally::endpoints::Endpoints;
use crate::tally::keys::Need;
use crate::tally::rules::RuleRow;
use crate::time::{format_duration, format_time};

const ENDPOINTS_SHOWN: usize = 20;
/// Share of requests that go back in time above which the result is not reliable.
const OUT_OF_ORDER_SHARE: f64 = 0.01;
/// Maximum number of rules with a chart of their own.
const RULE_SERIES_SHOWN: usize = 6;
pub(crate) const SET_NAMES: [&str; crate::tally::SETS_MAX] = ["A", "B"];

/// Builds the report.
pub(crate) fn build(
    log: &LogReader,
    read: &Read,
    replay: &Replay,
    rules: &[RuleFile],
    options: &Options,
) -> Report {
    let people = People::new(log, replay, options);
    let sets: Vec<RuleSetReport> = replay
        .sets
        .iter()
        .zip(rules)
        .enumerate()
        .map(|(place, (set, file))| rule_set(place, set, file, &people, log, options))
        .collect();
    let comparison = match rules {
        [a, b] => Some(comparison::compare(a, b, &people)),
        _ => None,
    };
    let log = log_report(log, read, replay, options);
    let conclusion = conclusion::conclude(&log, &sets, comparison.as_ref());
    Report {
        format_version: 2,
        log,
        endpoints: endpoints(&replay.endpoints, rules.len()),
        series: series(replay, &sets),
        rule_sets: sets,
        comparison,
        conclusion,
    }
}

/// Returns `part / whole`, and 0 if `whole` is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Returns `100 / 60 s`, with the burst if it differs from the limit.
pub(crate) fn describe_limit(limit: &Limit) -> String {
    let burst = match limit.capacity() {
        burst if burst == limit.quota() => String::new(),
        burst => format!(", burst {burst}"),
    };
    format!("{} {} / {}{burst}", limit.algorithm(), limit.quota(), format_duration(limit.window()))
}

fn log_report(log: &LogReader, read: &Read, replay: &Replay, options: &Options) -> LogReport {
    let (first, last) = replay.span.unwrap_or_default();
    let fields = log.mapping().pairs().into_iter().map(|(part, field)| FieldReport { part, field });
    let broken = read.broken_shown.iter().map(|broken| BrokenLine {
        file: log.names()[broken.place.file].clone(),
        line: broken.place.line,
        reason: broken.reason.clone(),
        text: broken.excerpt.clone(),
    });
    let odd = read.odd.shown.iter().map(|(place, time)| OddLine {
        file: log.names()[place.file].clone(),
        line: place.line,
        time: format_time(*time),
    });
    LogReport {
        files: log.names().to_vec(),
        format: log.format().name().to_owned(),
        fields: fields.collect(),
        lines: read.lines,
        requests: read.requests,
        broken_lines: read.broken,
        broken_examples: broken.collect(),
        left_out_by_status: read.left_out,
        answered_429: read.already_denied,
        late_requests: read.late.count,
        late_seconds_most: seconds(read.late.most),
        out_of_order: share(read.late.count, read.requests) > OUT_OF_ORDER_SHARE,
        odd_times: read.odd.count,
        odd_examples: odd.collect(),
        spread_over_seconds: read.whole_seconds && options.spread,
        first: format_time(first),
        last: format_time(last),
        span_seconds: seconds(last.saturating_since(first)),
        warnings: warnings::of_log(log, read, replay, options),
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

fn rule_set(
    place: usize,
    set: &ReplaySet,
    file: &RuleFile,
    people: &People<'_>,
    log: &LogReader,
    options: &Options,
) -> RuleSetReport {
    let tally = &set.tally;
    let keys = tally.keys_by_rule();
    let mut rules: Vec<RuleReport> =
        tally.rows().iter().zip(&keys).map(|(row, (needs, blocked))| rule(row, needs, *blocked)).collect();
    // In the order of the file, with the default limit last.
    let in_file = |rule: &RuleReport| file.config.rules.iter().position(|other| other.name == rule.name);
    rules.sort_by_key(|rule| (in_file(rule).unwrap_or(usize::MAX), rule.applies_to.clone(), rule.limit));
    RuleSetReport {
        name: SET_NAMES[place].to_owned(),
        file: file.name.clone(),
        allowed: tally.allowed,
        blocked: tally.blocked,
        blocked_share: share(tally.blocked, tally.allowed + tally.blocked),
        would_block: tally.would_block,
        shadow_enforced: options.enforce_shadow,
        rules,
        blocked_customers: people.by_dimension(place),
        most_blocked: people.most_blocked(place),
        regular_hurt: people.regular_hurt(place),
        outliers: people.outliers(place),
        suggestions: suggestions::suggest(place, people),
        warnings: warnings::of_rules(set, file, log, options),
    }
}

fn rule(row: &RuleRow, needs: &[u64], keys_blocked: u64) -> RuleReport {
    let NamedLimit { limit, mode, why, name, .. } = &*row.limit;
    RuleReport {
        name: name.to_string(),
        dimension: row.limit.dimension().to_owned(),
        applies_to: why.name().to_owned(),
        mode: if *mode == Mode::Shadow { "shadow" } else { "enforce" }.to_owned(),
        algorithm: limit.algorithm().name().to_owned(),
        limit: limit.quota(),
        window_seconds: seconds(limit.window()),
        burst: limit.capacity(),
        requests: row.requests,
        blocked: row.blocked,
        blocked_share: share(row.blocked, row.requests),
        keys: needs.len() as u64,
        keys_blocked,
        needed: needs.last().map(|most| NeededReport {
            number: Need::of(limit).name().to_owned(),
            exact: Need::is_exact(limit),
            for_99_percent: enough_for(needs, 990),
            for_99_9_percent: enough_for(needs, 999),
            for_all: *most,
        }),
    }
}

/// Returns the number that is enough for `per_mille` of `needs`, which are in ascending order.
fn enough_for(needs: &[u64], per_mille: usize) -> u64 {
    let rank = (needs.len() * per_mille).div_ceil(1_000);
    needs.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn endpoints(endpoints: &Endpoints, sets: usize) -> Vec<EndpointReport> {
    let sorted = endpoints.sorted();
    let shown = sorted.into_iter().take(ENDPOINTS_SHOWN);
    let others = (endpoints.others.requests > 0).then_some(("(others)", endpoints.others));
    let row = |(name, count): (&str, crate::tally::endpoints::EndpointCount)| EndpointReport {
        endpoint: name.to_owned(),
        requests: count.requests,
        blocked: count.blocked[..sets].to_vec(),
    };
    shown.chain(others).map(row).collect()
}

fn series(replay: &Replay, sets: &[RuleSetReport]) -> SeriesReport {
    let steps = &replay.steps;
    let mut rules: Vec<(u64, RuleSeries)> = Vec::new();
    for (place, set) in replay.sets.iter().enumerate() {
        for (rule, row) in set.tally.rows().iter().enumerate().filter(|(_, row)| row.blocked > 0) {
            let blocked =
                steps.steps.iter().map(|step| step.by_rule[place].get(rule).copied().unwrap_or_default());
            let (rule_set, rule) = (sets[place].name.clone(), row.limit.name.to_string());
            rules.push((row.blocked, RuleSeries { rule_set, rule, blocked: blocked.collect() }));
        }
    }
    rules.sort_by(|(a, _), (b, _)| b.cmp(a));
    SeriesReport {
        step_seconds: steps.length,
        start: format_time(steps.start()),
        requests: steps.steps.iter().map(|step| step.requests).collect(),
        blocked: (0..sets.len())
            .map(|set| steps.steps.iter().map(|step| step.blocked[set]).collect())
            .collect(),
        rules: rules.into_iter().take(RULE_SERIES_SHOWN).map(|(_, series)| series).collect(),
    }
}
