//! Charts as inline SVG, each with a description for screen readers.

use std::fmt::Write as _;

use super::escape;
use crate::report::SeriesReport;
use crate::words::number;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 220.0;
/// Margins for the numbers on the left and the times below.
const LEFT: f64 = 100.0;
const BOTTOM: f64 = 24.0;
const TOP: f64 = 10.0;

/// Returns the chart of requests over time: blocked ones are stacked on allowed ones.
pub(super) fn over_time(series: &SeriesReport, blocked: &[u64], what: &str) -> String {
    let most = series.requests.iter().copied().max().unwrap_or_default().max(1);
    let total: u64 = blocked.iter().sum();
    let peak = blocked.iter().enumerate().max_by_key(|(place, count)| (**count, usize::MAX - place));
    let peak = peak.filter(|(_, count)| **count > 0).map(|(place, count)| {
        format!(" The maximum is {} in the step that starts at {}.", number(*count), step_time(series, place))
    });
    let description = format!(
        "{what}: {} steps of {} seconds from {}, up to {} requests each; {} requests blocked in total.{}",
        series.requests.len(),
        number(series.step_seconds),
        series.start,
        number(most),
        number(total),
        peak.unwrap_or_default()
    );
    let mut svg = open(HEIGHT, &description);
    axes(&mut svg, series, most);
    let step = (WIDTH - LEFT) / series.requests.len().max(1) as f64;
    let full = HEIGHT - TOP - BOTTOM;
    for (place, (requests, blocked)) in series.requests.iter().zip(blocked).enumerate() {
        let left = LEFT + place as f64 * step;
        let height = |count: u64| count as f64 / most as f64 * full;
        let passed = height(requests.saturating_sub(*blocked));
        bar(&mut svg, "allowed", (left, HEIGHT - BOTTOM - passed), (step, passed));
        bar(&mut svg, "blocked", (left, HEIGHT - BOTTOM - height(*requests)), (step, height(*blocked)));
    }
    svg.push_str("</svg>");
    svg
}

/// Returns the chart of requests over the limit of one rule over time.
pub(super) fn rule_over_time(series: &SeriesReport, blocked: &[u64], rule: &str) -> String {
    let most = blocked.iter().copied().max().unwrap_or_default().max(1);
    let description =
        format!("Requests over the limit of {rule} over time: up to {} in one step.", number(most));
    let height = HEIGHT / 2.0;
    let mut svg = open(height, &description);
    let step = (WIDTH - LEFT) / blocked.len().max(1) as f64;
    let _ = write!(
        svg,
        r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
        LEFT - 8.0,
        TOP + 10.0,
        number(most)
    );
    line(&mut svg, height - BOTTOM);
    times(&mut svg, series, height);
    for (place, count) in blocked.iter().enumerate() {
        let tall = *count as f64 / most as f64 * (height - TOP - BOTTOM);
        bar(&mut svg, "blocked", (LEFT + place as f64 * step, height - BOTTOM - tall), (step, tall));
    }
    svg.push_str("</svg>");
    svg
}

fn open(height: f64, description: &str) -> String {
    let description = escape(description);
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{description}"><title>{description}</title>"#
    )
}

fn bar(svg: &mut String, class: &str, (left, top): (f64, f64), (width, height): (f64, f64)) {
    if width > 0.0 && height > 0.0 {
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{left:.1}" y="{top:.1}" width="{width:.2}" height="{height:.1}"/>"#
        );
    }
}

fn line(svg: &mut String, height: f64) {
    let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{height}" y2="{height}"/>"#);
}

fn axes(svg: &mut String, series: &SeriesReport, most: u64) {
    for part in 0..=2_u64 {
        let height = HEIGHT - BOTTOM - part as f64 / 2.0 * (HEIGHT - TOP - BOTTOM);
        line(svg, height);
        let count = number(most * part / 2);
        let _ =
            write!(svg, r#"<text x="{}" y="{}" text-anchor="end">{count}</text>"#, LEFT - 8.0, height + 4.0);
    }
    times(svg, series, HEIGHT);
}

/// Adds the times of the first step, the middle one and the last.
fn times(svg: &mut String, series: &SeriesReport, height: f64) {
    let last = series.requests.len().saturating_sub(1);
    for (place, x, anchor) in
        [(0, LEFT, "start"), (last / 2, (WIDTH + LEFT) / 2.0, "middle"), (last, WIDTH, "end")]
    {
        let time = step_time(series, place);
        let _ = write!(svg, r#"<text x="{x}" y="{}" text-anchor="{anchor}">{time}</text>"#, height - 6.0);
    }
}

fn step_time(series: &SeriesReport, place: usize) -> String {
    let start = crate::time::LogTime::parse(&series.start).map(|time| time.at).unwrap_or_default();
    let offset = std::time::Duration::from_secs(series.step_seconds * place as u64);
    crate::time::format_time(start.saturating_add(offset)).get(..16).unwrap_or_default().replace('T', " ")
}
