//! Where the figures of a load test go: to people as text, to programs as JSON.

use std::fs::File;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;

use anyhow::{Context, anyhow};

use super::summary::Summary;

/// Where the figures go.
pub(super) struct Output {
    json: Option<Box<dyn Write>>,
    /// The output is for the JSON alone.
    taken: bool,
}

impl Output {
    /// Opens the file at once: a test of an hour must not fail at the end.
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
        heard(written)?;
        let Some(json) = &mut self.json else { return Ok(()) };
        heard(writeln!(json, "{:#}", summary.json()))
    }
}

/// Whoever reads may have seen enough, as `head` does.
fn heard(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow!(error).context("could not write the figures"))
        }
        _ => Ok(()),
    }
}
