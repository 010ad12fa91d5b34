//! The conclusion of a report, in a few sentences.

use std::time::Duration;

use crate::report::{ComparisonReport, DimensionReport, LogReport, RuleSetReport};
use crate::time::format_duration;
use crate::words::{number, percent, plural};

/// Returns the conclusion as sentences.
pub(super) fn conclude(
    log: &LogReport,
    sets: &[RuleSetReport],
    comparison: Option<&ComparisonReport>,
) -> Vec<String> {
    let mut sentences: Vec<String> = out_of_order(log).into_iter().collect();
    sentences.extend(sets.iter().map(|set| of_set(log, set, sets.len() > 1)));
    if let (Some(comparison), [a, b]) = (comparison, sets) {
        sentences.push(difference(comparison, a, b));
    }
    sentences
}

/// Returns the reason why the other sentences are not reliable, if there is one.
fn out_of_order(log: &LogReport) -> Option<String> {
    let most = Duration::from_secs_f64(log.late_seconds_most);
    log.out_of_order.then(|| {
        format!(
            "These numbers are not reliable: the log is not sorted by time. {} of requests are older than an earlier line, by up to {}.",
            percent(log.late_requests as f64 / log.requests.max(1) as f64),
            format_duration(most)
        )
    })
}

fn of_set(log: &LogReport, set: &RuleSetReport, named: bool) -> String {
    let mut who = if named { format!("Rules {}", set.name) } else { "These rules".to_owned() };
    if set.shadow_enforced {
        who.push_str(", with shadow rules enforced,");
    }
    let watched = match set.would_block {
        0 => String::new(),
        count => format!(
            " Rules in shadow mode would have blocked {} more; use --enforce-shadow to list the customers.",
            requests(count)
        ),
    };
    if set.blocked == 0 {
        return format!("{who} would have blocked none of the {} requests.{watched}", number(log.requests));
    }
    let hit: Vec<String> = set
        .blocked_customers
        .iter()
        .filter(|dimension| dimension.blocked > 0)
        .map(|dimension| {
            format!("{} of {}", number(dimension.blocked), plural(dimension.customers, &dimension.dimension))
        })
        .collect();
    let regular: Vec<&DimensionReport> =
        set.blocked_customers.iter().filter(|dimension| dimension.regular_hurt > 0).collect();
    let regular = match regular.as_slice() {
        [] => "none of them is a regular customer".to_owned(),
        some => {
            let often = counts(some, |each| each.regular_often).map(|who| format!("{who} often"));
            let seldom = counts(some, |each| each.regular_hurt - each.regular_often)
                .map(|who| format!("{who} occasionally"));
            let each: Vec<String> = often.into_iter().chain(seldom).collect();
            format!("regular customers among them: {}", each.join(", "))
        }
    };
    let every: Vec<&DimensionReport> = set.blocked_customers.iter().collect();
    let outliers = counts(&every, |each| each.outliers)
        .map_or(String::new(), |who| format!("; outliers that want far more than the limit: {who}"));
    format!(
        "{who} would have blocked {} of requests ({} of {}): {}; {regular}{outliers}.{watched}",
        percent(set.blocked_share),
        number(set.blocked),
        number(log.requests),
        hit.join(" and ")
    )
}

/// Returns `3 users, 1 ip`, or `None` if all counts are 0.
fn counts(dimensions: &[&DimensionReport], of: impl Fn(&DimensionReport) -> u64) -> Option<String> {
    let counted = dimensions.iter().map(|each| (of(each), &each.dimension)).filter(|(count, _)| *count > 0);
    let each: Vec<String> = counted.map(|(count, dimension)| plural(count, dimension)).collect();
    (!each.is_empty()).then(|| each.join(", "))
}

fn difference(comparison: &ComparisonReport, a: &RuleSetReport, b: &RuleSetReport) -> String {
    let requests_differ = match a.blocked.cmp(&b.blocked) {
        std::cmp::Ordering::Equal => "B blocks as many requests as A".to_owned(),
        std::cmp::Ordering::Less => format!("B blocks {} more than A", requests(b.blocked - a.blocked)),
        std::cmp::Ordering::Greater => format!("B blocks {} fewer than A", requests(a.blocked - b.blocked)),
    };
    let each = comparison.customers.iter().filter(|each| each.only_a + each.only_b > 0).map(|each| {
        let [freed, newly] = [each.only_a, each.only_b].map(|count| plural(count, &each.dimension));
        format!("{freed} would no longer be blocked, {newly} would be newly blocked")
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() {
        return format!("{requests_differ}; the same customers are blocked.");
    }
    format!("{requests_differ}; {}.", each.join("; "))
}

fn requests(count: u64) -> String {
    plural(count, "request")
}
