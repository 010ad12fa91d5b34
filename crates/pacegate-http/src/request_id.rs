//! Request ids: taken from the caller when they can stand in a log line, made otherwise.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The header that carries the id in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LENGTH_MAX: usize = 128;

/// Makes ids that differ within this process and, but for chance, between processes.
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
    /// The caller's id if it is 1 to 128 visible ASCII characters, a new one otherwise.
    pub fn take_or_make(&self, given: Option<&HeaderValue>) -> HeaderValue {
        match given.filter(|value| is_usable(value)) {
            Some(value) => value.clone(),
            None => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = u128::from(self.prefix) << 48 | u128::from(number & 0xffff_ffff_ffff);
        let mut text = *b"req_00000000000000000000";
        for (place, byte) in text[4..].iter_mut().rev().enumerate() {
            *byte = DIGITS[(id >> (4 * place)) as usize & 15];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req_0"))
    }
}

/// Whether it can stand in a log line: 1 to 128 visible ASCII characters.
pub fn is_usable(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=LENGTH_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// The id among a request's headers, or nothing.
pub fn request_id(headers: &HeaderMap) -> &str {
    headers.get(&REQUEST_ID).map(as_text).unwrap_or_default()
}

/// The id as text; it is ASCII by construction.
pub fn as_text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_can_be_logged_and_makes_the_rest() {
        let ids = RequestIds::default();
        let taken = |text: &[u8]| {
            let value = HeaderValue::from_bytes(text).unwrap();
            ids.take_or_make(Some(&value)) == value
        };
        assert!(taken(b"abc-123"));
        assert!(!taken(b""));
        assert!(!taken(b"two words"));
        assert!(!taken(b"\x80"));
        assert!(!taken(&[b'x'; 129]));
        assert_ne!(ids.take_or_make(None), ids.take_or_make(None));
        assert_eq!(as_text(&ids.make()).len(), 24);
    }
}
