//! The report as one self-contained HTML page, without scripts, fonts or external images. It is
//! ordered as it is read: the conclusion, what to change, who is affected, then the evidence.

mod charts;

use std::fmt::Write as _;
use std::time::Duration;

use crate::report::{
    ComparisonReport, CustomerReport, LogReport, NeededReport, Report, RuleReport, RuleSetReport,
};
use crate::time::format_duration;
use crate::words::{
    self, NEEDED, OUTLIER, OUTLIERS, REGULAR, REGULAR_LISTS, blocked_by, limit, not_listed, number, percent,
    plural, suggestion, variant,
};

const STYLE: &str = include_str!("html/style.css");

impl Report {
    /// Returns the report as one HTML page. Contents of the log are escaped.
    pub fn to_html(&self) -> String {
        let mut page = String::with_capacity(64 * 1024);
        let files = escape(&self.log.files.join(", "));
        let warnings = words::warnings(self);
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>Simulated rate limits: {files}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>Simulated rate limits</h1>\n<p class=\"soft\">{files}: {}, {} to {}.</p>\n",
            plural(self.log.requests, "request"),
            time(&self.log.first),
            time(&self.log.last)
        );
        conclusion(self, warnings.len(), &mut page);
        changes(self, &mut page);
        affected(self, &mut page);
        evidence(self, &mut page);
        about_the_log(&self.log, &warnings, &mut page);
        page.push_str("</body>\n</html>\n");
        page
    }
}

/// Escapes a text for HTML, also inside an attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn paragraph(text: &str, page: &mut String) {
    let _ = writeln!(page, "<p>{}</p>", escape(text));
}

fn explanation(text: &str, page: &mut String) {
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(text));
}

fn list(items: impl Iterator<Item = String>, page: &mut String) {
    page.push_str("<ul>\n");
    for item in items {
        let _ = writeln!(page, "<li>{}</li>", escape(&item));
    }
    page.push_str("</ul>\n");
}

/// `2026-11-15 13:55`
fn time(text: &str) -> String {
    escape(&text.get(..16).unwrap_or(text).replace('T', " "))
}

/// The heading of a set of rules, if there are two.
fn heading(report: &Report, set: &RuleSetReport, page: &mut String) {
    if report.rule_sets.len() > 1 {
        let _ = writeln!(page, "<h3>Rules {}: {}</h3>", escape(&set.name), escape(&set.file));
    }
}

fn conclusion(report: &Report, warnings: usize, page: &mut String) {
    page.push_str("<section class=\"conclusion\" aria-label=\"Conclusion\">\n");
    for sentence in &report.conclusion {
        paragraph(sentence, page);
    }
    if warnings > 0 {
        let count = plural(warnings as u64, "warning");
        let _ = writeln!(
            page,
            "<p class=\"warning\"><a href=\"#log\">{count}</a> about the log and the rules.</p>"
        );
    }
    page.push_str("</section>\n");
    for set in &report.rule_sets {
        heading(report, set, page);
        figures(set, page);
    }
}

fn figures(set: &RuleSetReport, page: &mut String) {
    let sum =
        |of: fn(&crate::report::DimensionReport) -> u64| set.blocked_customers.iter().map(of).sum::<u64>();
    let often = sum(|each| each.regular_often);
    let mut figures = vec![
        ("requests allowed", number(set.allowed)),
        ("requests blocked", format!("{} ({})", number(set.blocked), percent(set.blocked_share))),
        ("regular customers blocked often", number(often)),
        ("regular customers blocked occasionally", number(sum(|each| each.regular_hurt) - often)),
        ("outliers blocked", number(sum(|each| each.outliers))),
    ];
    if set.would_block > 0 {
        figures.push(("more would be blocked by shadow rules", number(set.would_block)));
    }
    page.push_str("<div class=\"figures\">\n");
    for (what, value) in figures {
        let _ =
            writeln!(page, "<div class=\"figure\"><b>{value}</b><span class=\"soft\">{what}</span></div>");
    }
    page.push_str("</div>\n");
}

fn changes(report: &Report, page: &mut String) {
    page.push_str("<h2>What to change</h2>\n");
    let mut suggested = false;
    for set in &report.rule_sets {
        heading(report, set, page);
        if set.suggestions.is_empty() {
            paragraph("Nothing: no limit of these rules is too low for a regular customer.", page);
            continue;
        }
        suggested = true;
        list(set.suggestions.iter().map(suggestion), page);
    }
    if suggested {
        explanation(
            "To try a change, edit a copy of the rules and pass it as --rules-b: the report then compares both.",
            page,
        );
    }
}

fn affected(report: &Report, page: &mut String) {
    page.push_str("<h2>Who is affected</h2>\n");
    for set in &report.rule_sets {
        heading(report, set, page);
        if set.regular_hurt.is_empty() {
            paragraph("No regular customer would have been blocked.", page);
        }
        explanation(&format!("A regular customer makes {REGULAR} and is not an outlier."), page);
        for (title, often) in REGULAR_LISTS {
            let listed: Vec<&CustomerReport> =
                set.regular_hurt.iter().filter(|customer| customer.often == often).collect();
            customers(title, &listed, page);
        }
        if !set.outliers.is_empty() {
            customers(OUTLIERS, &set.outliers.iter().collect::<Vec<_>>(), page);
            explanation(OUTLIER, page);
        }
        customers("Other blocked customers", &not_listed(set), page);
    }
    if let Some(comparison) = &report.comparison {
        compare(comparison, page);
    }
}

fn evidence(report: &Report, page: &mut String) {
    page.push_str("<h2>Evidence</h2>\n");
    for (index, set) in report.rule_sets.iter().enumerate() {
        heading(report, set, page);
        page.push_str("<p class=\"soft\"><span class=\"key allowed\"></span>allowed<span class=\"key blocked\"></span>blocked</p>\n");
        let what = format!("Requests over time under rules {}", set.name);
        let chart = charts::over_time(&report.series, &report.series.blocked[index], &what);
        let _ = writeln!(page, "<div class=\"box\">{chart}</div>");
        if set.rules.is_empty() {
            paragraph("No rule applied to any request.", page);
            continue;
        }
        rules(set, page);
        for series in report.series.rules.iter().filter(|series| series.rule_set == set.name) {
            let chart = charts::rule_over_time(&report.series, &series.blocked, &series.rule);
            let _ = writeln!(
                page,
                "<details><summary>Requests over the limit of <b>{}</b> over time</summary><div class=\"box\">{chart}</div></details>",
                escape(&series.rule)
            );
        }
    }
    endpoints(report, page);
}

fn rules(set: &RuleSetReport, page: &mut String) {
    let columns = [
        ("rule", false),
        ("requests", true),
        ("over the limit", true),
        ("keys over the limit", true),
        ("setting", false),
        ("for 99 %", true),
        ("for 99.9 %", true),
        ("for all keys", true),
    ];
    let rows = set.rules.iter().map(|rule| {
        let needed = |of: fn(&NeededReport) -> u64| {
            rule.needed.as_ref().map_or("–".to_owned(), |needed| {
                format!("{}{}", if needed.exact { "" } else { "~" }, number(of(needed)))
            })
        };
        vec![
            described(rule),
            number(rule.requests),
            format!("{} ({})", number(rule.blocked), percent(rule.blocked_share)),
            format!("{} of {}", number(rule.keys_blocked), number(rule.keys)),
            rule.needed.as_ref().map_or("–".to_owned(), |needed| {
                let current = if needed.number == "burst" { rule.burst } else { rule.limit };
                format!("{} {}", needed.number, number(u64::from(current)))
            }),
            needed(|needed| needed.for_99_percent),
            needed(|needed| needed.for_99_9_percent),
            needed(|needed| needed.for_all),
        ]
    });
    table("Results by rule, and settings that would be sufficient", &columns, rows, page);
    explanation(NEEDED, page);
}

/// The name of a rule, what it counts by, and its limit.
fn described(rule: &RuleReport) -> String {
    let shadow = if rule.mode == "shadow" { ", shadow" } else { "" };
    format!("{}{}: by {}, {}{shadow}", rule.name, variant(rule), rule.dimension, limit(rule))
}

fn customers(caption: &str, customers: &[&CustomerReport], page: &mut String) {
    if customers.is_empty() {
        return;
    }
    let compared = customers.iter().any(|customer| customer.blocked_by_other.is_some());
    let mut columns = vec![
        ("customer", false),
        ("blocked", true),
        ("blocked by", false),
        ("needs", true),
        ("has", true),
        ("first and last time", false),
        ("longest block", true),
    ];
    if compared {
        columns.insert(2, ("by the other rules", true));
    }
    let rows = customers.iter().map(|customer| {
        let mut cells = vec![
            format!("{} {}", customer.dimension, customer.identifier),
            format!(
                "{} of {} ({})",
                number(customer.blocked),
                number(customer.requests),
                percent(customer.blocked_share)
            ),
            blocked_by(customer),
            customer.needed.map_or("–".to_owned(), number),
            number(u64::from(customer.available)),
            period(&customer.first_blocked, &customer.last_blocked),
            format_duration(Duration::from_secs_f64(customer.longest_stretch_seconds)),
        ];
        if compared {
            cells.insert(2, customer.blocked_by_other.map_or("–".to_owned(), number));
        }
        cells
    });
    table(caption, &columns, rows, page);
}

/// `11-15 08:27 to 09:30`, with a second date only if it differs.
fn period(first: &str, last: &str) -> String {
    let text = |text: &str, from: usize| text.get(from..16).unwrap_or_default().replace('T', " ");
    let same_day = first.get(..10) == last.get(..10);
    match text(last, if same_day { 11 } else { 5 }) {
        end if first.get(..16) == last.get(..16) || end.is_empty() => text(first, 5),
        end => format!("{} to {end}", text(first, 5)),
    }
}

fn compare(comparison: &ComparisonReport, page: &mut String) {
    page.push_str("<h3>Comparison of A and B</h3>\n");
    let side = |limit: &Option<String>| limit.clone().unwrap_or_else(|| "–".to_owned());
    let rows =
        comparison.rules.iter().map(|change| vec![change.rule.clone(), side(&change.a), side(&change.b)]);
    table("Rules that differ", &[("rule", false), ("A", false), ("B", false)], rows, page);
    let columns = [("dimension", false), ("only by A", true), ("only by B", true), ("by both", true)];
    let rows = comparison.customers.iter().map(|each| {
        vec![each.dimension.clone(), number(each.only_a), number(each.only_b), number(each.both)]
    });
    table("Blocked at least once", &columns, rows, page);
    for (caption, list) in
        [("Blocked by A only", &comparison.only_a), ("Blocked by B only", &comparison.only_b)]
    {
        customers(caption, &list.iter().collect::<Vec<_>>(), page);
    }
}

fn endpoints(report: &Report, page: &mut String) {
    let names = ["blocked by A", "blocked by B"];
    let sets = names.into_iter().take(report.rule_sets.len()).map(|name| (name, true));
    let columns: Vec<(&str, bool)> =
        [("endpoint", false), ("requests", true)].into_iter().chain(sets).collect();
    let rows = report.endpoints.iter().map(|endpoint| {
        let blocked = endpoint.blocked.iter().map(|blocked| number(*blocked));
        [endpoint.endpoint.clone(), number(endpoint.requests)].into_iter().chain(blocked).collect()
    });
    table("Endpoints with the most blocked requests", &columns, rows, page);
}

fn about_the_log(log: &LogReport, warnings: &[String], page: &mut String) {
    page.push_str("<h2 id=\"log\">About the log</h2>\n");
    let fields: Vec<String> =
        log.fields.iter().map(|field| format!("{}={}", field.part, field.field)).collect();
    let spread = if log.spread_over_seconds {
        " Times are whole seconds: requests of one second are spread over it in the order of their lines."
    } else {
        ""
    };
    explanation(
        &format!(
            "{} in format {} with the fields {}.{spread}",
            plural(log.lines, "line"),
            log.format,
            fields.join(", ")
        ),
        page,
    );
    if !warnings.is_empty() {
        list(warnings.iter().map(|warning| format!("Warning: {warning}.")), page);
    }
    if log.broken_lines == 0 {
        return;
    }
    let rows = log.broken_examples.iter().map(|broken| {
        vec![
            broken.file.clone(),
            number(broken.line),
            broken.reason.clone(),
            broken.text.clone().unwrap_or_default(),
        ]
    });
    let columns = [("file", false), ("line", true), ("reason", false), ("text", false)];
    let caption = match log.broken_lines {
        1 => "The line that is not a request".to_owned(),
        count => format!("The first of {} lines that are not requests", number(count)),
    };
    table(&caption, &columns, rows, page);
}

/// Appends a table. Columns of numbers are aligned to the right. On a narrow screen each row is a
/// block in which every cell has the name of its column.
fn table(
    caption: &str,
    columns: &[(&str, bool)],
    rows: impl Iterator<Item = Vec<String>>,
    page: &mut String,
) {
    let class = |right: bool| if right { " class=\"right\"" } else { "" };
    let _ = write!(page, "<div class=\"box\"><table><caption>{}</caption>\n<thead><tr>", escape(caption));
    for (name, right) in columns {
        let _ = write!(page, "<th scope=\"col\"{}>{}</th>", class(*right), escape(name));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for cells in rows {
        page.push_str("<tr>");
        for (cell, (name, right)) in cells.iter().zip(columns) {
            let _ = write!(page, "<td{} data-name=\"{}\">{}</td>", class(*right), escape(name), escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}
