//! Hexadecimal digits.

/// Returns `bytes` as lower-case hexadecimal digits, two per byte.
///
/// Store keys, catalog rows and log lines contain hashes in this form, so it never changes.
///
/// ```
/// assert_eq!(pacegate_core::hexadecimal(&[0x00, 0x7f, 0xe0]), "007fe0");
/// ```
pub fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
