//! CSV with a header line. A quoted value cannot span lines.

use std::borrow::Cow;

use super::record::Fields;

/// Delimiters of columns. The most frequent one in the first line is used.
const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];

/// A parser of lines of CSV.
#[derive(Clone, Debug)]
pub(crate) struct Csv {
    delimiter: u8,
    /// The column of each slot.
    columns: Vec<usize>,
    last: usize,
}

impl Csv {
    /// Finds the columns of the fields, all of which are in the header.
    pub(crate) fn new(fields: &[String], header: &str) -> Self {
        let (delimiter, names) = names(header);
        let column = |field: &String| names.iter().position(|name| name == field).unwrap_or(usize::MAX);
        let columns: Vec<usize> = fields.iter().map(column).collect();
        let last = columns.iter().copied().max().unwrap_or_default();
        Self { delimiter, columns, last }
    }

    /// Finds the columns of the same fields under the header of another log.
    ///
    /// # Errors
    /// The names of the fields that the header does not have.
    pub(crate) fn under(fields: &[String], header: &str) -> Result<Self, String> {
        let (_, names) = names(header);
        let missing: Vec<String> =
            fields.iter().filter(|field| !names.contains(field)).map(|field| format!("`{field}`")).collect();
        if missing.is_empty() { Ok(Self::new(fields, header)) } else { Err(missing.join(", ")) }
    }

    /// The fields of a line.
    pub(crate) fn fields<'a>(&self, line: &'a str) -> Result<Fields<'a>, String> {
        let mut found: Fields<'a> = smallvec::smallvec![None; self.columns.len()];
        let mut rest = Some(line);
        for column in 0..=self.last {
            let Some(text) = rest else {
                return Err(format!("has {column} columns, expected at least {}", self.last + 1));
            };
            let (value, after) = value(text, self.delimiter)?;
            rest = after;
            if let Some(slot) = self.columns.iter().position(|wanted| *wanted == column) {
                found[slot] = Some(value);
            }
        }
        Ok(found)
    }
}

/// Returns the delimiter and the names in a header.
pub(crate) fn names(header: &str) -> (u8, Vec<String>) {
    let header = header.trim_start_matches('\u{feff}');
    let count = |delimiter: &u8| header.bytes().filter(|byte| byte == delimiter).count();
    // `max_by_key` returns the last of equals: without any delimiter, it is a comma.
    let delimiter = DELIMITERS.into_iter().rev().max_by_key(count).unwrap_or(b',');
    let mut names = Vec::new();
    let mut rest = Some(header);
    while let Some(text) = rest {
        match value(text, delimiter) {
            Ok((name, after)) => {
                names.push(name.trim().to_owned());
                rest = after;
            }
            Err(_) => break,
        }
    }
    (delimiter, names)
}

/// Returns the first value, and the rest after the delimiter.
fn value(text: &str, delimiter: u8) -> Result<(Cow<'_, str>, Option<&str>), String> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'"') {
        return Ok(match memchr::memchr(delimiter, bytes) {
            Some(end) => (Cow::Borrowed(&text[..end]), Some(&text[end + 1..])),
            None => (Cow::Borrowed(text), None),
        });
    }
    let mut at = 1;
    let mut doubled = false;
    let end = loop {
        at += memchr::memchr(b'"', &bytes[at..]).ok_or("has a quote that is not closed")?;
        if bytes.get(at + 1) != Some(&b'"') {
            break at;
        }
        doubled = true;
        at += 2;
    };
    let inside = &text[1..end];
    let value = if doubled { Cow::Owned(inside.replace("\"\"", "\"")) } else { Cow::Borrowed(inside) };
    match bytes.get(end + 1) {
        None => Ok((value, None)),
        Some(byte) if *byte == delimiter => Ok((value, Some(&text[end + 2..]))),
        Some(_) => Err("has text after a closing quote".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(header: &str, line: &str, names: &[&str]) -> Result<Vec<Option<String>>, String> {
        let csv = Csv::new(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), header);
        Ok(csv.fields(line)?.into_iter().map(|field| field.map(Cow::into_owned)).collect())
    }

    #[test]
    fn columns_are_found_by_name() {
        let some = |text: &str| Some(text.to_owned());
        let rows = [
            ("a,b,c", r#"1,"x ""y"", z",3"#, "x \"y\", z"),
            ("a;b;c", "1;2,5;3", "2,5"),
            ("a\tb\tc", "1\té\t", "é"),
            ("\u{feff}b,c", ",3", ""),
            ("b", "whole line", "whole line"),
        ];
        for (header, line, expected) in rows {
            assert_eq!(fields(header, line, &["b"]), Ok(vec![some(expected)]), "{line}");
        }
    }

    #[test]
    fn broken_lines_have_a_reason() {
        let rows = [
            ("1", "has 1 columns, expected at least 2"),
            ("1,\"x", "has a quote that is not closed"),
            ("1,\"x\"y", "has text after a closing quote"),
        ];
        for (line, reason) in rows {
            assert_eq!(fields("a,b", line, &["b"]), Err(reason.to_owned()));
        }
    }
}
