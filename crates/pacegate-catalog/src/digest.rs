//! SHA-256 in hexadecimal: lookup keys of texts, and the HMACs of secrets and of the audit trail.

use hmac::{Hmac, KeyInit};
use pacegate_core::hexadecimal;
use sha2::digest::{FixedOutput, Update};
use sha2::{Digest as _, Sha256};

use crate::error::CatalogError;

/// The lookup key of a text. Columns store its hash, because MySQL folds case, pads and truncates
/// the texts that it indexes.
pub(crate) fn key_of(text: &str) -> String {
    hexadecimal(&Sha256::digest(text))
}

/// A hash that only the owner of the key can compute.
pub(crate) type Keyed = Hmac<Sha256>;

/// The HMAC of a secret.
pub(crate) fn keyed(key: &str, secret: &str) -> String {
    let mut hasher = keyed_hasher(key.as_bytes());
    hasher.update(secret.as_bytes());
    hexadecimal(&hasher.finalize_fixed())
}

fn keyed_hasher(key: &[u8]) -> Keyed {
    // HMAC accepts a key of any length.
    Keyed::new_from_slice(key).unwrap_or_else(|_| Hmac::new(&Default::default()))
}

pub(crate) fn random_hexadecimal<const BYTES: usize>() -> Result<String, CatalogError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        CatalogError::unavailable(format!("the system's random number generator failed: {error}"))
    })?;
    Ok(hexadecimal(&bytes))
}

/// A hash over several fields. Each is prefixed with its length, so that no two lists of fields
/// hash the same bytes.
pub(crate) struct Fields<H>(H);

impl Fields<Sha256> {
    pub(crate) fn plain() -> Self {
        Self(Sha256::new())
    }
}

impl Fields<Keyed> {
    pub(crate) fn keyed(key: &[u8]) -> Self {
        Self(keyed_hasher(key))
    }
}

impl<H: Update + FixedOutput> Fields<H> {
    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.update(&[1]);
        self.0.update(&(text.len() as u64).to_be_bytes());
        self.0.update(text.as_bytes());
        self
    }

    /// `None` differs from an empty text.
    pub(crate) fn optional(mut self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(text),
            None => {
                self.0.update(&[0]);
                self
            }
        }
    }

    pub(crate) fn number(mut self, number: i64) -> Self {
        self.0.update(&number.to_be_bytes());
        self
    }

    pub(crate) fn hexadecimal(self) -> String {
        hexadecimal(&self.0.finalize_fixed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_the_sha_256_of_the_text() {
        assert_eq!(key_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn different_fields_have_different_digests() {
        let digests = [
            Fields::plain().text("ab").text("c"),
            Fields::plain().text("a").text("bc"),
            Fields::plain().text("abc"),
            Fields::plain().text("abc").optional(None),
            Fields::plain().text("abc").optional(Some("")),
        ];
        let mut digests: Vec<String> = digests.into_iter().map(Fields::hexadecimal).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 5);
    }
}
