//! A request to be checked: who, where, how much.

use std::borrow::Cow;

use pacegate_core::{Cost, Limit};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::error::CheckError;
use crate::profile::Profile;
use crate::rule::KEY_DIMENSION;

/// The longest identifier, in bytes.
pub const IDENTIFIER_LENGTH_MAX: usize = 1_024;
const DIMENSION_LENGTH_MAX: usize = 64;
const METHOD_LENGTH_MAX: usize = 32;
const NAME_LENGTH_MAX: usize = 128;
const IDEMPOTENCY_KEY_LENGTH_MAX: usize = 255;

/// What a limiter is asked about: one or more identities, where they go, and how much it costs.
///
/// ```
/// use pacegate::Check;
///
/// // A key of one's own against two plans at once:
/// let plans = Check::key("user-123").plan("gold").plan("daily");
/// // A request against the rules that match it:
/// let request = Check::new("user", "u1").and("ip", "10.0.0.1").endpoint("/api/v1/orders").method("GET");
/// ```
#[derive(Clone, Debug)]
pub struct Check<'a> {
    pub(crate) identities: SmallVec<[(&'a str, &'a str); 1]>,
    /// Where the request goes.
    pub endpoint: Option<&'a str>,
    /// The request's method.
    pub method: Option<&'a str>,
    /// How much the request takes.
    pub cost: Cost,
    pub(crate) plans: SmallVec<[&'a str; 2]>,
    pub(crate) limit: Option<Limit>,
    pub(crate) idempotency: Option<(Cow<'a, str>, &'a str)>,
    pub(crate) profile: Option<&'a Profile>,
    pub(crate) tier: Option<&'a str>,
}

impl<'a> Check<'a> {
    /// A check of `identifier` in `dimension`.
    pub fn new(dimension: &'a str, identifier: &'a str) -> Self {
        let mut identities = SmallVec::new();
        identities.push((dimension, identifier));
        Self {
            identities,
            endpoint: None,
            method: None,
            cost: Cost::ONE,
            plans: SmallVec::new(),
            limit: None,
            idempotency: None,
            profile: None,
            tier: None,
        }
    }

    /// A check of a key that the program made up itself.
    pub fn key(key: &'a str) -> Self {
        Self::new(KEY_DIMENSION, key)
    }

    /// Checks another identity in the same step: all limits of all of them are charged, or none is.
    #[must_use]
    pub fn and(mut self, dimension: &'a str, identifier: &'a str) -> Self {
        self.identities.push((dimension, identifier));
        self
    }

    /// Where the request goes; rules apply only to checks that say so.
    #[must_use]
    pub fn endpoint(mut self, endpoint: &'a str) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    /// The request's method, in upper case.
    #[must_use]
    pub fn method(mut self, method: &'a str) -> Self {
        self.method = Some(method);
        self
    }

    /// How much the request takes; 1 unless said.
    #[must_use]
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Adds the limits of a plan.
    #[must_use]
    pub fn plan(mut self, name: &'a str) -> Self {
        self.plans.push(name);
        self
    }

    /// Adds a limit for this check alone, counted per identity, endpoint, algorithm and window.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// What is known about the user: the identity of the dimension `user`.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<Option<&'a Profile>>) -> Self {
        self.profile = profile.into();
        self
    }

    /// The user's tier, instead of the one in the profile.
    #[must_use]
    pub fn tier(mut self, tier: impl Into<Option<&'a str>>) -> Self {
        self.tier = tier.into();
        self
    }

    /// Makes the check repeatable: the same `key` of the same `caller` within five minutes is charged once.
    #[must_use]
    pub fn idempotency(mut self, caller: impl Into<Cow<'a, str>>, key: &'a str) -> Self {
        self.idempotency = Some((caller.into(), key));
        self
    }

    /// Everyone who is checked, by dimension and identifier, in the order given.
    pub fn identities(&self) -> &[(&'a str, &'a str)] {
        &self.identities
    }

    /// The plans whose limits apply.
    pub fn plans(&self) -> &[&'a str] {
        &self.plans
    }

    /// The limit that the check brings along.
    pub fn own_limit(&self) -> Option<Limit> {
        self.limit
    }

    /// The tier that the check names.
    pub fn own_tier(&self) -> Option<&'a str> {
        self.tier
    }

    /// The tier that selects rules: the check's own, or the one in the profile.
    pub fn effective_tier(&self) -> Option<&'a str> {
        self.tier.or_else(|| self.profile?.tier.as_deref())
    }

    /// What makes it repeatable.
    pub fn idempotency_key(&self) -> Option<&'a str> {
        self.idempotency.as_ref().map(|(_, key)| *key)
    }

    /// Who is checked, as one text that no other identities share, in whatever order they were given.
    pub fn identity(&self) -> String {
        let mut pairs: SmallVec<[(&str, &str); 4]> = self.identities.iter().copied().collect();
        pairs.sort_unstable();
        let part = |text: &str| format!("{}:{text};", text.len());
        pairs.into_iter().map(|(dimension, identifier)| part(dimension) + &part(identifier)).collect()
    }

    /// A strong hash of everything the check asks for.
    pub(crate) fn fingerprint(&self) -> [u8; 16] {
        let mut text = Vec::with_capacity(256);
        let mut part = |bytes: &[u8]| {
            text.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            text.extend_from_slice(bytes);
        };
        part(self.identity().as_bytes());
        part(self.endpoint.unwrap_or_default().as_bytes());
        part(self.method.unwrap_or_default().as_bytes());
        part(&self.cost.get().to_le_bytes());
        for plan in &self.plans {
            part(plan.as_bytes());
        }
        part(b"|");
        if let Some(tier) = self.tier {
            part(tier.as_bytes());
        }
        if let Some(limit) = &self.limit {
            part(limit.algorithm().name().as_bytes());
            part(&limit.quota().to_le_bytes());
            part(&limit.capacity().to_le_bytes());
            part(&limit.window().as_micros().to_le_bytes());
        }
        fingerprint(&text)
    }

    pub(crate) fn validate(&self) -> Result<(), CheckError> {
        if self.identities.is_empty() {
            return Err(CheckError::NoIdentity);
        }
        for (place, (dimension, identifier)) in self.identities.iter().enumerate() {
            if !is_dimension(dimension) {
                return Err(CheckError::InvalidDimension { dimension: (*dimension).into() });
            }
            if self.identities[..place].iter().any(|(other, _)| other == dimension) {
                return Err(CheckError::DuplicateDimension { dimension: (*dimension).into() });
            }
            if !is_identifier(identifier) {
                return Err(CheckError::InvalidIdentifier { dimension: (*dimension).into() });
            }
        }
        if !self.tier.is_none_or(is_identifier) {
            return Err(CheckError::InvalidTier);
        }
        match &self.idempotency {
            Some((_, key)) if !is_idempotency_key(key) => Err(CheckError::InvalidIdempotencyKey),
            _ => Ok(()),
        }
    }
}

/// 128 bits of SHA-256.
pub(crate) fn fingerprint(bytes: &[u8]) -> [u8; 16] {
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&Sha256::digest(bytes)[..16]);
    fingerprint
}

pub(crate) fn is_idempotency_key(key: &str) -> bool {
    is_clean(key, IDEMPOTENCY_KEY_LENGTH_MAX)
}

/// Whether `text` can name a rule or a plan: names stand in headers, metrics and logs.
pub(crate) fn is_name(text: &str) -> bool {
    let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
    printable && (1..=NAME_LENGTH_MAX).contains(&text.len())
}

/// Whether `text` is a method in upper case.
pub(crate) fn is_method(text: &str) -> bool {
    (1..=METHOD_LENGTH_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether `word` can name a dimension.
pub(crate) fn is_dimension(word: &str) -> bool {
    (1..=DIMENSION_LENGTH_MAX).contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Whether `text` can be counted by.
#[inline]
pub(crate) fn is_identifier(text: &str) -> bool {
    is_clean(text, IDENTIFIER_LENGTH_MAX)
}

#[inline(always)]
fn is_clean(text: &str, length_max: usize) -> bool {
    let bytes = text.as_bytes();
    // Eight bytes at a time; the last eight overlap those before, and shorter texts are looked at one by one.
    let clean = match bytes.last_chunk::<8>() {
        Some(last) => {
            !has_control(*last)
                && bytes.chunks_exact(8).all(|chunk| !has_control(chunk.try_into().unwrap_or(*last)))
        }
        None => !bytes.iter().any(u8::is_ascii_control),
    };
    clean && (1..=length_max).contains(&bytes.len())
}

/// Whether one of eight bytes is below space or is DEL: the classic test for a byte less than n, on all of them at once.
#[inline(always)]
fn has_control(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES * 0x80;
    let word = u64::from_le_bytes(bytes);
    let less = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & TOPS;
    less(word, 0x20) | less(word ^ (ONES * 0x7f), 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_found_wherever_they_stand() {
        for length in 1..40 {
            let clean = "é~ x0{".chars().cycle().take(length).collect::<String>();
            assert!(is_identifier(&clean), "{clean:?}");
            for (place, _) in clean.char_indices() {
                for control in ['\0', '\u{1}', '\n', '\u{1f}', '\u{7f}'] {
                    let mut dirty = clean.clone();
                    dirty.insert(place, control);
                    assert!(!is_identifier(&dirty), "{dirty:?}");
                }
            }
        }
        assert!(!is_identifier(""));
        assert!(!is_identifier(&"x".repeat(IDENTIFIER_LENGTH_MAX + 1)));
    }
}
