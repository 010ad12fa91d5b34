//! The report as text, at most 100 columns wide.

mod table;

use std::time::Duration;

use self::table::{Align, Table};
use crate::report::{ComparisonReport, CustomerReport, Report, RuleReport, RuleSetReport};
use crate::time::format_duration;
use crate::words::{
    self, NEEDED, OUTLIER, OUTLIERS, REGULAR, REGULAR_LISTS, blocked_by, not_listed, number, percent, plural,
    result_cells, suggestion, variant,
};

/// Maximum number of entries of a list. JSON and HTML have more.
const CUSTOMERS_SHOWN: usize = 10;
const ENDPOINTS_SHOWN: usize = 10;
const WIDTH: usize = 100;

impl Report {
    /// Returns the report as text for a terminal.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        log(self, &mut text);
        totals(self, &mut text);
        for set in &self.rule_sets {
            rule_set(set, self.rule_sets.len() > 1, &mut text);
        }
        if let Some(comparison) = &self.comparison {
            compare(comparison, &mut text);
        }
        endpoints(self, &mut text);
        changes(self, &mut text);
        text.push('\n');
        for sentence in &self.conclusion {
            wrapped(sentence, "", &mut text);
        }
        text
    }
}

fn log(report: &Report, text: &mut String) {
    let log = &report.log;
    let files = log.files.join(", ");
    let span = format_duration(Duration::from_secs_f64(log.span_seconds.floor()));
    text.push_str(&format!("{files} ({}): {} in {span}\n", log.format, plural(log.requests, "request")));
    text.push_str(&format!("  from {} to {}\n", log.first, log.last));
    let fields: Vec<String> =
        log.fields.iter().map(|field| format!("{}={}", field.part, field.field)).collect();
    wrapped(&format!("fields: {}", fields.join(", ")), "  ", text);
    if log.spread_over_seconds {
        text.push_str("  times are whole seconds: requests of one second are spread over it in the order of their lines\n");
    }
    if log.left_out_by_status > 0 {
        text.push_str(&format!("  {} ignored by --only-status\n", plural(log.left_out_by_status, "request")));
    }
    if log.broken_lines > 0 {
        let lines = if log.broken_lines == 1 { "line is not a request" } else { "lines are not requests" };
        text.push_str(&format!("  {} {lines}:\n", number(log.broken_lines)));
        for broken in &log.broken_examples {
            let excerpt = broken.text.as_ref().map(|line| format!(": {line}")).unwrap_or_default();
            text.push_str(&format!("    {} line {}: {}{excerpt}\n", broken.file, broken.line, broken.reason));
        }
    }
    for warning in words::warnings(report) {
        wrapped(&format!("warning: {warning}"), "  ", text);
    }
}

fn changes(report: &Report, text: &mut String) {
    for set in report.rule_sets.iter().filter(|set| !set.suggestions.is_empty()) {
        let of = if report.rule_sets.len() > 1 { format!("{}: ", set.name) } else { String::new() };
        text.push_str(&format!("\n{of}What to change\n"));
        for each in &set.suggestions {
            wrapped(&suggestion(each), "  ", text);
        }
    }
}

fn totals(report: &Report, text: &mut String) {
    text.push('\n');
    let mut table = Table::new(&[
        ("rules", Align::Left),
        ("file", Align::Left),
        ("allowed", Align::Right),
        ("blocked", Align::Right),
        ("share", Align::Right),
        ("blocked in shadow", Align::Right),
    ]);
    for set in &report.rule_sets {
        table.row(vec![
            set.name.clone(),
            set.file.clone(),
            number(set.allowed),
            number(set.blocked),
            percent(set.blocked_share),
            number(set.would_block),
        ]);
    }
    table.render(text);
}

fn rule_set(set: &RuleSetReport, named: bool, text: &mut String) {
    let of = if named { format!("{}: ", set.name) } else { String::new() };
    text.push_str(&format!("\n{of}Results by rule\n"));
    if set.rules.is_empty() {
        text.push_str("  no rule applied to any request\n");
        return;
    }
    rules(&set.rules, text);
    text.push_str(&format!("\n{of}Limits that would be sufficient\n"));
    needs(&set.rules, text);
    let mut explained = false;
    for (title, often) in REGULAR_LISTS {
        let listed: Vec<&CustomerReport> =
            set.regular_hurt.iter().filter(|customer| customer.often == often).collect();
        if !listed.is_empty() {
            text.push_str(&format!("\n{of}{title}\n"));
            if !std::mem::replace(&mut explained, true) {
                wrapped(&format!("A regular customer makes {REGULAR}."), "  ", text);
            }
            let count = total(set, |each| each.regular_often);
            let count = if often { count } else { total(set, |each| each.regular_hurt) - count };
            customers(&listed, count, text);
        }
    }
    if !set.outliers.is_empty() {
        text.push_str(&format!("\n{of}{OUTLIERS}\n"));
        wrapped(OUTLIER, "  ", text);
        customers(&set.outliers.iter().collect::<Vec<_>>(), total(set, |each| each.outliers), text);
    }
    let others = not_listed(set);
    if !others.is_empty() {
        text.push_str(&format!("\n{of}Other blocked customers\n"));
        let count = total(set, |each| each.blocked - each.regular_hurt - each.outliers);
        customers(&others, count, text);
    }
}

fn total(set: &RuleSetReport, of: fn(&crate::report::DimensionReport) -> u64) -> u64 {
    set.blocked_customers.iter().map(of).sum()
}

fn rules(rules: &[RuleReport], text: &mut String) {
    let mut table = Table::new(&[
        ("rule", Align::Left),
        ("by", Align::Left),
        ("limit", Align::Left),
        ("requests", Align::Right),
        ("blocked", Align::Right),
        ("share", Align::Right),
        ("keys", Align::Right),
        ("blocked", Align::Right),
    ]);
    for rule in rules {
        table.row(result_cells(rule).into());
    }
    table.render(text);
}

fn needs(rules: &[RuleReport], text: &mut String) {
    let mut table = Table::new(&[
        ("rule", Align::Left),
        ("setting", Align::Left),
        ("is", Align::Right),
        ("for 99 %", Align::Right),
        ("for 99.9 %", Align::Right),
        ("for all keys", Align::Right),
    ]);
    let mut close = false;
    for rule in rules {
        let Some(needed) = &rule.needed else { continue };
        close |= !needed.exact;
        let mark = if needed.exact { "" } else { "~" };
        let is = if needed.number == "burst" { rule.burst } else { rule.limit };
        table.row(vec![
            format!("{}{}", rule.name, variant(rule)),
            needed.number.clone(),
            number(u64::from(is)),
            format!("{mark}{}", number(needed.for_99_percent)),
            format!("{mark}{}", number(needed.for_99_9_percent)),
            format!("{mark}{}", number(needed.for_all)),
        ]);
    }
    table.render(text);
    wrapped(NEEDED, "  ", text);
    if close {
        text.push_str("  ~ estimated with a sliding counter, which approximates a sliding log.\n");
    }
}

fn customers(customers: &[&CustomerReport], total: u64, text: &mut String) {
    let compared = customers.iter().any(|customer| customer.blocked_by_other.is_some());
    let mut columns = vec![
        ("customer", Align::Left),
        ("requests", Align::Right),
        ("blocked", Align::Right),
        ("share", Align::Right),
        ("first", Align::Left),
        ("longest", Align::Right),
        ("rule", Align::Left),
        ("need", Align::Right),
        ("of", Align::Right),
    ];
    if compared {
        columns.insert(4, ("other", Align::Right));
    }
    let mut table = Table::new(&columns);
    for customer in customers.iter().take(CUSTOMERS_SHOWN) {
        let longest = format_duration(Duration::from_secs_f64(customer.longest_stretch_seconds));
        let mut cells = vec![
            format!("{} {}", customer.dimension, customer.identifier),
            number(customer.requests),
            number(customer.blocked),
            percent(customer.blocked_share),
            customer.first_blocked.get(5..16).unwrap_or_default().replace('T', " "),
            longest,
            blocked_by(customer),
            customer.needed.map_or("–".to_owned(), number),
            number(u64::from(customer.available)),
        ];
        if compared {
            cells.insert(4, customer.blocked_by_other.map_or("–".to_owned(), number));
        }
        table.row(cells);
    }
    table.render(text);
    if total > CUSTOMERS_SHOWN as u64 {
        text.push_str(&format!("  … {} in total; --json and --html list up to 50\n", number(total)));
    }
}

fn compare(comparison: &ComparisonReport, text: &mut String) {
    text.push_str("\nComparison of A and B\n");
    let mut table = Table::new(&[("rule", Align::Left), ("A", Align::Left), ("B", Align::Left)]);
    for change in &comparison.rules {
        let side = |limit: &Option<String>| limit.clone().unwrap_or_else(|| "–".to_owned());
        table.row(vec![change.rule.clone(), side(&change.a), side(&change.b)]);
    }
    if comparison.rules.is_empty() {
        text.push_str("  the rules are the same\n");
    } else {
        table.render(text);
        text.push('\n');
    }
    let mut table = Table::new(&[
        ("blocked at least once", Align::Left),
        ("only by A", Align::Right),
        ("only by B", Align::Right),
        ("by both", Align::Right),
    ]);
    for each in &comparison.customers {
        table.row(vec![each.dimension.clone(), number(each.only_a), number(each.only_b), number(each.both)]);
    }
    table.render(text);
}

fn endpoints(report: &Report, text: &mut String) {
    text.push_str("\nEndpoints\n");
    let mut columns = vec![("endpoint", Align::Left), ("requests", Align::Right)];
    columns.extend(
        ["blocked by A", "blocked by B"]
            .into_iter()
            .take(report.rule_sets.len())
            .map(|name| (name, Align::Right)),
    );
    let mut table = Table::new(&columns);
    for endpoint in report.endpoints.iter().take(ENDPOINTS_SHOWN) {
        let mut cells = vec![endpoint.endpoint.clone(), number(endpoint.requests)];
        cells.extend(endpoint.blocked.iter().map(|blocked| number(*blocked)));
        table.row(cells);
    }
    table.render(text);
}

/// Wraps a sentence at the width.
fn wrapped(sentence: &str, indent: &str, text: &mut String) {
    let mut line = indent.to_owned();
    for word in sentence.split_whitespace() {
        if line.len() > indent.len() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = format!("{indent}  ");
            line.truncate(indent.len().max(2));
        }
        if line.trim().is_empty() {
            line.push_str(word);
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fit_the_width() {
        let mut text = String::new();
        wrapped(&"word ".repeat(100), "  ", &mut text);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH && line.starts_with("  word")),
            "{text}"
        );
        assert_eq!(text.split_whitespace().count(), 100);
    }
}
