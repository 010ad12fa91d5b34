//! Words and numbers as all reports write them.

use std::time::Duration;

use crate::report::RuleReport;
use crate::time::format_duration;

/// What "regular" means, for every kind of report.
pub(crate) const REGULAR: &str = "at least 20 requests in at least 3 periods of ten minutes";
/// Who is blocked at this share of their requests is blocked often.
pub(crate) const OFTEN: f64 = 0.05;
/// How regular customers are listed, and whether those are the ones that are blocked often.
pub(crate) const REGULAR_LISTS: [(&str, bool); 2] = [
    ("Regular customers who would be blocked often (5 % of their requests or more)", true),
    ("Regular customers who would be blocked now and then (less than 5 %)", false),
];
/// How the numbers of the table of needs were found.
pub(crate) const NEEDED: &str = "What a rule would need so that 99 %, 99.9 % or all of its keys always pass: the most that each key asked for at once, by the \
    rule's own algorithm, with room for everything. A burst is meant at the rule's rate. Try a number with --rules-b before you use it.";

/// Whom a variant of a rule is for, if not for anyone.
pub(crate) fn variant(rule: &RuleReport) -> String {
    match rule.applies_to.as_str() {
        "anyone" | "default" => String::new(),
        other => format!(" [{other}]"),
    }
}

/// `sliding_log 100/min`, with the burst where it is another number.
pub(crate) fn limit(rule: &RuleReport) -> String {
    let window = format_duration(Duration::from_secs_f64(rule.window_seconds));
    // `60/min` says the same as `60/1 min`.
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

/// `0.8 %`; what is there but rounds to nothing says so.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        small if small < 0.01 => "<0.01 %".to_owned(),
        part if part < 1.0 => format!("{part:.2} %"),
        part if part < 10.0 => format!("{part:.1} %"),
        // Not all, unless it is all.
        part if part < 100.0 => format!("{:.0} %", part.min(99.0)),
        _ => "100 %".to_owned(),
    }
}

/// What a rule did, as the cells of a row.
pub(crate) fn what_it_did(rule: &RuleReport) -> [String; 8] {
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
