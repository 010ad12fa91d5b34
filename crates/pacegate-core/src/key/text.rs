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
    /// use pacegate_core::{Counter, Key};
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

    /// A hash of the identity that is the same on every node and in every version, to spread identities by.
    pub fn identity_hash(&self) -> u64 {
        let mut text = String::new();
        self.write_identity(&mut text);
        let mut first = [0; 8];
        first.copy_from_slice(&Sha256::digest(text.as_bytes())[..8]);
        u64::from_le_bytes(first)
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
    fn the_hash_of_an_identity_never_changes() {
        let counter = Counter::new("rule", "user", "");
        let other = Counter::new("other", "user", "/x");
        let hash = Key::new(&counter, "alice", "").identity_hash();
        assert_eq!(
            hash,
            Key::new(&other, "alice", "").identity_hash(),
            "all limits of an identity stay together"
        );
        // Shards find their identities by it: another value would start every counter anew.
        assert_eq!(hash, 3580743044109811162);
    }

    #[test]
    fn there_is_one_pair_of_braces_whatever_the_parts() {
        let text = text_of("{rule}", "}{", "{}}{");
        assert_eq!((text.matches('{').count(), text.matches('}').count()), (1, 1), "{text}");
    }
}
