//! The gist of a report, in a few sentences.

use crate::report::{ComparisonReport, DimensionReport, LogReport, RuleSetReport};
use crate::words::{number, percent};

/// What a reader should take away.
pub(super) fn conclude(
    log: &LogReport,
    sets: &[RuleSetReport],
    comparison: Option<&ComparisonReport>,
) -> Vec<String> {
    let mut sentences: Vec<String> = sets.iter().map(|set| of_set(log, set, sets.len() > 1)).collect();
    if let (Some(comparison), [a, b]) = (comparison, sets) {
        sentences.push(difference(comparison, a, b));
    }
    sentences
}

fn of_set(log: &LogReport, set: &RuleSetReport, named: bool) -> String {
    let who = if named { format!("Rules {}", set.name) } else { "These rules".to_owned() };
    let watched = match set.would_block {
        0 => String::new(),
        count => format!(" Rules that only watch would have blocked {} more.", requests(count)),
    };
    if set.blocked == 0 {
        return format!("{who} would have blocked none of the {} requests.{watched}", number(log.requests));
    }
    let hit: Vec<String> = set
        .blocked_customers
        .iter()
        .filter(|dimension| dimension.blocked > 0)
        .map(|dimension| {
            format!(
                "{} of {} {}s",
                number(dimension.blocked),
                number(dimension.customers),
                dimension.dimension
            )
        })
        .collect();
    let regular: Vec<&DimensionReport> =
        set.blocked_customers.iter().filter(|dimension| dimension.regular_hurt > 0).collect();
    let regular = match regular.as_slice() {
        [] => "no regular customer is among them".to_owned(),
        some => {
            let each = some.iter().map(|each| format!("{} {}s", number(each.regular_hurt), each.dimension));
            format!(
                "among them regular customers who come too fast now and then: {}",
                each.collect::<Vec<_>>().join(", ")
            )
        }
    };
    format!(
        "{who} would have blocked {} of requests ({} of {}): {}; {regular}.{watched}",
        percent(set.blocked_share),
        number(set.blocked),
        number(log.requests),
        hit.join(" and ")
    )
}

fn difference(comparison: &ComparisonReport, a: &RuleSetReport, b: &RuleSetReport) -> String {
    let requests_differ = match a.blocked.cmp(&b.blocked) {
        std::cmp::Ordering::Equal => "B blocks as many requests as A".to_owned(),
        std::cmp::Ordering::Less => format!("B blocks {} more than A", requests(b.blocked - a.blocked)),
        std::cmp::Ordering::Greater => format!("B blocks {} fewer than A", requests(a.blocked - b.blocked)),
    };
    let each = comparison.customers.iter().filter(|each| each.only_a + each.only_b > 0).map(|each| {
        let (freed, newly) = (number(each.only_a), number(each.only_b));
        format!("of {}s, {freed} would no longer be blocked and {newly} would be newly", each.dimension)
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() {
        return format!("{requests_differ}; the same customers are blocked.");
    }
    format!("{requests_differ}; {}.", each.join("; "))
}

fn requests(count: u64) -> String {
    if count == 1 { "1 request".to_owned() } else { format!("{} requests", number(count)) }
}
