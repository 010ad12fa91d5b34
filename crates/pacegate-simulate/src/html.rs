//! The report as one self-contained HTML page, without scripts, fonts or external images.

mod charts;

use std::fmt::Write as _;
use std::time::Duration;

use crate::report::{ComparisonReport, CustomerReport, LogReport, Report, RuleSetReport};
use crate::time::format_duration;
use crate::words::{NEEDED, REGULAR, REGULAR_LISTS, number, percent, result_cells};

const STYLE: &str = include_str!("html/style.css");

impl Report {
    /// Returns the report as one HTML page. Contents of the log are escaped.
    pub fn to_html(&self) -> String {
        let mut page = String::with_capacity(64 * 1024);
        let title = format!("Simulated rate limits: {}", self.log.files.join(", "));
        let title = escape(&title);
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        if self.log.out_of_order {
            page.push_str("<p class=\"warning\"><b>The log is not sorted by time: these numbers are not reliable.</b></p>\n");
        }
        log(&self.log, &mut page);
        page.push_str("<div class=\"conclusion\">\n");
        for sentence in &self.conclusion {
            let _ = writeln!(page, "<p>{}</p>", escape(sentence));
        }
        page.push_str("</div>\n");
        for (place, set) in self.rule_sets.iter().enumerate() {
            rule_set(self, place, set, &mut page);
        }
        if let Some(comparison) = &self.comparison {
            compare(comparison, &mut page);
        }
        endpoints(self, &mut page);
        broken(&self.log, &mut page);
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

fn log(log: &LogReport, page: &mut String) {
    let fields: Vec<String> =
        log.fields.iter().map(|field| format!("{}={}", field.part, field.field)).collect();
    let spread = if log.spread_over_seconds {
        " Times are whole seconds: requests of one second are spread over it in the order of their lines."
    } else {
        ""
    };
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} requests from {} to {}; {} lines in format {} with the fields {}.{spread}</p>",
        number(log.requests),
        escape(&log.first),
        escape(&log.last),
        number(log.lines),
        escape(&log.format),
        escape(&fields.join(", "))
    );
    warnings(&log.warnings, page);
}

fn warnings(warnings: &[String], page: &mut String) {
    for warning in warnings {
        let _ = writeln!(page, "<p class=\"warning\">Warning: {}.</p>", escape(warning));
    }
}

fn rule_set(report: &Report, place: usize, set: &RuleSetReport, page: &mut String) {
    let _ = writeln!(page, "<h2>Rules {}: {}</h2>", escape(&set.name), escape(&set.file));
    warnings(&set.warnings, page);
    let regular: u64 = set.blocked_customers.iter().map(|each| each.regular_hurt).sum();
    let often: u64 = set.blocked_customers.iter().map(|each| each.regular_often).sum();
    let figures = [
        ("allowed", number(set.allowed)),
        ("blocked", number(set.blocked)),
        ("of requests blocked", percent(set.blocked_share)),
        ("regular customers blocked often", number(often)),
        ("regular customers blocked occasionally", number(regular - often)),
        ("would be blocked by shadow rules", number(set.would_block)),
    ];
    page.push_str("<div class=\"figures\">\n");
    for (what, value) in figures {
        let _ =
            writeln!(page, "<div class=\"figure\"><b>{value}</b><span class=\"soft\">{what}</span></div>");
    }
    page.push_str("</div>\n");
    page.push_str("<p class=\"soft\"><span class=\"key allowed\"></span>allowed<span class=\"key blocked\"></span>blocked</p>\n");
    let what = format!("Requests over time under rules {}", set.name);
    let _ = writeln!(
        page,
        "<div class=\"wide\">{}</div>",
        charts::over_time(&report.series, &report.series.blocked[place], &what)
    );
    if set.rules.is_empty() {
        page.push_str("<p>No rule applied to any request.</p>\n");
        return;
    }
    let _ = writeln!(page, "<div class=\"wide\">{}</div>", charts::by_rule(&set.rules));
    for series in report.series.rules.iter().filter(|series| series.rule_set == set.name) {
        let _ = writeln!(page, "<p>Requests over the limit of <b>{}</b></p>", escape(&series.rule));
        let chart = charts::rule_over_time(&report.series, &series.blocked, &series.rule);
        let _ = writeln!(page, "<div class=\"wide\">{chart}</div>");
    }
    rules(set, page);
    if set.regular_hurt.is_empty() {
        let _ = writeln!(page, "<p>No regular customer ({}) would have been blocked.</p>", escape(REGULAR));
    } else {
        let _ = writeln!(page, "<p class=\"soft\">A regular customer makes {}.</p>", escape(REGULAR));
        for (title, often) in REGULAR_LISTS {
            let listed: Vec<&CustomerReport> =
                set.regular_hurt.iter().filter(|customer| customer.often == often).collect();
            customers(title, &listed, page);
        }
    }
    customers("Most blocked customers", &set.most_blocked.iter().collect::<Vec<_>>(), page);
}

fn rules(set: &RuleSetReport, page: &mut String) {
    let columns = [
        ("rule", false),
        ("by", false),
        ("limit", false),
        ("requests", true),
        ("blocked", true),
        ("share", true),
        ("keys", true),
        ("blocked keys", true),
        ("setting", false),
        ("for 99 %", true),
        ("for 99.9 %", true),
        ("for all", true),
    ];
    let rows = set.rules.iter().map(|rule| {
        let needed = |of: fn(&crate::report::NeededReport) -> u64| {
            rule.needed.as_ref().map_or("–".to_owned(), |needed| {
                format!("{}{}", if needed.exact { "" } else { "~" }, number(of(needed)))
            })
        };
        let needs = [
            rule.needed.as_ref().map_or("–".to_owned(), |needed| needed.number.clone()),
            needed(|needed| needed.for_99_percent),
            needed(|needed| needed.for_99_9_percent),
            needed(|needed| needed.for_all),
        ];
        result_cells(rule).into_iter().chain(needs).collect()
    });
    table("Results by rule, and limits that would be sufficient", &columns, rows, page);
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(NEEDED));
}

fn customers(caption: &str, customers: &[&CustomerReport], page: &mut String) {
    if customers.is_empty() {
        return;
    }
    let compared = customers.iter().any(|customer| customer.blocked_by_other.is_some());
    let mut columns = vec![
        ("customer", false),
        ("requests", true),
        ("blocked", true),
        ("share", true),
        ("first blocked", false),
        ("last blocked", false),
        ("longest block", true),
        ("rule", false),
        ("key", false),
        ("need", true),
        ("of", true),
    ];
    if compared {
        columns.insert(4, ("blocked by the other rules", true));
    }
    let time = |text: &str| text.get(..16).unwrap_or_default().replace('T', " ");
    let rows = customers.iter().map(|customer| {
        let mut cells = vec![
            format!("{} {}", customer.dimension, customer.identifier),
            number(customer.requests),
            number(customer.blocked),
            percent(customer.blocked_share),
            time(&customer.first_blocked),
            time(&customer.last_blocked),
            format_duration(Duration::from_secs_f64(customer.longest_stretch_seconds)),
            customer.rule.clone(),
            customer.key.clone().unwrap_or_else(|| "–".to_owned()),
            customer.needed.map_or("–".to_owned(), number),
            number(u64::from(customer.available)),
        ];
        if compared {
            cells.insert(4, customer.blocked_by_other.map_or("–".to_owned(), number));
        }
        cells
    });
    table(caption, &columns, rows, page);
}

fn compare(comparison: &ComparisonReport, page: &mut String) {
    page.push_str("<h2>Comparison of A and B</h2>\n");
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
    page.push_str("<h2>Endpoints</h2>\n");
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

fn broken(log: &LogReport, page: &mut String) {
    if log.broken_lines == 0 {
        return;
    }
    page.push_str("<h2>Lines that are not requests</h2>\n");
    let rows = log.broken_examples.iter().map(|broken| {
        vec![
            broken.file.clone(),
            number(broken.line),
            broken.reason.clone(),
            broken.text.clone().unwrap_or_default(),
        ]
    });
    let columns = [("file", false), ("line", true), ("reason", false), ("text", false)];
    table(&format!("The first of {}", number(log.broken_lines)), &columns, rows, page);
}

/// Appends a table. Columns of numbers are aligned to the right.
fn table(
    caption: &str,
    columns: &[(&str, bool)],
    rows: impl Iterator<Item = Vec<String>>,
    page: &mut String,
) {
    let class = |right: bool| if right { " class=\"right\"" } else { "" };
    let _ = write!(
        page,
        "<div class=\"wide\" tabindex=\"0\"><table><caption>{}</caption>\n<thead><tr>",
        escape(caption)
    );
    for (name, right) in columns {
        let _ = write!(page, "<th scope=\"col\"{}>{}</th>", class(*right), escape(name));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for cells in rows {
        page.push_str("<tr>");
        for (cell, (_, right)) in cells.iter().zip(columns) {
            let _ = write!(page, "<td{}>{}</td>", class(*right), escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}
