//! Canonical forms of dimensions, identifiers, addresses, methods and names.
//!
//! Every interface parses these values through this module, so two spellings of one identity always
//! share one counter.
//!
//! ```
//! use pacegate::identity;
//!
//! assert_eq!(identity::dimension("API_KEY")?, "apikey");
//! assert_eq!(identity::identifier("ip", "[2001:DB8::1]:443", identity::IPV6_PREFIX)?, "2001:db8::/64");
//! assert_eq!(identity::identifier("ip", "::ffff:192.0.2.1", identity::IPV6_PREFIX)?, "192.0.2.1");
//! assert_eq!(identity::identifier("user", "Alice", identity::IPV6_PREFIX)?, "Alice");
//! # Ok::<(), identity::Invalid>(())
//! ```

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// The dimension whose identifiers have tiers, custom limits and overrides.
pub const USER: &str = "user";
/// The dimension whose identifiers are IP addresses.
pub const IP: &str = "ip";
/// The dimension of API keys.
pub const API_KEY: &str = "apikey";
/// The dimension of keys that an embedding program chooses.
pub const KEY: &str = "key";
/// The default dimensions, besides [`KEY`], whose identifiers can have a policy.
pub const POLICY_DIMENSIONS: [&str; 3] = [USER, IP, API_KEY];

/// The identifier that all invalid addresses in descriptors share in the dimension `ip`.
const INVALID_ADDRESS: &str = "invalid";

/// Default number of leading bits by which IPv6 addresses are counted. A provider usually assigns a
/// /64 to one customer.
pub const IPV6_PREFIX: u8 = 64;

/// Maximum length of a dimension, in bytes.
pub const DIMENSION_LENGTH_MAX: usize = 64;
/// Maximum length of an identifier, in bytes.
pub const IDENTIFIER_LENGTH_MAX: usize = 1_024;
/// Maximum length of a method, in bytes.
pub const METHOD_LENGTH_MAX: usize = 32;
/// Maximum length of the name of a rule, plan or tier, in bytes.
pub const NAME_LENGTH_MAX: usize = 128;

const DIMENSION_REASON: &str = "must be 1 to 64 lower-case letters, digits, `_`, `-` or `.`";
pub(crate) const IDENTIFIER_REASON: &str = "must be 1 to 1024 bytes long without control characters";
const ADDRESS_REASON: &str = "must be an IP address like 192.0.2.1 or 2001:db8::1";
const METHOD_REASON: &str = "must be a method like GET or POST";
const NAME_REASON: &str = "must be 1 to 128 printable ASCII characters without quotes and backslashes";

/// A field with an invalid value.
///
/// ```
/// let invalid = pacegate::identity::check_tier("").unwrap_err();
/// assert_eq!(invalid.field(), "tier");
/// assert_eq!(invalid.to_string(), format!("tier: {}", invalid.reason()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    field: &'static str,
    reason: Cow<'static, str>,
}

impl Invalid {
    /// Returns the field: `dimension`, `identifier`, `method`, `name`, `tier`, `unit` or a field of
    /// a rule.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Returns what the value must be, without the name of the field.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn new(field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field, reason: reason.into() }
    }

    /// Returns the same error for a field with another name.
    #[must_use]
    pub fn named(self, field: &'static str) -> Self {
        Self { field, ..self }
    }
}

/// Returns the canonical form of a dimension: `USER`, `IP` and `API_KEY`, in any case, become
/// `user`, `ip` and `apikey`.
///
/// # Errors
/// [`Invalid`] unless it is a lowercase word. The error contains the valid spelling if there is
/// one.
#[inline]
pub fn dimension(word: &str) -> Result<&str, Invalid> {
    if is_dimension(word) && word != "api_key" { Ok(word) } else { other_spelling(word) }
}

#[cold]
fn other_spelling(word: &str) -> Result<&str, Invalid> {
    for (name, dimension) in [("user", USER), ("ip", IP), ("api_key", API_KEY)] {
        if word.eq_ignore_ascii_case(name) {
            return Ok(dimension);
        }
    }
    let lower = word.to_ascii_lowercase();
    if is_dimension(&lower) {
        return Err(Invalid::new("dimension", format!("must be in lower case: `{lower}`")));
    }
    Err(Invalid::new("dimension", DIMENSION_REASON))
}

fn is_dimension(word: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    (1..=DIMENSION_LENGTH_MAX).contains(&word.len()) && word.bytes().all(is_allowed)
}

/// Returns the canonical form of an identifier of `dimension`.
///
/// In the dimension `ip` it is an address: IPv6 is reduced to its first `ipv6_prefix` bits,
/// IPv4-mapped IPv6 becomes IPv4, and a port is dropped. An IPv6 network, as shown in responses, is
/// accepted too. In other dimensions the text is returned unchanged.
///
/// # Errors
/// [`Invalid`] if the identifier is not valid.
#[inline]
pub fn identifier<'a>(dimension: &str, text: &'a str, ipv6_prefix: u8) -> Result<Cow<'a, str>, Invalid> {
    if dimension == IP {
        return counted_address(text, ipv6_prefix);
    }
    check_identifier(text).map(|()| Cow::Borrowed(text))
}

/// Validates an identifier of any dimension but `ip`.
///
/// # Errors
/// [`Invalid`] if it is not valid.
#[inline]
pub fn check_identifier(text: &str) -> Result<(), Invalid> {
    if is_identifier(text) { Ok(()) } else { Err(Invalid::new("identifier", IDENTIFIER_REASON)) }
}

fn counted_address(text: &str, ipv6_prefix: u8) -> Result<Cow<'_, str>, Invalid> {
    // The standard library accepts only the canonical form of IPv4: four decimal parts without
    // leading zeros.
    if text.parse::<Ipv4Addr>().is_ok() {
        return Ok(Cow::Borrowed(text));
    }
    let invalid = || Invalid::new("identifier", ADDRESS_REASON);
    let (address, bits) = match text.split_once('/') {
        None => (parse_address(text).ok_or_else(invalid)?, ipv6_prefix),
        Some((address, bits)) => {
            let address: Ipv6Addr = address.parse().map_err(|_| invalid())?;
            let bits = number(bits).filter(|bits| (1..=128).contains(bits)).ok_or_else(invalid)?;
            if address.to_ipv4_mapped().is_some() {
                return Err(invalid());
            }
            // A network larger than the prefix is an identity of its own. A smaller one is reduced
            // to the prefix.
            (address.into(), ipv6_prefix.min(u8::try_from(bits).unwrap_or(ipv6_prefix)))
        }
    };
    let counted = CountedAddress::new(address, bits);
    Ok(if counted.as_str() == text { Cow::Borrowed(text) } else { Cow::Owned(counted.as_str().to_owned()) })
}

/// Returns the identity of a descriptor entry; `None` if its key is not a valid dimension. Every
/// value is accepted, because proxies allow requests on errors: in the dimension `ip`, all invalid
/// addresses share one identity.
pub fn of_entry<'a>(key: &'a str, value: &'a str, ipv6_prefix: u8) -> Option<(&'a str, Cow<'a, str>)> {
    let dimension = dimension(key).ok()?;
    let identifier = if dimension == IP {
        counted_address(value, ipv6_prefix).unwrap_or(Cow::Borrowed(INVALID_ADDRESS))
    } else {
        Cow::Borrowed(value)
    };
    Some((dimension, identifier))
}

/// Parses `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]` and `[2001:db8::1]:443`; the
/// port is dropped.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let (address, port): (IpAddr, &str) = match text.strip_prefix('[') {
        Some(inside) => {
            let (address, port) = inside.split_once(']')?;
            (address.parse::<Ipv6Addr>().ok()?.into(), port)
        }
        None => {
            let (address, port) = text.split_at(text.find(':')?);
            (address.parse::<Ipv4Addr>().ok()?.into(), port)
        }
    };
    let is_port = |port: &str| number(port).is_some_and(|port| port <= u32::from(u16::MAX));
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(address)
}

/// Parses at most five digits without a sign.
fn number(digits: &str) -> Option<u32> {
    let is_number = (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// An address in its canonical form, formatted without an allocation.
#[derive(Clone, Copy)]
pub struct CountedAddress {
    text: [u8; Self::LENGTH_MAX],
    length: usize,
}

impl CountedAddress {
    /// Longer than any address with a prefix length.
    const LENGTH_MAX: usize = 56;

    /// Formats `address`; IPv6 is reduced to its first `ipv6_prefix` bits, at most 128.
    #[inline]
    pub fn new(address: IpAddr, ipv6_prefix: u8) -> Self {
        let mut counted = Self { text: [0; Self::LENGTH_MAX], length: 0 };
        match address.to_canonical() {
            IpAddr::V4(address) => counted.write_v4(address),
            IpAddr::V6(address) => counted.write_v6(address, ipv6_prefix),
        }
        counted
    }

    /// Returns the text.
    #[inline]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.text[..self.length]).unwrap_or_default()
    }

    /// Formats IPv4, the most common case, ten times as fast as the standard library.
    #[inline]
    fn write_v4(&mut self, address: Ipv4Addr) {
        for octet in address.octets() {
            if self.length > 0 {
                self.push(b'.');
            }
            for (unit, digit) in [(100, octet / 100), (10, octet / 10 % 10), (1, octet % 10)] {
                if octet >= unit || unit == 1 {
                    self.push(b'0' + digit);
                }
            }
        }
    }

    fn write_v6(&mut self, address: Ipv6Addr, prefix: u8) {
        let dropped = 128_u32.saturating_sub(u32::from(prefix));
        let kept = u128::MAX.checked_shl(dropped).unwrap_or_default();
        let network = Ipv6Addr::from_bits(address.to_bits() & kept);
        // The buffer is large enough for both.
        let _ = if dropped == 0 { write!(self, "{network}") } else { write!(self, "{network}/{prefix}") };
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.text.get_mut(self.length) {
            *slot = byte;
            self.length += 1;
        }
    }
}

impl fmt::Write for CountedAddress {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

impl fmt::Debug for CountedAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(formatter)
    }
}

/// Returns the method in upper case.
///
/// # Errors
/// [`Invalid`] unless it is 1 to 32 ASCII letters.
pub fn method(text: &str) -> Result<Cow<'_, str>, Invalid> {
    if !(1..=METHOD_LENGTH_MAX).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_alphabetic())
    {
        return Err(Invalid::new("method", METHOD_REASON));
    }
    let is_upper = text.bytes().all(|byte| byte.is_ascii_uppercase());
    Ok(if is_upper { Cow::Borrowed(text) } else { Cow::Owned(text.to_ascii_uppercase()) })
}

/// Validates the name of a rule or plan. Names appear in headers, metrics and logs.
///
/// # Errors
/// [`Invalid`] if it is not valid.
pub fn check_name(text: &str) -> Result<(), Invalid> {
    let printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\');
    let valid = printable && (1..=NAME_LENGTH_MAX).contains(&text.len());
    if valid { Ok(()) } else { Err(Invalid::new("name", NAME_REASON)) }
}

/// The default unit of limits.
pub const REQUESTS: &str = "requests";

/// Maximum length of the name of a store, in bytes.
const STORE_LENGTH_MAX: usize = 64;

/// Maximum length of a unit, in bytes.
pub const UNIT_LENGTH_MAX: usize = 32;

/// Validates a unit: a lowercase word, because units appear in headers.
///
/// # Errors
/// [`Invalid`] if it is not valid.
pub fn check_unit(text: &str) -> Result<(), Invalid> {
    let is_word =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let valid = (1..=UNIT_LENGTH_MAX).contains(&text.len())
        && text.bytes().all(is_word)
        && text.starts_with(|first: char| first.is_ascii_lowercase());
    let reason = "must be 1 to 32 lower-case letters, digits, `_` or `-`, and start with a letter";
    if valid { Ok(()) } else { Err(Invalid::new("unit", reason)) }
}

/// Validates the name of a store, which is a key in the configuration file.
///
/// # Errors
/// [`Invalid`] if it is not valid.
pub fn check_store(text: &str) -> Result<(), Invalid> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let valid = (1..=STORE_LENGTH_MAX).contains(&text.len()) && text.bytes().all(is_allowed);
    let reason = "must be 1 to 64 letters, digits, `_`, `-` or `.`";
    if valid { Ok(()) } else { Err(Invalid::new("store", reason)) }
}

/// Validates the name of a tier.
///
/// # Errors
/// [`Invalid`] if it is not valid.
pub fn check_tier(text: &str) -> Result<(), Invalid> {
    check_text("tier", text, NAME_LENGTH_MAX)
}

/// Validates that `text` has 1 to `length_max` bytes and no control characters.
///
/// # Errors
/// [`Invalid`] for `field` otherwise.
pub fn check_text(field: &'static str, text: &str, length_max: usize) -> Result<(), Invalid> {
    if is_clean(text, length_max) {
        return Ok(());
    }
    let reason = format!("must be 1 to {length_max} bytes long without control characters");
    Err(Invalid::new(field, reason))
}

/// Whether `text` is a valid identifier.
#[inline]
pub(crate) fn is_identifier(text: &str) -> bool {
    is_clean(text, IDENTIFIER_LENGTH_MAX)
}

/// Whether `text` has 1 to `length_max` bytes and no control characters.
#[inline(always)]
pub(crate) fn is_clean(text: &str, length_max: usize) -> bool {
    let bytes = text.as_bytes();
    // Tests eight bytes at a time. The last eight overlap the ones before; shorter texts are tested
    // byte by byte.
    let plain = match bytes.last_chunk::<8>() {
        Some(last) => {
            is_plain(*last) && bytes.chunks_exact(8).all(|chunk| is_plain(chunk.try_into().unwrap_or(*last)))
        }
        None => bytes.iter().all(|byte| matches!(byte, b' '..=b'~')),
    };
    (1..=length_max).contains(&bytes.len()) && (plain || !has_control(text))
}

/// Whether eight bytes are printable ASCII, tested in parallel with the classic "byte less than n"
/// trick.
#[inline(always)]
fn is_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES * 0x80;
    let word = u64::from_le_bytes(bytes);
    let less = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & TOPS;
    (word & TOPS) | less(word, 0x20) | less(word ^ (ONES * 0x7f), 1) == 0
}

/// Control characters of ASCII and Latin-1 (U+0080 to U+009F); terminals interpret both.
#[cold]
fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_found_at_any_position() {
        for length in 1..40 {
            let clean = "é~ x0{".chars().cycle().take(length).collect::<String>();
            assert!(is_identifier(&clean), "{clean:?}");
            for (index, _) in clean.char_indices() {
                for control in ['\0', '\u{1}', '\n', '\u{1f}', '\u{7f}', '\u{80}', '\u{9f}'] {
                    let mut dirty = clean.clone();
                    dirty.insert(index, control);
                    assert!(!is_identifier(&dirty), "{dirty:?}");
                }
            }
        }
        assert!(!is_identifier(""));
        assert!(!is_identifier(&"x".repeat(IDENTIFIER_LENGTH_MAX + 1)));
    }

    #[test]
    fn dimensions_have_one_spelling() {
        for (given, expected) in [
            ("user", Ok("user")),
            ("USER", Ok("user")),
            ("User", Ok("user")),
            ("ip", Ok("ip")),
            ("Ip", Ok("ip")),
            ("API_KEY", Ok("apikey")),
            ("api_key", Ok("apikey")),
            ("apikey", Ok("apikey")),
            ("tenant.v2-x_y", Ok("tenant.v2-x_y")),
            ("Tenant", Err("must be in lower case: `tenant`")),
            ("APIKEY", Err("must be in lower case: `apikey`")),
            ("", Err(DIMENSION_REASON)),
            ("a b", Err(DIMENSION_REASON)),
            ("A b", Err(DIMENSION_REASON)),
            ("ü", Err(DIMENSION_REASON)),
        ] {
            let found = dimension(given).map_err(|error| error.reason().to_owned());
            assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
        }
        assert!(dimension(&"x".repeat(64)).is_ok() && dimension(&"x".repeat(65)).is_err());
    }

    #[test]
    fn addresses_have_one_spelling() {
        for (given, expected) in [
            ("1.2.3.4", Some("1.2.3.4")),
            ("1.2.3.4:443", Some("1.2.3.4")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("255.255.255.255:65535", Some("255.255.255.255")),
            ("::ffff:1.2.3.4", Some("1.2.3.4")),
            ("::FFFF:102:304", Some("1.2.3.4")),
            ("[::ffff:1.2.3.4]:443", Some("1.2.3.4")),
            ("2001:db8::1", Some("2001:db8::/64")),
            ("2001:DB8::1", Some("2001:db8::/64")),
            ("2001:0db8:0000:0000:0000:0000:0000:0001", Some("2001:db8::/64")),
            ("2001:db8::ffff:ffff", Some("2001:db8::/64")),
            ("2001:db8:0:1::1", Some("2001:db8:0:1::/64")),
            ("[2001:db8::1]", Some("2001:db8::/64")),
            ("[2001:db8::1]:443", Some("2001:db8::/64")),
            ("::1", Some("::/64")),
            ("::", Some("::/64")),
            // The canonical form itself, and networks.
            ("2001:db8::/64", Some("2001:db8::/64")),
            ("2001:db8::1/64", Some("2001:db8::/64")),
            ("2001:db8::1/128", Some("2001:db8::/64")),
            ("2001:db8:1:1::/48", Some("2001:db8:1::/48")),
            // Names, numbers, and notations that some systems parse as a different address.
            ("", None),
            ("localhost", None),
            ("unknown", None),
            ("1", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.256", None),
            ("01.2.3.4", None),
            ("1.2.3.04", None),
            ("0x7f.1", None),
            ("0x7f.0.0.1", None),
            ("2130706433", None),
            ("1.2.3.4:", None),
            ("1.2.3.4:http", None),
            ("1.2.3.4:65536", None),
            ("1.2.3.4:+80", None),
            ("1.2.3.4/24", None),
            ("1.2.3.4/32", None),
            ("::ffff:1.2.3.4/128", None),
            ("[1.2.3.4]:80", None),
            ("2001:db8::1/0", None),
            ("2001:db8::1/129", None),
            ("2001:db8::1/", None),
            ("2001:db8::1/+64", None),
            ("[2001:db8::]/64", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]443", None),
            ("2001:db8::1]:443", None),
            ("2001:db8:::1", None),
            ("2001:db8::g", None),
            ("fe80::1%eth0", None),
            ("[fe80::1%2]:443", None),
            (" 1.2.3.4", None),
            ("1.2.3.4 ", None),
            ("1.2.3.4\n", None),
            ("1.2.3.4, 5.6.7.8", None),
            ("１.2.3.4", None),
        ] {
            let found = identifier(IP, given, IPV6_PREFIX).ok();
            assert_eq!(found.as_deref(), expected, "{given:?}");
            if let Some(canonical) = expected {
                let again = identifier(IP, canonical, IPV6_PREFIX).unwrap();
                assert!(matches!(again, Cow::Borrowed(_)), "{canonical} is not copied");
                assert_eq!(again, canonical);
            }
        }
    }

    #[test]
    fn ipv6_addresses_are_counted_by_the_prefix() {
        let address = "2001:db8:1234:5678:9abc:def0:1234:5678";
        for (bits, expected) in [
            (1, "::/1"),
            (32, "2001:db8::/32"),
            (56, "2001:db8:1234:5600::/56"),
            (127, "2001:db8:1234:5678:9abc:def0:1234:5678/127"),
            (128, address),
        ] {
            assert_eq!(identifier(IP, address, bits).unwrap(), expected);
            assert_eq!(identifier(IP, expected, bits).unwrap(), expected, "the canonical form is unchanged");
            assert_eq!(identifier(IP, "192.0.2.1", bits).unwrap(), "192.0.2.1");
        }
    }

    #[test]
    fn methods_are_letters_in_upper_case() {
        assert_eq!(method("get").unwrap(), "GET");
        assert!(matches!(method("PATCH"), Ok(Cow::Borrowed("PATCH"))));
        for wrong in ["", "GET ", "G3T", "é", &"X".repeat(33)] {
            assert_eq!(method(wrong).unwrap_err().reason(), METHOD_REASON, "{wrong:?}");
        }
    }
}
