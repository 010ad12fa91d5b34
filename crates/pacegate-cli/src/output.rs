//! Terminal output. A closed terminal or pipe is not an error.

use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a line to the standard output.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes a document to the standard output. A reader that stops early, such as `head`, is fine.
pub(crate) fn print(document: &[u8]) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(document) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("could not write to the standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line to the standard error output. Messages can contain text from servers and files,
/// so control characters are escaped.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// Whether a character controls the terminal or the text direction instead of being shown.
pub(crate) fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same text with control characters escaped, except line breaks.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) && character != '\n' {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}
