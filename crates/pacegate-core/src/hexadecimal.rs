//! Hexadecimal digits.

/// Returns `bytes` as lower-case hexadecimal digits, two for each byte. Keys of stores, rows of the catalog
/// and log lines have hashes in this spelling, so it never changes.
///
/// ```
/// assert_eq!(pacegate_core::hexadecimal(&[0x00, 0x7f, 0xe0]), "007fe0");
/// ```
pub fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
