//! The lines of a frame, for terminals and for plain output.

use std::time::Duration;

use unicode_width::UnicodeWidthChar;

use super::figures::{Figures, KeyFigures, RuleFigures, StoreFigures};
use crate::bench::count;

/// Maximum number of stores shown on a terminal.
const STORES_SHOWN: usize = 4;

/// The style of a piece of text on a terminal with colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// A table header.
    Head,
    Good,
    Bad,
}

/// A line of styled pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(pub(super) Vec<(Style, String)>);

impl Line {
    fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    fn plain(text: impl Into<String>) -> Self {
        Self::default().with(Style::Plain, text)
    }

    fn head(text: impl Into<String>) -> Self {
        Self::default().with(Style::Head, text)
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// The sort order of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Blocked,
    Allowed,
    Name,
}

/// The latest figures, and the change since the previous ones.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) server: String,
    pub(super) sort: Sort,
    /// Why the connection was lost, if it was.
    pub(super) lost: Option<String>,
    figures: Figures,
    /// The previous totals of rules, and the time since.
    before: Option<(Vec<RuleFigures>, Duration)>,
}

/// A rule with its rates per second.
struct RuleRates<'a> {
    rule: &'a RuleFigures,
    allowed: f64,
    blocked: f64,
    shadow: f64,
}

impl View {
    pub(super) fn new(server: String) -> Self {
        Self { server, ..Self::default() }
    }

    /// Sets new figures, `elapsed` after the previous ones.
    pub(super) fn update(&mut self, figures: Figures, elapsed: Option<Duration>) {
        let before = std::mem::replace(&mut self.figures, figures);
        // Totals from before a reconnect cannot be compared.
        self.before = elapsed.filter(|_| self.lost.is_none()).map(|elapsed| (before.rules, elapsed));
        self.lost = None;
    }

    /// Returns the lines, at most `width` columns wide and at most `height` of them if it is given.
    pub(super) fn lines(&self, width: usize, height: Option<usize>) -> Vec<Line> {
        let mut lines = self.summary();
        lines.push(Line::default());
        let figures = &self.figures;
        let stores = figures.stores.len().min(height.map_or(usize::MAX, |_| STORES_SHOWN));
        lines.push(Line::head(row(["STORE", "HEALTH", "BREAKER", "KEYS", "ERRORS", "DEGRADED"])));
        lines.extend(figures.stores.iter().take(stores).map(store_line));
        lines.push(Line::default());

        let keys = figures.heaviest.len().max(figures.most_blocked.len());
        // Two headers, an empty line, and the help line.
        let left = height.map_or(usize::MAX, |height| height.saturating_sub(lines.len() + 4));
        let keys = keys.min((left / 2).max(left.saturating_sub(figures.rules.len())));
        let rules = self.rules();
        lines.push(Line::head(rule_row([
            "RULE",
            "ALGORITHM",
            "ALLOWED/s",
            "BLOCKED/s",
            "SHADOW/s",
            "BLOCKED",
        ])));
        lines.extend(rules.iter().take(left - keys.min(left)).map(rule_line));
        lines.push(Line::default());
        let half = width.saturating_sub(2) / 2;
        let head = |name| fit(name, half.saturating_sub(20)) + "   ALLOWED   BLOCKED";
        lines.push(Line::head(format!("{}  {}", head("HEAVIEST KEYS"), head("MOST BLOCKED KEYS"))));
        for index in 0..keys {
            let side = |list: &[KeyFigures]| {
                list.get(index).map_or_else(|| " ".repeat(half), |key| key_text(key, half))
            };
            lines.push(Line::plain(format!("{}  {}", side(&figures.heaviest), side(&figures.most_blocked))));
        }
        if let Some(height) = height {
            lines.truncate(height.saturating_sub(1));
            lines.resize_with(height.saturating_sub(1), Line::default);
            lines.push(self.help());
        }
        lines.into_iter().map(|line| cut(line, width)).collect()
    }

    fn summary(&self) -> Vec<Line> {
        let figures = &self.figures;
        let uptime = humantime::format_duration(Duration::from_secs(figures.uptime_seconds));
        let state = match (&self.lost, figures.ready) {
            (Some(_), _) => (Style::Bad, "reconnecting…"),
            (None, true) => (Style::Good, "ready"),
            (None, false) => (Style::Bad, "not ready"),
        };
        let first = Line::plain(format!("pacegate {}  {}  ", clean(&figures.version), self.server))
            .with(state.0, state.1)
            .with(Style::Plain, format!("  up {uptime}  {} connections", count(figures.connections)));
        let all = figures.allowed_per_second + figures.blocked_per_second;
        let part = if all > 0.0 { 100.0 * figures.blocked_per_second / all } else { 0.0 };
        let degraded = if figures.degraded_per_second > 0.0 { Style::Bad } else { Style::Plain };
        let second = Line::default()
            .with(Style::Good, format!("{} allowed/s", rate(figures.allowed_per_second)))
            .with(Style::Plain, "   ")
            .with(Style::Bad, format!("{} blocked/s", rate(figures.blocked_per_second)))
            .with(Style::Plain, format!(" ({part:.1} %)   "))
            .with(degraded, format!("{} degraded/s", rate(figures.degraded_per_second)));
        let time = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3} ms"));
        let latency = figures.latency;
        let third = match &self.lost {
            Some(reason) => Line::default().with(Style::Bad, clean(reason)),
            None => Line::plain(format!(
                "latency: p50 {}   p95 {}   p99 {}",
                time(latency.p50_ms),
                time(latency.p95_ms),
                time(latency.p99_ms)
            )),
        };
        vec![first, second, third]
    }

    fn rules(&self) -> Vec<RuleRates<'_>> {
        let of = |rule: &RuleFigures| {
            let (before, seconds) = match &self.before {
                // A new rule has counted from zero.
                Some((before, elapsed)) => {
                    let same = |old: &&RuleFigures| old.rule == rule.rule && old.algorithm == rule.algorithm;
                    let known = before.iter().find(same);
                    (known.cloned().unwrap_or_default(), elapsed.as_secs_f64().max(0.001))
                }
                None => (rule.clone(), 1.0),
            };
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            (
                rate(rule.allowed, before.allowed),
                rate(rule.blocked, before.blocked),
                rate(rule.shadow_blocked, before.shadow_blocked),
            )
        };
        let rates = self.figures.rules.iter().map(|rule| {
            let (allowed, blocked, shadow) = of(rule);
            RuleRates { rule, allowed, blocked, shadow }
        });
        let mut rules: Vec<RuleRates<'_>> = rates.collect();
        rules.sort_by(|left, right| {
            let by_name = || left.rule.rule.cmp(&right.rule.rule);
            let blocked = || (right.blocked, right.rule.blocked as f64);
            let allowed = || (right.allowed, right.rule.allowed as f64);
            match self.sort {
                Sort::Name => by_name(),
                Sort::Blocked => {
                    descending((left.blocked, left.rule.blocked as f64), blocked()).then_with(by_name)
                }
                Sort::Allowed => {
                    descending((left.allowed, left.rule.allowed as f64), allowed()).then_with(by_name)
                }
            }
        });
        rules
    }

    fn help(&self) -> Line {
        let mut line = Line::plain("q quits   sort rules by ");
        let sorts = [(Sort::Blocked, "b locked"), (Sort::Allowed, "a llowed"), (Sort::Name, "n ame")];
        for (sort, text) in sorts {
            let style = if sort == self.sort { Style::Head } else { Style::Plain };
            let (key, rest) = text.split_once(' ').unwrap_or((text, ""));
            line = line.with(style, format!("[{key}]{rest}")).with(Style::Plain, " ");
        }
        line
    }
}

fn descending(left: (f64, f64), right: (f64, f64)) -> std::cmp::Ordering {
    right.0.total_cmp(&left.0).then(right.1.total_cmp(&left.1))
}

fn row(columns: [&str; 6]) -> String {
    let [name, health, breaker, keys, errors, degraded] = columns;
    format!("{}  {health:<9}  {breaker:<10}  {keys:>9}  {errors:>9}  {degraded:>9}", fit(name, 22))
}

fn store_line(store: &StoreFigures) -> Line {
    let keys = store.keys.map_or("-".to_owned(), count);
    let (health, breaker) = (fit(&store.health, 9), fit(&store.breaker, 10));
    let good = store.health == "up" && store.breaker == "closed";
    let text = row([
        &store.name,
        health.trim_end(),
        breaker.trim_end(),
        &keys,
        &count(store.errors),
        &count(store.degraded),
    ]);
    Line::default().with(if good { Style::Plain } else { Style::Bad }, text)
}

fn rule_row(columns: [&str; 6]) -> String {
    let [name, algorithm, allowed, blocked, shadow, total] = columns;
    format!("{}  {}  {allowed:>9}  {blocked:>9}  {shadow:>8}  {total:>10}", fit(name, 17), fit(algorithm, 15))
}

fn rule_line(rates: &RuleRates<'_>) -> Line {
    let RuleRates { rule, allowed, blocked, shadow } = rates;
    let (allowed, total) = (rate(*allowed), count(rule.blocked));
    let text = rule_row([&rule.rule, &rule.algorithm, &allowed, &rate(*blocked), &rate(*shadow), &total]);
    Line::default().with(if *blocked > 0.0 { Style::Bad } else { Style::Plain }, text)
}

fn key_text(key: &KeyFigures, width: usize) -> String {
    let name = fit_middle(&format!("{} {}", key.dimension, key.identifier), width.saturating_sub(20));
    format!("{name}{:>10}{:>10}", count(key.allowed), count(key.blocked))
}

fn rate(rate: f64) -> String {
    if rate >= 100.0 || rate == 0.0 { count(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// Replaces a character without a width. Names are untrusted: they must not control the terminal.
fn shown(letter: char) -> char {
    if letter.width().is_some_and(|width| width > 0) { letter } else { '\u{fffd}' }
}

fn clean(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// Text in exactly `width` columns. Text that is too long loses its middle: long ids often differ
/// only at their ends.
fn fit_middle(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().map(shown).collect();
    let columns = |letter: &char| letter.width().unwrap_or(1);
    if width < 3 || letters.iter().map(columns).sum::<usize>() <= width {
        return fit(text, width);
    }
    let count = |letters: &mut dyn Iterator<Item = &char>, width: usize| {
        let mut used = 0;
        letters
            .take_while(|letter| {
                used += columns(letter);
                used <= width
            })
            .count()
    };
    let end = count(&mut letters.iter().rev(), (width - 1) / 2);
    let start = count(&mut letters.iter(), width - 1 - (width - 1) / 2);
    let start: String = letters[..start].iter().collect();
    let end: String = letters[letters.len() - end..].iter().collect();
    fit(&format!("{start}…{end}"), width)
}

/// Text in exactly `width` columns. Text that is too long loses its end.
fn fit(text: &str, width: usize) -> String {
    let (mut fitted, mut used) = (String::new(), 0);
    let mut letters = text.chars().map(shown).peekable();
    while let Some(letter) = letters.next() {
        let more = letter.width().unwrap_or(1);
        let available = if letters.peek().is_some() { width.saturating_sub(1) } else { width };
        if used + more > available {
            if used < width {
                fitted.push('…');
                used += 1;
            }
            break;
        }
        fitted.push(letter);
        used += more;
    }
    fitted.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    fitted
}

/// Truncates a line to `width` columns.
fn cut(line: Line, width: usize) -> Line {
    let mut left = width;
    let mut pieces = Vec::new();
    for (style, text) in line.0 {
        let length: usize = text.chars().filter_map(char::width).sum();
        if length > left {
            pieces.push((style, fit(&text, left)));
            break;
        }
        left -= length;
        pieces.push((style, text));
    }
    Line(pieces)
}

#[cfg(test)]
mod tests;
