//! Logs: which format they are in, and the requests in them.

mod access;
mod csv;
mod json;
pub(crate) mod lines;
pub(crate) mod mapping;
pub(crate) mod record;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use self::access::Access;
use self::csv::Csv;
use self::json::Json;
use self::lines::{LINE_LENGTH_MAX, Line, Lines, Source};
use self::mapping::{Available, FieldMap, Mapping};
use self::record::{Fields, Record, excerpt};
use crate::error::SimulateError;

/// How many lines are looked at to find out what they are.
const SAMPLE: usize = 100;

/// How the lines of a log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The common log format of web servers.
    Common,
    /// The same with referer and agent, and whatever a server adds after them.
    Combined,
    /// One JSON object a line.
    Json,
    /// Comma, semicolon or tab separated values, with a line of names first.
    Csv,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Common, Self::Combined, Self::Json, Self::Csv];

    /// Its name, as in `--format`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Common => "common",
            Self::Combined => "combined",
            Self::Json => "json",
            Self::Csv => "csv",
        }
    }

    /// A line of it, to show what was expected.
    fn example(self) -> &'static str {
        match self {
            Self::Common => r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326"#,
            Self::Combined => {
                r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "-" "curl/8""#
            }
            Self::Json => {
                r#"{"time":"2000-10-10T20:55:36Z","ip":"192.0.2.1","method":"GET","path":"/a","status":200}"#
            }
            Self::Csv => "time,ip,user,method,path,status",
        }
    }
}

/// How to read a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Found out from the first lines unless it is set.
    pub format: Option<Format>,
    /// Which fields are which parts of a request, where they do not have their usual names.
    pub map: FieldMap,
}

/// A line that is not a request.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) file: usize,
    pub(crate) line: u64,
    pub(crate) reason: String,
    pub(crate) excerpt: String,
}

/// What a line is.
#[derive(Debug)]
pub(crate) enum Entry {
    Request(Record),
    Broken(Broken),
}

/// Reads the requests of one or several logs, one after the other.
pub(crate) struct LogReader {
    sources: VecDeque<Source>,
    current: Option<Lines>,
    /// Lines that were read ahead.
    sample: VecDeque<(Line, Vec<u8>)>,
    parser: Parser,
    format: Format,
    mapping: Mapping,
    header: Option<String>,
    buffer: Vec<u8>,
    bytes: Arc<AtomicU64>,
    names: Vec<String>,
    /// The log that is being read, and the line.
    file: usize,
    line: u64,
}

#[derive(Clone, Debug)]
enum Parser {
    Access(Box<Access>),
    Json(Json),
    Csv(Csv),
}

impl Parser {
    fn fields<'a>(&self, line: &'a str) -> Result<Fields<'a>, String> {
        match self {
            Self::Access(access) => access.fields(line),
            Self::Json(json) => json.fields(line),
            Self::Csv(csv) => csv.fields(line),
        }
    }
}

impl LogReader {
    /// Reads the first lines to find out what they are. `dimensions` are those that the rules count by.
    pub(crate) fn open(
        sources: Vec<Source>,
        options: &LogOptions,
        dimensions: &[String],
    ) -> Result<Self, SimulateError> {
        let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let mut sources = VecDeque::from(sources);
        let bytes = Arc::new(AtomicU64::default());
        let mut sample = VecDeque::new();
        let mut current = None;
        // A log that is empty says nothing about the others.
        while sample.is_empty()
            && let Some(source) = sources.pop_front()
        {
            let name = source.name.clone();
            let read = |error: std::io::Error| cannot_read(&name, &error);
            let mut lines = Lines::open(source, bytes.clone()).map_err(read)?;
            while sample.len() < SAMPLE {
                let mut buffer = Vec::new();
                match lines.next(&mut buffer).map_err(read)? {
                    Line::End => break,
                    line => sample.push_back((line, buffer)),
                }
            }
            current = Some(lines);
        }
        let file = names.len() - sources.len() - usize::from(current.is_some());
        let texts: Vec<_> = sample.iter().map(|(_, line)| String::from_utf8_lossy(line)).collect();
        let texts: Vec<&str> = texts.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
        let Some(first) = texts.first() else {
            return Err(SimulateError::failed(format!("{}: there is no line in it", names.join(", "))));
        };
        let format = match options.format {
            Some(format) => format,
            None => detect(&texts).ok_or_else(|| unknown_format(&names[file], first))?,
        };
        let available = match format {
            Format::Common | Format::Combined => {
                Available { names: access::NAMES.map(str::to_owned).to_vec(), open: false }
            }
            Format::Json => Available { names: names_in(&texts), open: true },
            Format::Csv => Available { names: csv::names(first).1, open: false },
        };
        let mapping = Mapping::find(&options.map, &available, dimensions)?;
        let header = (format == Format::Csv).then(|| (*first).to_owned());
        let parser = match (&header, format) {
            (Some(header), _) => Parser::Csv(Csv::new(&mapping.fields, header)),
            (None, Format::Json) => Parser::Json(Json::new(&mapping.fields)),
            (None, _) => Parser::Access(Box::new(Access::new(&mapping.fields))),
        };
        let buffer = Vec::new();
        Ok(Self {
            sources,
            current,
            sample,
            parser,
            format,
            mapping,
            header,
            buffer,
            bytes,
            names,
            file,
            line: 0,
        })
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// How many bytes were read so far, of all logs, as they are on disk.
    pub(crate) fn bytes(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }

    /// The next line that is not empty; `None` at the end of the last log.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, SimulateError> {
        loop {
            let Some(line) = self.advance()? else { return Ok(None) };
            let text = String::from_utf8_lossy(&self.buffer);
            let text = text.trim();
            if text.is_empty() || self.header.as_deref() == Some(text) {
                continue;
            }
            let record = match line {
                Line::TooLong => Err(format!("is longer than {LINE_LENGTH_MAX} bytes")),
                _ => self.parser.fields(text).and_then(|fields| self.mapping.record(&fields)),
            };
            return Ok(Some(match record {
                Ok(record) => Entry::Request(record),
                Err(reason) => {
                    Entry::Broken(Broken { file: self.file, line: self.line, reason, excerpt: excerpt(text) })
                }
            }));
        }
    }

    /// Puts the next line in the buffer, of the next log if need be.
    fn advance(&mut self) -> Result<Option<Line>, SimulateError> {
        self.line += 1;
        if let Some((line, buffer)) = self.sample.pop_front() {
            self.buffer = buffer;
            return Ok(Some(line));
        }
        loop {
            if let Some(lines) = &mut self.current {
                let line = lines
                    .next(&mut self.buffer)
                    .map_err(|error| cannot_read(&self.names[self.file], &error))?;
                if line != Line::End {
                    return Ok(Some(line));
                }
            }
            let Some(source) = self.sources.pop_front() else { return Ok(None) };
            self.file += 1;
            self.line = 1;
            let opened = Lines::open(source, self.bytes.clone());
            self.current = Some(opened.map_err(|error| cannot_read(&self.names[self.file], &error))?);
        }
    }

    /// What to say when no line at all is a request.
    pub(crate) fn nothing_fits(&self, lines: u64, first: &Broken) -> SimulateError {
        let format = self.format.name();
        SimulateError::failed(format!(
            "none of the {lines} lines is a request, read as {format}: line {} {}\n  it is:    {}\n  expected: {}\n\
             Say what it is with --format common, combined, json or csv, and which fields are which with --map, like --map time=FIELD,ip=FIELD",
            first.line,
            first.reason,
            first.excerpt,
            self.format.example(),
        ))
    }
}

fn cannot_read(name: &str, error: &std::io::Error) -> SimulateError {
    SimulateError::failed(format!("could not read {name}: {error}"))
}

/// What most of the lines look like: the first one may be broken.
fn detect(lines: &[&str]) -> Option<Format> {
    let most = |is: fn(&str) -> bool| lines.iter().filter(|line| is(line)).count() * 2 > lines.len();
    if most(|line| line.starts_with('{')) {
        return Some(Format::Json);
    }
    let access = |line: &str| line.split_once('[').is_some_and(|(_, rest)| rest.contains("] \""));
    if most(access) {
        let quotes = |line: &str| line.bytes().filter(|byte| *byte == b'"').count() >= 6;
        return Some(if most(quotes) { Format::Combined } else { Format::Common });
    }
    let (_, names) = csv::names(lines.first()?);
    (names.len() > 1).then_some(Format::Csv)
}

/// The names in JSON lines, each once, in the order they come.
fn names_in(lines: &[&str]) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for name in lines.iter().flat_map(|line| json::names(line)) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known
}

fn unknown_format(name: &str, line: &str) -> SimulateError {
    let examples: Vec<String> =
        Format::ALL.map(|format| format!("  {:9} {}", format.name(), format.example())).to_vec();
    SimulateError::failed(format!(
        "{name}: cannot tell what its lines are; the first one is\n  {}\nExpected is one of these, or say which it is with --format:\n{}",
        excerpt(line),
        examples.join("\n")
    ))
}
