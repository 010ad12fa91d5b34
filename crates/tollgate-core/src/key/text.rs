//! Keys as text, for stores that name things. Parts are escaped, so that no part can run into another or imitate it.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::Key;

/// Longer parts are replaced by a hash of them.
const PART_LENGTH_MAX: usize = 256;
/// The first character of a hash; a part that has it itself is escaped.
const HASHED: char = '#';

impl Key<'_> {
    /// Appends `dimension:identifier`: what all limits of one identity share.
    ///
    /// ```
    /// use tollgate_core::{Counter, Key};
    ///
    /// let counter = Counter::per_endpoint("daily", "user", "/api/{*rest}");
    /// let key = Key::new(&counter, "a:b", "/api/orders");
    /// let (mut identity, mut counted) = (String::new(), String::new());
    /// key.write_identity(&mut identity);
    /// key.write_counter(&mut counted);
    /// assert_eq!(identity, "user:a%3ab");
    /// assert_eq!(counted, "daily:/api/%7b*rest%7d:/api/orders");
    /// ```
    pub fn write_identity(&self, text: &mut String) {
        write_escaped(self.counter.dimension(), text);
        text.push(':');
        write_bounded(text, |text| write_escaped(self.identifier, text));
    }

    /// Appends `rule:scope`, and `:endpoint` where each endpoint has a counter of its own.
    pub fn write_counter(&self, text: &mut String) {
        write_bounded(text, |text| {
            write_escaped(self.counter.rule(), text);
            text.push(':');
            write_escaped(self.counter.scope(), text);
            if let Some(endpoint) = self.endpoint {
                text.push(':');
                write_escaped(endpoint, text);
            }
        });
    }
}

fn write_escaped(part: &str, text: &mut String) {
    for character in part.chars() {
        match character {
            '%' | ':' | '{' | '}' | HASHED | ' ' => {
                let _ = write!(text, "%{:02x}", character as u32);
            }
            character if character.is_ascii_control() => {
                let _ = write!(text, "%{:02x}", character as u32);
            }
            character => text.push(character),
        }
    }
}

fn write_bounded(text: &mut String, write: impl FnOnce(&mut String)) {
    let start = text.len();
    write(text);
    if text.len() - start > PART_LENGTH_MAX {
        let hash = Sha256::digest(&text.as_bytes()[start..]);
        text.truncate(start);
        text.push(HASHED);
        for byte in hash {
            let _ = write!(text, "{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Counter;

    fn text_of(rule: &str, scope: &str, identifier: &str) -> String {
        let counter = Counter::new(rule, "user", scope);
        let key = Key::new(&counter, identifier, "");
        let mut text = String::from("{");
        key.write_identity(&mut text);
        text.push('}');
        key.write_counter(&mut text);
        text
    }

    #[test]
    fn long_parts_are_hashed_and_cannot_be_imitated() {
        let long = "x".repeat(PART_LENGTH_MAX + 1);
        let text = text_of("rule", "", &long);
        assert!(text.len() < 100, "{text}");
        let imitated = text.trim_start_matches("{user:").split('}').next().unwrap();
        assert_ne!(text_of("rule", "", imitated), text);
    }

    #[test]
    fn there_is_one_pair_of_braces_whatever_the_parts() {
        let text = text_of("{rule}", "}{", "{}}{");
        assert_eq!((text.matches('{').count(), text.matches('}').count()), (1, 1), "{text}");
    }
}
