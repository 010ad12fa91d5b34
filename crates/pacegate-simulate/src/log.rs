//! Logs: their format, and the requests in them.

mod access;
mod csv;
mod format;
mod head;
mod json;
mod layout;
pub(crate) mod lines;
pub(crate) mod mapping;
pub(crate) mod record;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use self::format::Format;
use self::layout::Layout;
use self::lines::{LINE_LENGTH_MAX, Line, Lines, Source};
use self::mapping::{FieldMap, Mapping};
use self::record::{Place, Record, excerpt};
use crate::error::SimulateError;

/// Number of lines that are examined to detect the format.
const SAMPLE: usize = 100;
/// Number of lines of JSON, whose fields can differ from line to line, and the maximum of bytes.
const JSON_SAMPLE: usize = 10_000;
const SAMPLE_BYTES: usize = 4 << 20;

/// How a log is parsed.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// The format. `None` detects it from the first lines.
    pub format: Option<Format>,
    /// The fields of the parts of a request that do not have a usual name.
    pub map: FieldMap,
}

/// A line that is not a request.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) place: Place,
    pub(crate) reason: String,
    /// The start of the line, unless identifiers are hidden.
    pub(crate) excerpt: Option<String>,
}

/// A line of the log.
#[derive(Debug)]
pub(crate) enum Entry {
    Request(Record),
    Broken(Broken),
}

/// Reads the requests of one log or several, one after the other.
pub(crate) struct LogReader {
    sources: VecDeque<Source>,
    current: Option<Lines>,
    /// Lines that were read ahead, and their number.
    sample: VecDeque<(Line, Vec<u8>)>,
    sample_length: usize,
    layout: Layout,
    buffer: Vec<u8>,
    bytes: Arc<AtomicU64>,
    names: Vec<String>,
    /// The current line, and whether it can be the header of another log.
    place: Place,
    header_expected: bool,
}

impl LogReader {
    /// Sorts the logs by time, and detects their format from the first lines. `dimensions` are
    /// those of the rules. With `hidden`, errors do not quote the log.
    pub(crate) fn open(
        sources: Vec<Source>,
        options: &LogOptions,
        dimensions: &[String],
        hidden: bool,
    ) -> Result<Self, SimulateError> {
        let sources = head::in_order_of_time(sources, options, dimensions);
        let names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
        let mut sources = VecDeque::from(sources);
        let bytes = Arc::new(AtomicU64::default());
        let mut sample = VecDeque::new();
        let mut current = None;
        // An empty log is skipped.
        while sample.is_empty()
            && let Some(source) = sources.pop_front()
        {
            let name = source.name.clone();
            let read = |error: std::io::Error| cannot_read(&name, &error);
            let mut lines = Lines::open(source, bytes.clone()).map_err(read)?;
            read_sample(&mut lines, options, &mut sample).map_err(read)?;
            current = Some(lines);
        }
        let file = names.len() - sources.len() - usize::from(current.is_some());
        let texts: Vec<_> = sample.iter().map(|(_, line)| String::from_utf8_lossy(line)).collect();
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let name = if sources.is_empty() { names.join(", ") } else { names[file].clone() };
        let layout = Layout::find(&name, &texts, options, dimensions, hidden)?;
        Ok(Self {
            sources,
            current,
            sample_length: sample.len(),
            sample,
            layout,
            buffer: Vec::new(),
            bytes,
            names,
            place: Place { file, line: 0 },
            header_expected: false,
        })
    }

    pub(crate) fn format(&self) -> Format {
        self.layout.format
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.layout.mapping
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of lines that were searched for fields, if other lines can have more.
    pub(crate) fn sampled(&self) -> Option<usize> {
        (self.layout.format == Format::Json).then_some(self.sample_length)
    }

    /// Returns the number of bytes that were read so far from all logs, before decompression.
    pub(crate) fn bytes(&self) -> Arc<AtomicU64> {
        self.bytes.clone()
    }

    /// Returns the next line that is not empty, or `None` at the end of the last log.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, SimulateError> {
        loop {
            let Some(line) = self.advance()? else { return Ok(None) };
            let text = String::from_utf8_lossy(&self.buffer);
            if text.trim().is_empty() || self.layout.header.as_deref() == Some(&*text) {
                continue;
            }
            if std::mem::take(&mut self.header_expected)
                && self.layout.take_header(&self.names[self.place.file], &text)?
            {
                continue;
            }
            let Layout { parser, mapping, .. } = &self.layout;
            let record = match line {
                Line::TooLong => Err(format!("is longer than {LINE_LENGTH_MAX} bytes")),
                _ => parser.fields(&text).and_then(|fields| mapping.record(&fields)),
            };
            let place = self.place;
            return Ok(Some(match record {
                Ok(record) => Entry::Request(Record { place, ..record }),
                Err(reason) => {
                    let excerpt = (!mapping.hidden).then(|| excerpt(text.trim()));
                    Entry::Broken(Broken { place, reason, excerpt })
                }
            }));
        }
    }

    /// Reads the next line into the buffer, from the next log at the end of one.
    fn advance(&mut self) -> Result<Option<Line>, SimulateError> {
        self.place.line += 1;
        if let Some((line, buffer)) = self.sample.pop_front() {
            self.buffer = buffer;
            return Ok(Some(line));
        }
        loop {
            if let Some(lines) = &mut self.current {
                let line = lines
                    .next(&mut self.buffer)
                    .map_err(|error| cannot_read(&self.names[self.place.file], &error))?;
                if line != Line::End {
                    return Ok(Some(line));
                }
            }
            let Some(source) = self.sources.pop_front() else { return Ok(None) };
            self.place = Place { file: self.place.file + 1, line: 1 };
            self.header_expected = true;
            let opened = Lines::open(source, self.bytes.clone());
            self.current = Some(opened.map_err(|error| cannot_read(&self.names[self.place.file], &error))?);
        }
    }

    /// Returns the error for a log in which no line is a request.
    pub(crate) fn nothing_fits(&self, lines: u64, first: &Broken) -> SimulateError {
        let format = self.layout.format;
        SimulateError::failed(format!(
            "none of the {lines} lines is a request in format {}: line {} {}\n  got:      {}\n  expected: {}\n\
             Set the format with --format common, combined, json or csv, and the fields with --map, such as --map time=FIELD,ip=FIELD",
            format.name(),
            first.place.line,
            first.reason,
            first.excerpt.as_deref().unwrap_or("(hidden by --hash-keys)"),
            format.example(),
        ))
    }
}

/// Reads the first lines: enough to detect the format and, for JSON, most of the fields.
fn read_sample(
    lines: &mut Lines,
    options: &LogOptions,
    sample: &mut VecDeque<(Line, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut bytes = 0;
    let mut length_max = if options.format == Some(Format::Json) { JSON_SAMPLE } else { SAMPLE };
    while sample.len() < length_max && bytes < SAMPLE_BYTES {
        let mut buffer = Vec::new();
        match lines.next(&mut buffer)? {
            Line::End => break,
            line => {
                bytes += buffer.len();
                sample.push_back((line, buffer));
            }
        }
        if sample.len() == SAMPLE && options.format.is_none() {
            let objects = sample.iter().filter(|(_, line)| line.trim_ascii_start().starts_with(b"{")).count();
            length_max = if objects * 2 > SAMPLE { JSON_SAMPLE } else { SAMPLE };
        }
    }
    Ok(())
}

fn cannot_read(name: &str, error: &std::io::Error) -> SimulateError {
    SimulateError::failed(format!("could not read {name}: {error}"))
}
