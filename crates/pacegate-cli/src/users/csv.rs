//! CSV as in RFC 4180: fields separated by commas, quoted if they contain a comma, a quote or a
//! line break.

/// A record and the number of its first line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) line: usize,
    pub(super) fields: Vec<String>,
}

/// Where a file stops being CSV, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) line: usize,
    pub(super) reason: &'static str,
}

/// Returns all records. Empty lines are skipped.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, SyntaxError> {
    let mut letters = text.trim_start_matches('\u{feff}').chars().peekable();
    let mut records = Vec::new();
    let mut line = 1;
    while letters.peek().is_some() {
        let first = line;
        let mut fields = Vec::new();
        loop {
            let field = match letters.next_if_eq(&'"') {
                Some(_) => quoted(&mut letters, &mut line)?,
                None => plain(&mut letters, line)?,
            };
            fields.push(field);
            match letters.next() {
                Some(',') => {}
                Some('\r') if letters.next_if_eq(&'\n').is_some() => break,
                Some('\n') | None => break,
                Some(_) => {
                    return Err(SyntaxError { line, reason: "unexpected text after a quoted field" });
                }
            }
        }
        line += 1;
        if fields != [""] {
            records.push(Record { line: first, fields });
        }
    }
    Ok(records)
}

type Letters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// The rest of a quoted field, after its opening quote.
fn quoted(letters: &mut Letters<'_>, line: &mut usize) -> Result<String, SyntaxError> {
    let first = *line;
    let mut field = String::new();
    loop {
        match letters.next() {
            Some('"') if letters.next_if_eq(&'"').is_some() => field.push('"'),
            Some('"') => return Ok(field),
            Some(letter) => {
                *line += usize::from(letter == '\n');
                field.push(letter);
            }
            None => return Err(SyntaxError { line: first, reason: "a quoted field is not closed" }),
        }
    }
}

fn plain(letters: &mut Letters<'_>, line: usize) -> Result<String, SyntaxError> {
    let mut field = String::new();
    while let Some(letter) = letters.next_if(|letter| !matches!(letter, ',' | '\n' | '\r')) {
        if letter == '"' {
            return Err(SyntaxError { line, reason: "a quote in a field that is not quoted" });
        }
        field.push(letter);
    }
    Ok(field.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn records(text: &str) -> Vec<(usize, Vec<String>)> {
        parse(text).unwrap().into_iter().map(|record| (record.line, record.fields)).collect()
    }

    #[test]
    fn records_have_their_line_numbers() {
        let text = "\u{feff}a,b\r\n\r\n\"x, \"\"y\"\"\nz\", 2 \n,\n";
        let expected: [(usize, &[&str]); 3] = [(1, &["a", "b"]), (3, &["x, \"y\"\nz", "2"]), (5, &["", ""])];
        let expected: Vec<(usize, Vec<String>)> = expected
            .into_iter()
            .map(|(line, fields)| (line, fields.iter().map(|field| (*field).to_owned()).collect()))
            .collect();
        assert_eq!(records(text), expected);
        assert_eq!(records("a"), [(1, vec!["a".to_owned()])]);
        assert_eq!(records(""), []);
    }

    #[test]
    fn invalid_quotes_are_rejected_with_the_line() {
        for (text, line, reason) in [
            ("a\n\"b", 2, "a quoted field is not closed"),
            ("a\n\"b\"c\n", 2, "unexpected text after a quoted field"),
            ("a\nb\"c\n", 2, "a quote in a field that is not quoted"),
        ] {
            assert_eq!(parse(text), Err(SyntaxError { line, reason }), "{text:?}");
        }
    }
}
