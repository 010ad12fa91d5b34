//! Keys: which counter a request touches. Parts are never glued together unescaped, so no identifier can imitate another key.

mod text;

pub use text::Variants;

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::hexadecimal;

/// What a rule counts, for everybody: its name, its dimension and its endpoint scope. With an identifier it becomes a [`Key`].
///
/// The name decides, not the numbers: a rule whose limit changes keeps its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    rule: Box<str>,
    dimension: Box<str>,
    scope: Box<str>,
    /// The bytes of the scope that tell its variants apart; empty for a counter without variants.
    variant: Range<usize>,
    per_endpoint: bool,
    digest: (u64, u32),
}

/// Where a counter comes from. Stores bound how many there are of those that callers make up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The configuration names it, with its dimension.
    #[default]
    Configured,
    /// The configuration names it, and a request its dimension.
    CallersDimension,
    /// A request brought its limit along.
    AdHoc,
}

impl Origin {
    /// The bits of a digest's first part that say it.
    const BITS: u32 = 2;

    /// The origin of the counter that has this digest.
    #[inline]
    pub fn of_digest(digest: (u64, u32)) -> Self {
        match digest.0 >> (u64::BITS - Self::BITS) {
            0 => Self::Configured,
            1 => Self::CallersDimension,
            _ => Self::AdHoc,
        }
    }

    fn mark(self, digest: u64) -> u64 {
        (digest & (u64::MAX >> Self::BITS)) | ((self as u64) << (u64::BITS - Self::BITS))
    }
}

impl Counter {
    /// A counter per identifier for everything that `scope` (a pattern, or any other distinction) covers.
    pub fn new(rule: &str, dimension: &str, scope: &str) -> Self {
        Self::build(rule, dimension, scope, 0..0, false)
    }

    /// A counter per identifier and concrete endpoint.
    pub fn per_endpoint(rule: &str, dimension: &str, scope: &str) -> Self {
        Self::build(rule, dimension, scope, 0..0, true)
    }

    /// As [`new`](Self::new), for one of several counters that differ in the bytes `variant` of the scope alone, such as an algorithm and a
    /// window. These are lower-case letters, digits, `_` and `:`; if they are not, or not in the scope, the counter has no variants.
    ///
    /// ```
    /// use pacegate_core::Counter;
    ///
    /// let minute = Counter::variant("per-user", "user", "60s/api", 0..3);
    /// let hour = Counter::variant("per-user", "user", "3600s/api", 0..5);
    /// assert_eq!(minute.family(), hour.family());
    /// assert_ne!(minute.digest(), hour.digest());
    /// ```
    pub fn variant(rule: &str, dimension: &str, scope: &str, variant: Range<usize>) -> Self {
        Self::build(rule, dimension, scope, valid(scope, variant), false)
    }

    /// As [`variant`](Self::variant), with a counter for each concrete endpoint.
    pub fn variant_per_endpoint(rule: &str, dimension: &str, scope: &str, variant: Range<usize>) -> Self {
        Self::build(rule, dimension, scope, valid(scope, variant), true)
    }

    fn build(rule: &str, dimension: &str, scope: &str, variant: Range<usize>, per_endpoint: bool) -> Self {
        let mut hasher = Sha256::new();
        hasher.update([u8::from(per_endpoint)]);
        for part in [rule, dimension, &scope[..variant.start], &scope[variant.end..]] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let family = hasher.clone().finalize();
        let hash = if variant.is_empty() {
            family
        } else {
            hasher.update(&scope.as_bytes()[variant.clone()]);
            hasher.finalize()
        };
        let (mut high, mut low) = ([0; 8], [0; 4]);
        high.copy_from_slice(&hash[..8]);
        low.copy_from_slice(&family[8..12]);
        Self {
            rule: rule.into(),
            dimension: dimension.into(),
            scope: scope.into(),
            variant,
            per_endpoint,
            digest: (Origin::Configured.mark(u64::from_le_bytes(high)), u32::from_le_bytes(low)),
        }
    }

    /// The same counter with another origin, which is part of its digest: counters of different
    /// origins never meet.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.digest.0 = origin.mark(self.digest.0);
        self
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        Origin::of_digest(self.digest)
    }

    /// The rule's name.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// What is counted: `user`, `ip`, `apikey` or a word of one's own.
    pub fn dimension(&self) -> &str {
        &self.dimension
    }

    /// The endpoint pattern, or another distinction within the rule.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Whether each concrete endpoint has a counter of its own.
    pub fn is_per_endpoint(&self) -> bool {
        self.per_endpoint
    }

    /// Whether there are other counters that differ from it in the variant alone.
    pub fn has_variants(&self) -> bool {
        !self.variant.is_empty()
    }

    /// The origin and 94 bits of SHA-256 over the parts: a short stand-in for them inside one process.
    /// The second part is the same for all variants.
    #[inline(always)]
    pub fn digest(&self) -> (u64, u32) {
        self.digest
    }

    /// What all variants have in common: the second part of their digests.
    #[inline]
    pub fn family(&self) -> u32 {
        self.digest.1
    }
}

fn valid(scope: &str, variant: Range<usize>) -> Range<usize> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b':');
    match scope.get(variant.clone()) {
        Some(text) if !text.is_empty() && text.bytes().all(plain) => variant,
        _ => 0..0,
    }
}

/// Names one counter of one identifier.
///
/// ```
/// use pacegate_core::{Counter, Key};
///
/// let counter = Counter::new("per-user-minute", "user", "/api/{*rest}");
/// let key = Key::new(&counter, "u1", "/api/orders");
/// // The scope is a pattern, so the concrete endpoint is not part of the key.
/// assert_eq!(key.endpoint(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    counter: &'a Counter,
    identifier: &'a str,
    endpoint: Option<&'a str>,
}

/// Who is counted: a dimension and an identifier in it. Stores keep all counters of one identity together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// `user`, `ip`, `apikey` or a word of one's own.
    pub dimension: &'a str,
    /// Which one.
    pub identifier: &'a str,
}

impl<'a> Key<'a> {
    /// Keys whose identifier and endpoint together are longer than this are replaced by a hash of them.
    pub const LENGTH_MAX: usize = 512;

    /// The key of `identifier`; `endpoint` counts only if the counter is per endpoint.
    #[inline]
    pub fn new(counter: &'a Counter, identifier: &'a str, endpoint: &'a str) -> Self {
        let endpoint = if counter.per_endpoint { Some(endpoint) } else { None };
        Self { counter, identifier, endpoint }
    }

    /// What it counts.
    #[inline]
    pub fn counter(&self) -> &'a Counter {
        self.counter
    }

    /// Whom it counts.
    #[inline]
    pub fn identifier(&self) -> &'a str {
        self.identifier
    }

    /// Whom it counts, with the dimension.
    pub fn identity(&self) -> Identity<'a> {
        Identity { dimension: &self.counter.dimension, identifier: self.identifier }
    }

    /// Where it counts, when each endpoint has a counter of its own.
    #[inline]
    pub fn endpoint(&self) -> Option<&'a str> {
        self.endpoint
    }

    /// The stand-in for an identifier and endpoint that are too long to keep; `None` when they are short enough.
    pub fn shortened(&self) -> Option<String> {
        self.is_shortened().then(|| self.stand_in(self.endpoint.unwrap_or_default()))
    }

    /// Whether a stand-in is kept instead of the identifier and endpoint.
    #[inline(always)]
    pub fn is_shortened(&self) -> bool {
        let length = self.identifier.len() + self.endpoint.map_or(0, str::len);
        // An identifier that looks like a stand-in is hashed as well, so that nobody can write another one's stand-in.
        length > Self::LENGTH_MAX || self.identifier.as_bytes().first() == Some(&STAND_IN)
    }

    #[cold]
    fn stand_in(&self, endpoint: &str) -> String {
        let mut hasher = Sha256::new();
        hasher.update((self.identifier.len() as u64).to_le_bytes());
        hasher.update(self.identifier.as_bytes());
        hasher.update(endpoint.as_bytes());
        format!("{}{}", char::from(STAND_IN), hexadecimal(&hasher.finalize()))
    }
}

/// The first character of every stand-in.
const STAND_IN: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_cannot_be_written_by_hand() {
        let counter = Counter::new("rule", "user", "");
        let long = "x".repeat(Key::LENGTH_MAX + 1);
        let stand_in = Key::new(&counter, &long, "").shortened().unwrap();
        let forged = Key::new(&counter, &stand_in, "");
        assert_ne!(forged.shortened().as_deref(), Some(stand_in.as_str()));
        assert!(forged.shortened().is_some(), "it is not kept as it is either");
    }

    #[test]
    fn a_variant_outside_of_the_scope_or_of_other_characters_changes_nothing() {
        for range in [1..2, 0..9, 2..3, 0..0] {
            assert_eq!(Counter::variant("rule", "user", "a/é", range), Counter::new("rule", "user", "a/é"));
        }
        assert!(Counter::variant("rule", "user", "a/é", 0..1).has_variants());
    }

    #[test]
    fn longest_key_is_kept_as_it_is() {
        let counter = Counter::per_endpoint("rule", "user", "");
        let identifier = "x".repeat(Key::LENGTH_MAX - 1);
        assert!(!Key::new(&counter, &identifier, "/").is_shortened());
        assert!(Key::new(&counter, &identifier, "/a").is_shortened());
    }

    #[test]
    fn counter_names_its_rule() {
        let counters = [Counter::new("rule", "user", "/"), Counter::per_endpoint("rule", "user", "/")];
        for counter in counters.iter().chain(&[Counter::variant("rule", "user", "a/b", 0..1)]) {
            assert_eq!(counter.rule(), "rule");
        }
    }

    #[test]
    fn digest_tells_the_origin_and_keeps_origins_apart() {
        let counter = || Counter::new("rule", "user", "");
        let of = |origin| counter().with_origin(origin).digest();
        let origins = [Origin::Configured, Origin::CallersDimension, Origin::AdHoc];
        for origin in origins {
            assert_eq!(Origin::of_digest(of(origin)), origin);
            assert_eq!(of(origin).1, counter().family());
        }
        assert_eq!(of(Origin::Configured), counter().digest());
        assert_ne!(of(Origin::AdHoc), of(Origin::CallersDimension));
        let back = counter().with_origin(Origin::AdHoc).with_origin(Origin::Configured);
        assert_eq!(back, counter());
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let digests = [
            Counter::new("ab", "c", "").digest(),
            Counter::new("a", "bc", "").digest(),
            Counter::new("a", "b", "c").digest(),
            Counter::new("", "abc", "").digest(),
            Counter::per_endpoint("ab", "c", "").digest(),
            Counter::variant("a", "b", "cd", 0..1).digest(),
            Counter::variant("a", "b", "cd", 1..2).digest(),
            Counter::new("a", "b", "cd").digest(),
        ];
        for (index, digest) in digests.iter().enumerate() {
            assert!(!digests[index + 1..].contains(digest));
        }
    }
}
