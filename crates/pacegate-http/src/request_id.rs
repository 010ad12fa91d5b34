//! Request ids: the caller's id if it is safe to log, a generated id otherwise.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The header with the id, in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LENGTH_MAX: usize = 128;

/// Generates ids that are unique within this process and, with high probability, across processes.
#[derive(Debug)]
pub struct RequestIds {
    prefix: u32,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        Self { prefix: RandomState::new().hash_one("request id") as u32, next: AtomicU64::new(0) }
    }
}

impl RequestIds {
    /// Returns the caller's id if it is 1 to 128 visible ASCII characters, a new one otherwise.
    pub fn accept_or_generate(&self, given: Option<&HeaderValue>) -> HeaderValue {
        let mut id = match given.filter(|value| is_usable(value)) {
            Some(value) => value.clone(),
            None => self.generate(),
        };
        // HTTP/2 then keeps it out of the connection's table of headers, where it would only
        // displace others.
        id.set_sensitive(true);
        id
    }

    fn generate(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = u128::from(self.prefix) << 48 | u128::from(number & 0xffff_ffff_ffff);
        let mut text = *b"req_00000000000000000000";
        for (digit, byte) in text[4..].iter_mut().rev().enumerate() {
            *byte = DIGITS[(id >> (4 * digit)) as usize & 15];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req_0"))
    }
}

/// Returns whether an id is safe to log: 1 to 128 visible ASCII characters.
pub fn is_usable(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=LENGTH_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// Returns the id in a request's headers, or an empty text.
pub fn request_id(headers: &HeaderMap) -> &str {
    headers.get(&REQUEST_ID).map(as_text).unwrap_or_default()
}

/// Returns the id as text; it is ASCII by construction.
pub fn as_text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_ids_are_replaced_by_generated_ones() {
        let ids = RequestIds::default();
        let accepted = |text: &[u8]| {
            let value = HeaderValue::from_bytes(text).unwrap();
            ids.accept_or_generate(Some(&value)) == value
        };
        assert!(accepted(b"abc-123"));
        assert!(!accepted(b""));
        assert!(!accepted(b"two words"));
        assert!(!accepted(b"\x80"));
        assert!(!accepted(&[b'x'; 129]));
        assert_ne!(ids.accept_or_generate(None), ids.accept_or_generate(None));
        assert_eq!(as_text(&ids.generate()).len(), 24);
    }
}
