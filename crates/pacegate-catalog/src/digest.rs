//! SHA-256 in hexadecimal: what texts are looked up by, and what chains the audit trail.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

use crate::error::CatalogError;

/// Columns are looked up by the hash of a text, because MySQL folds, pads and bounds the texts that it indexes.
pub(crate) fn key_of(text: &str) -> String {
    hexadecimal(&Sha256::digest(text))
}

/// The hash of a secret with a key.
pub(crate) fn keyed(key: &str, secret: &str) -> String {
    // A key of any length will do.
    let mut hasher =
        Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap_or_else(|_| Hmac::new(&Default::default()));
    hasher.update(secret.as_bytes());
    hexadecimal(&hasher.finalize().into_bytes())
}

pub(crate) fn random_hexadecimal<const BYTES: usize>() -> Result<String, CatalogError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| CatalogError::unavailable(format!("the system has no randomness: {error}")))?;
    Ok(hexadecimal(&bytes))
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// A hash over several fields, each with its length, so that no two lists of fields are the same bytes.
pub(crate) struct Digest(Sha256);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.update([1]);
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text);
        self
    }

    /// Nothing is not the same as an empty text.
    pub(crate) fn optional(mut self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(text),
            None => {
                self.0.update([0]);
                self
            }
        }
    }

    pub(crate) fn number(mut self, number: i64) -> Self {
        self.0.update(number.to_be_bytes());
        self
    }

    pub(crate) fn hexadecimal(self) -> String {
        hexadecimal(&self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_sha_256_of_the_text() {
        assert_eq!(key_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn different_fields_have_different_digests() {
        let digests = [
            Digest::new().text("ab").text("c"),
            Digest::new().text("a").text("bc"),
            Digest::new().text("abc"),
            Digest::new().text("abc").optional(None),
            Digest::new().text("abc").optional(Some("")),
        ];
        let mut digests: Vec<String> = digests.into_iter().map(Digest::hexadecimal).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), 5);
    }
}
