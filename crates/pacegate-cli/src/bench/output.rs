//! Writes the figures of a load test as text and as JSON.

use std::fs::File;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;

use anyhow::{Context, anyhow};

use super::summary::Summary;

/// The destinations of the figures.
pub(super) struct Output {
    json: Option<Box<dyn Write>>,
    /// Whether the standard output is reserved for the JSON.
    taken: bool,
}

impl Output {
    /// Opens the file now, so that a long test does not fail at its end.
    pub(super) fn new(json: Option<&Path>) -> anyhow::Result<Self> {
        let taken = json.is_some_and(|path| path == Path::new("-"));
        let json: Option<Box<dyn Write>> = match json {
            None => None,
            Some(_) if taken => Some(Box::new(stdout())),
            Some(path) => {
                let file = File::create(path);
                Some(Box::new(file.with_context(|| format!("--json: could not write {}", path.display()))?))
            }
        };
        Ok(Self { json, taken })
    }

    pub(super) fn write(&mut self, summary: &Summary) -> anyhow::Result<()> {
        let text = summary.text();
        let written = if self.taken { write!(stderr(), "{text}") } else { write!(stdout(), "{text}") };
        ignore_closed_pipe(written)?;
        let Some(json) = &mut self.json else { return Ok(()) };
        ignore_closed_pipe(writeln!(json, "{:#}", summary.json()))
    }
}

/// Ignores a closed pipe: a reader such as `head` can stop early.
fn ignore_closed_pipe(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow!(error).context("could not write the figures"))
        }
        _ => Ok(()),
    }
}
