//! The layout of a log, from its first lines: the format, and the fields of the parts of a request.

use std::collections::HashSet;

use super::LogOptions;
use super::access::{self, Access};
use super::csv::{self, Csv};
use super::format::Format;
use super::json::{self, Json};
use super::mapping::{Available, Mapping};
use super::record::{Fields, excerpt};
use crate::error::SimulateError;

/// Maximum number of names of fields in JSON.
const NAMES_MAX: usize = 1_000;

/// How lines are parsed.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) mapping: Mapping,
    pub(super) parser: Parser,
    /// The header line of CSV.
    pub(super) header: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Parser {
    Access(Box<Access>),
    Json(Json),
    Csv(Csv),
}

impl Parser {
    pub(super) fn fields<'a>(&self, line: &'a str) -> Result<Fields<'a>, String> {
        match self {
            // Surrounding spaces have no meaning here. In CSV, tabs can delimit empty values.
            Self::Access(access) => access.fields(line.trim()),
            Self::Json(json) => json.fields(line),
            Self::Csv(csv) => csv.fields(line),
        }
    }
}

impl Layout {
    /// Detects the layout from the first `lines` of the log `name`. `dimensions` are those of the
    /// rules. With `hidden`, errors do not quote the log.
    pub(super) fn find(
        name: &str,
        lines: &[&str],
        options: &LogOptions,
        dimensions: &[String],
        hidden: bool,
    ) -> Result<Self, SimulateError> {
        let lines: Vec<&str> = lines.iter().copied().filter(|line| !line.trim().is_empty()).collect();
        let first =
            *lines.first().ok_or_else(|| SimulateError::failed(format!("{name}: the log is empty")))?;
        let detected = || Format::detect(&lines).ok_or_else(|| unknown_format(name, first, hidden));
        let format = options.format.map_or_else(detected, Ok)?;
        let (names, in_lines) = match format {
            Format::Common | Format::Combined => (access::NAMES.map(str::to_owned).to_vec(), None),
            Format::Json => (names_in(&lines), Some(lines.len())),
            Format::Csv => (csv::names(first).1, None),
        };
        let available = Available { names, in_lines, hidden };
        let mapping = Mapping::find(&options.map, &available, dimensions)?;
        let header = (format == Format::Csv).then(|| first.to_owned());
        let parser = match format {
            Format::Csv => Parser::Csv(Csv::new(&mapping.fields, first)),
            Format::Json => Parser::Json(Json::new(&mapping.fields)),
            Format::Common | Format::Combined => Parser::Access(Box::new(Access::new(&mapping.fields))),
        };
        Ok(Self { format, mapping, parser, header })
    }

    /// Uses the header of another log, whose columns can be in another order. Returns whether its
    /// first line `first` is a header.
    pub(super) fn take_header(&mut self, name: &str, first: &str) -> Result<bool, SimulateError> {
        let is_request = self.parser.fields(first).and_then(|fields| self.mapping.record(&fields)).is_ok();
        let time = &self.mapping.fields[self.mapping.time];
        if self.header.is_none() || is_request || !csv::names(first).1.contains(time) {
            return Ok(false);
        }
        let csv = Csv::under(&self.mapping.fields, first).map_err(|missing| {
            SimulateError::misused(format!(
                "--log {name}: the header has no {missing}, which the other logs have; replay this log separately"
            ))
        })?;
        (self.parser, self.header) = (Parser::Csv(csv), Some(first.to_owned()));
        Ok(true)
    }
}

/// Returns the distinct names in JSON lines, in order of appearance.
fn names_in(lines: &[&str]) -> Vec<String> {
    let mut known: HashSet<String> = HashSet::new();
    let mut names = Vec::new();
    for name in lines.iter().flat_map(|line| json::names(line)) {
        if names.len() < NAMES_MAX && known.insert(name.clone()) {
            names.push(name);
        }
    }
    names
}

fn unknown_format(name: &str, line: &str, hidden: bool) -> SimulateError {
    let examples: Vec<String> =
        Format::ALL.map(|format| format!("  {:9} {}", format.name(), format.example())).to_vec();
    let line = if hidden { "(hidden by --hash-keys)".to_owned() } else { excerpt(line) };
    SimulateError::failed(format!(
        "{name}: unknown format; the first line is\n  {line}\nExpected one of these formats; set it with --format if it is not detected:\n{}",
        examples.join("\n")
    ))
}
