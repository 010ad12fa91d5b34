//! What commands say on the terminal. One that is gone, or a pipe that nobody reads any more, is no reason to fail.

use std::io::Write;

/// A line of what was asked for.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A line about what went wrong. Errors may hold what servers and files say, which must not steer a terminal.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(line));
}

/// Whether a character does something to a terminal or to the order of a line instead of being shown.
pub(crate) fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same text with control characters spelled out; it may have several lines.
fn printable(text: &str) -> String {
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
