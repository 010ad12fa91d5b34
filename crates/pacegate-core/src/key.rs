//! Keys: which counter a request touches. Parts are escaped before they are joined, so no
//! identifier can imitate another key.

mod text;

pub use text::Variants;

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::hexadecimal;

/// What a rule counts for every identifier: its name, its dimension and its endpoint scope. With an
/// identifier it becomes a [`Key`].
///
/// The name identifies the counter, not the numbers: a rule whose limit changes keeps its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    rule: Box<str>,
    dimension: Box<str>,
    scope: Box<str>,
    /// The byte range of the scope that distinguishes its variants; empty for a counter without
    /// variants.
    variant: Range<usize>,
    per_endpoint: bool,
    digest: (u64, u32),
}

/// Where a counter comes from. Stores bound the number of counters that callers can create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The configuration defines the rule and its dimension.
    #[default]
    Configured,
    /// The configuration defines the rule, and the request names the dimension.
    CallersDimension,
    /// The request carries an ad-hoc limit.
    AdHoc,
}

impl Origin {
    /// The number of bits of a digest's first part that hold the origin.
    const BITS: u32 = 2;

    /// Returns the origin of the counter with this digest.
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
    /// A counter per identifier for everything that `scope` (a pattern or any other distinction)
    /// covers.
    pub fn new(rule: &str, dimension: &str, scope: &str) -> Self {
        Self::build(rule, dimension, scope, 0..0, false)
    }

    /// A counter per identifier and concrete endpoint.
    pub fn per_endpoint(rule: &str, dimension: &str, scope: &str) -> Self {
        Self::build(rule, dimension, scope, 0..0, true)
    }

    /// Like [`new`](Self::new), for one of several counters that differ only in the byte range
    /// `variant` of the scope, such as an algorithm and a window.
    ///
    /// These bytes are lower-case letters, digits, `_` and `:`. If they are not, or the range is
    /// outside the scope, the counter has no variants.
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

    /// Like [`variant`](Self::variant), with one counter per concrete endpoint.
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

    /// The same counter with another origin. The origin is part of the digest, so counters of
    /// different origins are never shared.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.digest.0 = origin.mark(self.digest.0);
        self
    }

    /// The origin of the counter.
    pub fn origin(&self) -> Origin {
        Origin::of_digest(self.digest)
    }

    /// The rule's name.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The dimension that is counted: `user`, `ip`, `apikey` or a custom name.
    pub fn dimension(&self) -> &str {
        &self.dimension
    }

    /// The endpoint pattern, or another distinction within the rule.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Whether each concrete endpoint has a separate counter.
    pub fn is_per_endpoint(&self) -> bool {
        self.per_endpoint
    }

    /// Whether other counters can exist that differ from this one only in the variant.
    pub fn has_variants(&self) -> bool {
        !self.variant.is_empty()
    }

    /// The origin and 94 bits of SHA-256 over the parts: a short substitute for them inside one
    /// process. The second part is the same for all variants.
    #[inline(always)]
    pub fn digest(&self) -> (u64, u32) {
        self.digest
    }

    /// The part of the digest that all variants share.
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

/// The name of one counter of one identifier.
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

/// The identity that is counted: a dimension and an identifier in it. Stores keep all counters of
/// one identity together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    /// `user`, `ip`, `apikey` or a custom name.
    pub dimension: &'a str,
    /// The identifier within the dimension.
    pub identifier: &'a str,
}

impl<'a> Key<'a> {
    /// The longest identifier and endpoint together, in bytes; longer ones are replaced by a hash.
    pub const LENGTH_MAX: usize = 512;

    /// The key of `identifier`; `endpoint` is part of it only if the counter is per endpoint.
    #[inline]
    pub fn new(counter: &'a Counter, identifier: &'a str, endpoint: &'a str) -> Self {
        let endpoint = if counter.per_endpoint { Some(endpoint) } else { None };
        Self { counter, identifier, endpoint }
    }

    /// The counter.
    #[inline]
    pub fn counter(&self) -> &'a Counter {
        self.counter
    }

    /// The identifier that is counted.
    #[inline]
    pub fn identifier(&self) -> &'a str {
        self.identifier
    }

    /// The identity that is counted.
    pub fn identity(&self) -> Identity<'a> {
        Identity { dimension: &self.counter.dimension, identifier: self.identifier }
    }

    /// The endpoint, if each endpoint has a separate counter.
    #[inline]
    pub fn endpoint(&self) -> Option<&'a str> {
        self.endpoint
    }

    /// The substitute for an identifier and endpoint that are too long to store; `None` when they
    /// are short enough.
    pub fn shortened(&self) -> Option<String> {
        self.is_shortened().then(|| self.substitute(self.endpoint.unwrap_or_default()))
    }

    /// Whether a substitute is stored instead of the identifier and endpoint.
    #[inline(always)]
    pub fn is_shortened(&self) -> bool {
        let length = self.identifier.len() + self.endpoint.map_or(0, str::len);
        // An identifier that looks like a substitute is hashed as well, so that no caller can forge
        // one.
        length > Self::LENGTH_MAX || self.identifier.as_bytes().first() == Some(&SUBSTITUTE_PREFIX)
    }

    #[cold]
    fn substitute(&self, endpoint: &str) -> String {
        let mut hasher = Sha256::new();
        hasher.update((self.identifier.len() as u64).to_le_bytes());
        hasher.update(self.identifier.as_bytes());
        hasher.update(endpoint.as_bytes());
        format!("{}{}", char::from(SUBSTITUTE_PREFIX), hexadecimal(&hasher.finalize()))
    }
}

/// The first character of every substitute.
const SUBSTITUTE_PREFIX: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitute_cannot_be_forged() {
        let counter = Counter::new("rule", "user", "");
        let long = "x".repeat(Key::LENGTH_MAX + 1);
        let substitute = Key::new(&counter, &long, "").shortened().unwrap();
        let forged = Key::new(&counter, &substitute, "");
        assert_ne!(forged.shortened().as_deref(), Some(substitute.as_str()));
        assert!(forged.shortened().is_some(), "an identifier that looks like a substitute is hashed");
    }

    #[test]
    fn invalid_variant_is_ignored() {
        for range in [1..2, 0..9, 2..3, 0..0] {
            assert_eq!(Counter::variant("rule", "user", "a/é", range), Counter::new("rule", "user", "a/é"));
        }
        assert!(Counter::variant("rule", "user", "a/é", 0..1).has_variants());
    }

    #[test]
    fn longest_key_is_stored_unchanged() {
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
    fn digest_contains_the_origin() {
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
    fn parts_are_delimited() {
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
