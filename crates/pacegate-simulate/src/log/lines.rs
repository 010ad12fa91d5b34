//! Lines of a plain or gzip file, in bounded memory.

use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

/// Maximum length of a line in bytes. Longer lines are counted as broken and skipped.
pub const LINE_LENGTH_MAX: usize = 64 * 1024;
const BUFFER: usize = 256 * 1024;
pub(crate) const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A log to read: its name and its bytes, which can be compressed with gzip.
pub struct Source {
    /// The name in reports.
    pub name: String,
    /// The source of its bytes.
    pub reader: Box<dyn Read + Send>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The line is in the buffer, without its line break.
    Whole,
    /// The line is longer than [`LINE_LENGTH_MAX`]. Its start is in the buffer.
    TooLong,
    /// The end of the file.
    End,
}

/// A reader of lines.
pub(crate) struct Lines {
    reader: BufReader<Box<dyn Read + Send>>,
}

impl Lines {
    /// Detects compression from the first bytes. Bytes that are read from `source` are counted in
    /// `bytes`.
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

    /// Reads the next line into `buffer`.
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
            let free = LINE_LENGTH_MAX - buffer.len();
            too_long |= part.len() > free;
            buffer.extend_from_slice(&part[..part.len().min(free)]);
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

/// A reader that counts bytes.
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
    fn lines_are_split_at_line_breaks() {
        assert_eq!(lines(Vec::new()), []);
        assert_eq!(lines(b"a".to_vec()), [(Line::Whole, 1)]);
        assert_eq!(lines(b"ab\r\n\nabc".to_vec()), [(Line::Whole, 2), (Line::Whole, 0), (Line::Whole, 3)]);
    }

    #[test]
    fn long_line_is_reported_and_skipped() {
        let long = |length: usize| [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
        let expected = [(Line::Whole, LINE_LENGTH_MAX), (Line::Whole, 4)];
        assert_eq!(lines(long(LINE_LENGTH_MAX)), expected);
        let expected = [(Line::TooLong, LINE_LENGTH_MAX), (Line::Whole, 4)];
        assert_eq!(lines(long(LINE_LENGTH_MAX + 1)), expected);
        assert_eq!(lines(long(10 * BUFFER)), expected);
    }

    #[test]
    fn gzip_with_several_members_is_read() {
        let part = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let bytes = [part(b"one\ntw"), part(b"o\n")].concat();
        assert_eq!(lines(bytes), [(Line::Whole, 3), (Line::Whole, 3)]);
    }
}
