//! Texts and numbers that all kinds of reports share.

use std::time::Duration;

use crate::report::RuleReport;
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
/// Explains the numbers of the table of needs.
pub(crate) const NEEDED: &str = "The limit or burst that would allow all requests of 99 %, 99.9 % or all of the keys of a rule. It is the peak demand \
    of the keys, computed by the algorithm of the rule without a limit. A burst assumes the rate of the rule. Try a number with --rules-b before you use it.";

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
