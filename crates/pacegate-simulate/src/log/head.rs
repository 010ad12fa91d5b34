//! Sorts several logs by time: shells list rotated logs with the newest first, and a replay needs
//! the oldest first.

use std::io::{Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use pacegate::Timestamp;

use super::LogOptions;
use super::layout::Layout;
use super::lines::{GZIP, Source};

/// Number of bytes of each log that are examined. They are kept until the log is replayed.
const HEAD_BYTES: usize = 16 * 1024;
/// Number of requests whose times are examined, because a single one can be wrong.
const REQUESTS: usize = 15;

/// Sorts logs by the time of their first requests. A log without a known time keeps its position
/// after the previous one.
pub(super) fn in_order_of_time(
    mut sources: Vec<Source>,
    options: &LogOptions,
    dimensions: &[String],
) -> Vec<Source> {
    if sources.len() < 2 {
        return sources;
    }
    let mut latest = None;
    let mut keyed: Vec<(Option<Timestamp>, Source)> = Vec::with_capacity(sources.len());
    for source in sources.drain(..) {
        let (head, source) = take_head(source);
        latest = first_time(&head, options, dimensions).or(latest);
        keyed.push((latest, source));
    }
    keyed.sort_by_key(|(time, _)| *time);
    keyed.into_iter().map(|(_, source)| source).collect()
}

/// Returns the first bytes of a log, and the log still including them.
fn take_head(source: Source) -> (Vec<u8>, Source) {
    let Source { name, mut reader } = source;
    let mut head = Vec::new();
    // An error is ignored here: reading the log again reports it.
    let _ = reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head);
    let whole = Cursor::new(head.clone()).chain(reader);
    (head, Source { name, reader: Box::new(whole) })
}

/// Returns the median time of the first requests of a log.
fn first_time(head: &[u8], options: &LogOptions, dimensions: &[String]) -> Option<Timestamp> {
    let mut text = Vec::new();
    if head.starts_with(&GZIP) {
        // The data is incomplete; what can be decompressed is enough.
        let _ = MultiGzDecoder::new(head).take(4 * HEAD_BYTES as u64).read_to_end(&mut text);
    } else {
        text.extend_from_slice(head);
    }
    let lines: Vec<String> =
        text.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end_matches('\r')).collect();
    let Layout { mapping, parser, .. } = Layout::find("", &lines, options, dimensions, false).ok()?;
    let record = |line: &&str| mapping.record(&parser.fields(line).ok()?).ok();
    let mut times: Vec<Timestamp> =
        lines.iter().filter_map(record).map(|record| record.time.at).take(REQUESTS).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
