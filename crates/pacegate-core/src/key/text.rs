//! Keys as text, for stores whose keys are strings. Parts are escaped, so no part can imitate
//! another or extend into it.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{Counter, Identity, Key};
use crate::hexadecimal;

/// Maximum length of an identifier; a longer one is replaced by its hash.
const IDENTIFIER_LENGTH_MAX: usize = 256;
/// Maximum length of rule and scope without the variant; longer ones are replaced by their hash.
const RULE_LENGTH_MAX: usize = 140;
/// Maximum length of an endpoint; a longer one is replaced by its hash.
const ENDPOINT_LENGTH_MAX: usize = 128;
/// The first character of a hash; in other parts it is escaped.
const HASHED: char = '#';

impl Key<'_> {
    /// Appends `dimension:identifier`, which all limits of one identity share.
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
        self.identity().write(text);
    }

    /// See [`Identity::hash`].
    pub fn identity_hash(&self) -> u64 {
        self.identity().hash()
    }

    /// Appends `rule:scope`, and `:endpoint` if each endpoint has a separate counter.
    pub fn write_counter(&self, text: &mut String) {
        let mut after = String::new();
        self.write_around_variant(text, &mut after);
        write_escaped(&self.counter.scope[self.counter.variant.clone()], text);
        text.push_str(&after);
    }

    /// Returns the texts that [`write_counter`](Self::write_counter) writes for the variants of the
    /// counter; `None` for a counter without variants.
    ///
    /// ```
    /// use pacegate_core::{Counter, Key};
    ///
    /// let counter = Counter::variant("daily", "user", "gcra:60/api", 0..7);
    /// let variants = Key::new(&counter, "u1", "").variants().unwrap();
    /// assert!(variants.contain("daily:token_bucket%3a3600/api"));
    /// assert!(!variants.contain("daily:gcra%3a60/other/api"));
    /// ```
    pub fn variants(&self) -> Option<Variants> {
        let mut variants = Variants::default();
        self.write_around_variant(&mut variants.before, &mut variants.after);
        self.counter.has_variants().then_some(variants)
    }

    /// Writes the text before and after the variant. Neither depends on the variant, so a counter
    /// can be found without knowing it.
    fn write_around_variant(&self, before: &mut String, after: &mut String) {
        let Counter { rule, scope, variant, .. } = self.counter;
        let start = before.len();
        write_escaped(rule, before);
        before.push(':');
        write_escaped(&scope[..variant.start], before);
        write_escaped(&scope[variant.end..], after);
        if before.len() - start + after.len() > RULE_LENGTH_MAX {
            let mut whole = before.split_off(start);
            // A character that neither part contains.
            whole.push(HASHED);
            whole.push_str(after);
            after.clear();
            write_hash(&whole, before);
        }
        if let Some(endpoint) = self.endpoint {
            after.push(':');
            write_bounded(after, ENDPOINT_LENGTH_MAX, |text| write_escaped(endpoint, text));
        }
    }
}

/// The texts of a counter's variants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variants {
    /// The common prefix.
    pub before: String,
    /// The common suffix.
    pub after: String,
}

impl Variants {
    /// Whether `text` is the text of a variant.
    pub fn contain(&self, text: &str) -> bool {
        let variant = text.strip_prefix(&*self.before).and_then(|rest| rest.strip_suffix(&*self.after));
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'%');
        variant.is_some_and(|variant| !variant.is_empty() && variant.bytes().all(plain))
    }
}

impl Identity<'_> {
    /// Appends `dimension:identifier`.
    pub fn write(&self, text: &mut String) {
        write_escaped(self.dimension, text);
        text.push(':');
        write_bounded(text, IDENTIFIER_LENGTH_MAX, |text| write_escaped(self.identifier, text));
    }

    /// A hash that is the same on every node and in every version, used to shard identities.
    pub fn hash(&self) -> u64 {
        let mut text = String::new();
        self.write(&mut text);
        let mut first = [0; 8];
        first.copy_from_slice(&Sha256::digest(text.as_bytes())[..8]);
        u64::from_le_bytes(first)
    }
}

fn write_escaped(part: &str, text: &mut String) {
    for character in part.chars() {
        match character {
            '%' | ':' | '{' | '}' | HASHED | ' ' | '\0'..='\x1f' | '\x7f' => {
                let _ = write!(text, "%{:02x}", character as u32);
            }
            character => text.push(character),
        }
    }
}

fn write_bounded(text: &mut String, length_max: usize, write: impl FnOnce(&mut String)) {
    let start = text.len();
    write(text);
    if text.len() - start > length_max {
        let whole = text.split_off(start);
        write_hash(&whole, text);
    }
}

fn write_hash(whole: &str, text: &mut String) {
    text.push(HASHED);
    text.push_str(&hexadecimal(&Sha256::digest(whole.as_bytes())));
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn long_parts_are_hashed_and_cannot_be_forged() {
        let long = "x".repeat(IDENTIFIER_LENGTH_MAX + 1);
        let text = text_of("rule", "", &long);
        assert!(text.len() < 100, "{text}");
        let imitated = text.trim_start_matches("{user:").split('}').next().unwrap();
        assert_ne!(text_of("rule", "", imitated), text);
    }

    #[test]
    fn variants_with_long_parts_are_found() {
        let long = "/y".repeat(300);
        for (rule, scope) in [("rule", "/x"), ("rule", &*long), (&*long, "/x"), (&*long, &*long)] {
            for endpoint in ["/e", &*long] {
                let counter = |variant: &str| {
                    let scope = format!("{variant}{scope}");
                    Counter::variant_per_endpoint(rule, "user", &scope, 0..variant.len())
                };
                let text = |variant: &str, endpoint: &str| {
                    let mut text = String::new();
                    Key::new(&counter(variant), "u", endpoint).write_counter(&mut text);
                    text
                };
                let (known, other) = (counter("gcra:1"), text("sliding_counter:9007199254740991", endpoint));
                let variants = Key::new(&known, "u", endpoint).variants().unwrap();
                assert!(variants.contain(&other) && variants.contain(&text("gcra:1", endpoint)), "{other}");
                assert!(!variants.contain(&text("gcra:1", "/f")), "{other}");
                assert!(other.len() <= RULE_LENGTH_MAX + ENDPOINT_LENGTH_MAX + 40, "{other}");
                assert_ne!(other, text("gcra:1", endpoint));
            }
        }
    }

    #[test]
    fn variants_of_other_rules_and_scopes_do_not_match() {
        let counter = Counter::variant("rule", "user", "gcra:1/a", 0..6);
        let variants = Key::new(&counter, "u", "").variants().unwrap();
        assert!(variants.contain("rule:gcra%3a2/a"));
        for other in
            ["rule:/a", "rules:gcra%3a1/a", "rule:gcra%3a1/b/a", "rule:gcra%3a1/a:/a", "rule:gcra%3a1/ab"]
        {
            assert!(!variants.contain(other), "{other}");
        }
        assert_eq!(Key::new(&Counter::new("rule", "user", "gcra:1/a"), "u", "").variants(), None);
    }

    #[test]
    fn identity_hash_is_stable() {
        let counter = Counter::new("rule", "user", "");
        let other = Counter::new("other", "user", "/x");
        let hash = Key::new(&counter, "alice", "").identity_hash();
        assert_eq!(
            hash,
            Key::new(&other, "alice", "").identity_hash(),
            "all limits of an identity stay together"
        );
        // Sharding depends on this value: another one would restart every counter.
        assert_eq!(hash, 3580743044109811162);
    }

    #[test]
    fn text_never_contains_unescaped_braces() {
        let text = text_of("{rule}", "}{", "{}}{");
        assert_eq!((text.matches('{').count(), text.matches('}').count()), (1, 1), "{text}");
    }
}
