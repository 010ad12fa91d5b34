//! Lines of a file, plain or gzip, in bounded memory.

use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

/// The longest line; what is longer is counted as broken, and skipped.
pub const LINE_LENGTH_MAX: usize = 64 * 1024;
const BUFFER: usize = 256 * 1024;
pub(crate) const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A log to read: a name to speak of it, and its bytes, which may be compressed by gzip.
pub struct Source {
    /// How it is called in reports.
    pub name: String,
    /// Where its bytes come from.
    pub reader: Box<dyn Read + Send>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// It is in the buffer, without its end.
    Whole,
    /// It is longer than [`LINE_LENGTH_MAX`]; its beginning is in the buffer.
    TooLong,
    /// There is none any more.
    End,
}

/// Reads line by line.
pub(crate) struct Lines {
    reader: BufReader<Box<dyn Read + Send>>,
}

impl Lines {
    /// Looks at the first bytes whether they are compressed. Every byte that is read from `source` is counted in `bytes`.
    pub(crate) fn open(source: Source, bytes: Arc<AtomicU64>) -> std::io::Result<Self> {
        let mut counted = Counted { reader: source.reader, bytes };
        let mut start = [0; 2];
        let mut length = 0;
        while length < start.len() {
            match counted.read(&mut start[length..])? {
                0 => break,
                read => length += read,
            }
        }
        let whole: Chain<_, _> = Cursor::new(start[..length].to_vec()).chain(counted);
        let reader: Box<dyn Read + Send> =
            if start == GZIP { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Self { reader: BufReader::with_capacity(BUFFER, reader) })
    }

    /// Puts the next line in `buffer`.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> std::io::Result<Line> {
        buffer.clear();
        let mut too_long = false;
        let mut any = false;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = memchr::memchr(b'\n', available);
            let part = &available[..end.unwrap_or(available.len())];
            any |= !available.is_empty();
            let room = LINE_LENGTH_MAX - buffer.len();
            too_long |= part.len() > room;
            buffer.extend_from_slice(&part[..part.len().min(room)]);
            let (used, at_end) = (part.len() + usize::from(end.is_some()), available.is_empty());
            self.reader.consume(used);
            if end.is_some() || at_end {
                break;
            }
        }
        if buffer.last() == Some(&b'\r') {
            buffer.pop();
        }
        Ok(match (any, too_long) {
            (false, _) => Line::End,
            (true, true) => Line::TooLong,
            (true, false) => Line::Whole,
        })
    }
}

/// Counts what is read.
struct Counted {
    reader: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(bytes: Vec<u8>) -> Vec<(Line, usize)> {
        let source = Source { name: String::new(), reader: Box::new(Cursor::new(bytes)) };
        let mut lines = Lines::open(source, Arc::default()).unwrap();
        let mut buffer = Vec::new();
        let mut found = Vec::new();
        loop {
            match lines.next(&mut buffer).unwrap() {
                Line::End => return found,
                line => found.push((line, buffer.len())),
            }
        }
    }

    #[test]
    fn lines_end_where_they_end() {
        assert_eq!(lines(Vec::new()), []);
        assert_eq!(lines(b"a".to_vec()), [(Line::Whole, 1)]);
        assert_eq!(lines(b"ab\r\n\nabc".to_vec()), [(Line::Whole, 2), (Line::Whole, 0), (Line::Whole, 3)]);
    }

    #[test]
    fn a_long_line_is_told_and_skipped() {
        let long = |length: usize| [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
        let expected = [(Line::Whole, LINE_LENGTH_MAX), (Line::Whole, 4)];
        assert_eq!(lines(long(LINE_LENGTH_MAX)), expected);
        let expected = [(Line::TooLong, LINE_LENGTH_MAX), (Line::Whole, 4)];
        assert_eq!(lines(long(LINE_LENGTH_MAX + 1)), expected);
        assert_eq!(lines(long(10 * BUFFER)), expected);
    }

    #[test]
    fn gzip_is_read_also_in_several_parts() {
        let part = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let bytes = [part(b"one\ntw"), part(b"o\n")].concat();
        assert_eq!(lines(bytes), [(Line::Whole, 3), (Line::Whole, 3)]);
    }
}
