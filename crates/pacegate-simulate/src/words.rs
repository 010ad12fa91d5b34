//! Texts and numbers that all kinds of reports share.

use std::time::Duration;

use crate::report::{CustomerReport, Report, RuleReport, RuleSetReport, Suggestion};
use crate::time::format_duration;

/// The definition of a regular customer.
pub(crate) const REGULAR: &str = "at least 20 requests in at least 3 periods of ten minutes";
/// Minimum share of blocked requests of a customer that is blocked often.
pub(crate) const OFTEN: f64 = 0.05;
/// Titles of the lists of regular customers, and whether a list has those blocked often.
pub(crate) const REGULAR_LISTS: [(&str, bool); 2] = [
    ("Regular customers blocked often (5 % of their requests or more)", true),
    ("Regular customers blocked occasionally (less than 5 %)", false),
];
/// Title of the list of outliers.
pub(crate) const OUTLIERS: &str = "Outliers, far above the limit";
/// The definition of an outlier, and what to do about it.
pub(crate) const OUTLIER: &str = "At least half of their requests are blocked, and they want at least 3 times what the rule allows and what its \
    typical key needs. Scrapers and attacks look like this; raise the limit of a customer that does not belong here.";
/// Explains the numbers of the table of needs.
pub(crate) const NEEDED: &str = "The limit or burst that would allow all requests of 99 %, 99.9 % or all of the keys of a rule. It is the peak demand \
    of the keys, computed by the algorithm of the rule without a limit. A burst assumes the rate of the rule. Try a number with --rules-b before you use it.";

/// Returns what to change in a rule, in sentences.
pub(crate) fn suggestion(suggestion: &Suggestion) -> String {
    let Suggestion { rule, setting, current, suggested, customers, outliers, outliers_blocked, .. } =
        suggestion;
    let about = if suggestion.exact { "" } else { "about " };
    let who = match customers {
        1 => "the regular customer".to_owned(),
        _ => format!("all {} regular customers", number(*customers)),
    };
    let others = match (outliers, outliers - outliers_blocked) {
        (0, _) => String::new(),
        (_, 0) => format!(" {} stays blocked.", plural(*outliers, "outlier")).replace("s stays", "s stay"),
        (_, freed) => format!(" It would also allow all requests of {}.", plural(freed, "outlier")),
    };
    format!(
        "{rule}: raise {setting} from {} to {about}{}. That allows all requests of {who} that this rule blocks.{others}",
        number(u64::from(*current)),
        number(*suggested)
    )
}

/// Returns the warnings of a report: first those about the log, then those about the rules, each
/// once.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    let mut found = report.log.warnings.clone();
    let sets = &report.rule_sets;
    for set in sets {
        for warning in &set.warnings {
            let everywhere = sets.iter().all(|other| other.warnings.contains(warning));
            let warning = if everywhere { warning.clone() } else { format!("rules {}: {warning}", set.name) };
            if !found.contains(&warning) {
                found.push(warning);
            }
        }
    }
    found
}

/// Returns the most blocked customers that are in no other list.
pub(crate) fn not_listed(set: &RuleSetReport) -> Vec<&CustomerReport> {
    let is = |a: &CustomerReport, b: &CustomerReport| {
        (&a.dimension, &a.identifier) == (&b.dimension, &b.identifier)
    };
    let listed = |customer: &CustomerReport| {
        set.regular_hurt.iter().chain(&set.outliers).any(|other| is(customer, other))
    };
    set.most_blocked.iter().filter(|customer| !listed(customer)).collect()
}

/// Returns the rule that blocked a customer, and its key unless the key is the customer: several
/// customers can share an address.
pub(crate) fn blocked_by(customer: &CustomerReport) -> String {
    let own = format!("{} {}", customer.dimension, customer.identifier);
    match &customer.key {
        Some(key) if *key != own => {
            let key = key.split_once(' ').map_or(key.as_str(), |(_, identifier)| identifier);
            format!("{} ({key})", customer.rule)
        }
        _ => customer.rule.clone(),
    }
}

/// Returns `1 request` or `2 requests`.
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{} {what}{}", number(count), if count == 1 { "" } else { "s" })
}

/// Returns what a variant of a rule applies to, unless it applies to all.
pub(crate) fn variant(rule: &RuleReport) -> String {
    match rule.applies_to.as_str() {
        "anyone" | "default" => String::new(),
        other => format!(" [{other}]"),
    }
}

/// Returns `sliding_log 100/min`, with the burst if it differs from the limit.
pub(crate) fn limit(rule: &RuleReport) -> String {
    let window = format_duration(Duration::from_secs_f64(rule.window_seconds));
    // `60/min` is the same as `60/1 min`.
    let window = window.strip_prefix("1 ").unwrap_or(&window);
    let burst = if rule.burst == rule.limit { String::new() } else { format!(", burst {}", rule.burst) };
    format!("{} {}/{window}{burst}", rule.algorithm, rule.limit)
}

/// `1,234,567`
pub(crate) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `first 1,000 lines`
pub(crate) fn first_lines(count: usize) -> String {
    if count == 1 { "first line".to_owned() } else { format!("first {} lines", number(count as u64)) }
}

/// Returns a share as `0.8 %`. A share that rounds to 0 is `<0.01 %`.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        small if small < 0.01 => "<0.01 %".to_owned(),
        part if part < 1.0 => format!("{part:.2} %"),
        part if part < 10.0 => format!("{part:.1} %"),
        // 100 % is only shown if it is exact.
        part if part < 100.0 => format!("{:.0} %", part.min(99.0)),
        _ => "100 %".to_owned(),
    }
}

/// Returns the results of a rule, as the cells of a row.
pub(crate) fn result_cells(rule: &RuleReport) -> [String; 8] {
    let shadow = if rule.mode == "shadow" { " (shadow)" } else { "" };
    [
        format!("{}{}{shadow}", rule.name, variant(rule)),
        rule.dimension.clone(),
        limit(rule),
        number(rule.requests),
        number(rule.blocked),
        percent(rule.blocked_share),
        number(rule.keys),
        number(rule.keys_blocked),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        let rows = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        for (value, expected) in rows {
            assert_eq!(number(value), expected);
        }
        let rows = [
            (0.0, "0 %"),
            (0.00001, "<0.01 %"),
            (0.008, "0.80 %"),
            (0.034, "3.4 %"),
            (0.5, "50 %"),
            (0.9999, "99 %"),
            (1.0, "100 %"),
        ];
        for (share, expected) in rows {
            assert_eq!(percent(share), expected);
        }
    }
}
