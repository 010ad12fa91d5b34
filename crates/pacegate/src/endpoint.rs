//! Endpoints: the canonical form of a path, and other ways in which a server may read it.

use std::borrow::Cow;

use pacegate_core::named;
use thiserror::Error;

use crate::pattern::Pattern;

/// Maximum length of an endpoint, in bytes.
pub const ENDPOINT_LENGTH_MAX: usize = 2_048;

/// How paths are normalised and compared, in the limiter, the tower layer and the proxy.
///
/// Servers disagree about unusual paths. The canonical form, which is counted, treats `%2F`, `%5C`
/// and `\` as slashes, merges duplicate slashes, and resolves dot segments. A rule also applies if
/// it matches the path as RFC 3986 resolves it, or as it was written, so neither `/%2Freport.csv`
/// nor `/users/a%2Fb` bypasses a rule for `/report.csv` or `/users/{id}`. The canonical form
/// decides which of several variants of a rule applies, if one of them matches it.
///
/// ```
/// use pacegate::PathOptions;
///
/// let paths = PathOptions { ignore_case: true, ..PathOptions::default() };
/// assert_eq!(paths.normalise("/a//B/../C")?, "/a/c");
/// # Ok::<(), pacegate::path::InvalidEndpoint>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// How `%2F` and `%5C` are handled. Default: decoded for matching, and rejected by the proxy.
    pub encoded_slashes: Option<EncodedSlashes>,
    /// Whether the proxy merges duplicate slashes before it forwards a path. For matching they are
    /// always merged.
    pub merge_slashes: bool,
    /// Whether parameters of a segment (`/report.csv;v=1`) are ignored.
    pub ignore_parameters: bool,
    /// Whether ASCII letters are compared without regard to case.
    pub ignore_case: bool,
}

/// How an encoded slash (`%2F`) or backslash (`%5C`) is handled. Some servers read it as a slash,
/// others as an ordinary character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// It is read as a slash.
    Decode,
    /// The path is rejected.
    Refuse,
}

named!(EncodedSlashes { Decode => "decode", Refuse => "refuse" });

impl Default for PathOptions {
    fn default() -> Self {
        Self { encoded_slashes: None, merge_slashes: true, ignore_parameters: false, ignore_case: false }
    }
}

impl PathOptions {
    /// Returns the canonical form of an endpoint, without its query: a leading slash, no empty or
    /// dot segments, no trailing slash, and no unnecessary percent-encoding.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] if it is empty, too long or contains characters that are not allowed.
    ///
    /// ```
    /// use pacegate::PathOptions;
    ///
    /// let paths = PathOptions::default();
    /// assert_eq!(paths.normalise("//api/./v1/%6Frders/?page=2")?, "/api/v1/orders");
    /// assert_eq!(paths.normalise("/public/..%2Freport.csv")?, "/report.csv");
    /// # Ok::<(), pacegate::path::InvalidEndpoint>(())
    /// ```
    pub fn normalise<'a>(&self, endpoint: &'a str) -> Result<Cow<'a, str>, InvalidEndpoint> {
        self.endpoint(endpoint).map(Endpoint::into_counted)
    }

    /// Returns the path that a proxy forwards for `path`, which has no query. It is the canonical
    /// form, but keeps a trailing slash, ignored parameters and the case of letters.
    ///
    /// # Errors
    /// [`InvalidEndpoint`], as for [`normalise`](Self::normalise).
    ///
    /// ```
    /// use pacegate::PathOptions;
    ///
    /// let paths = PathOptions::default();
    /// assert_eq!(paths.forwarded("/public/..\\Reports/")?, "/Reports/");
    /// # Ok::<(), pacegate::path::InvalidEndpoint>(())
    /// ```
    pub fn forwarded<'a>(&self, path: &'a str) -> Result<Cow<'a, str>, InvalidEndpoint> {
        self.check(path)?;
        if (Self { ignore_case: false, ..*self }).is_normal(path.as_bytes()) {
            return Ok(Cow::Borrowed(path));
        }
        let text = canonical(path, Reading::Decoded);
        let mut segments: Vec<&str> = Vec::new();
        let mut ends_in_slash = false;
        for segment in text.split('/') {
            let name = self.name(segment);
            ends_in_slash = matches!(name, "" | "." | "..");
            match name {
                // Servers that keep duplicate slashes expect none at the start, where a URL would
                // have its host.
                "" if self.merge_slashes || segments.is_empty() => {}
                "." => {}
                ".." => {
                    while segments.pop_if(|segment| segment.is_empty()).is_some() {}
                    segments.pop();
                }
                _ => segments.push(segment),
            }
        }
        if segments.last() == Some(&"") {
            segments.pop();
        }
        let end = if ends_in_slash && !segments.is_empty() { "/" } else { "" };
        Ok(Cow::Owned(format!("/{}{end}", segments.join("/"))))
    }

    /// Parses an endpoint with all its readings.
    pub(crate) fn endpoint<'a>(&self, endpoint: &'a str) -> Result<Endpoint<'a>, InvalidEndpoint> {
        self.check(endpoint)?;
        Ok(self.any_endpoint(endpoint))
    }

    /// Like `endpoint`, for values that must be matched even if they are not valid. `endpoint` must
    /// not be empty.
    pub(crate) fn any_endpoint<'a>(&self, endpoint: &'a str) -> Endpoint<'a> {
        if self.is_normal(endpoint.as_bytes()) {
            return Endpoint { counted: Cow::Borrowed(endpoint), others: Vec::new() };
        }
        let path = endpoint.split(['?', '#']).next().unwrap_or_default();
        let decoded = canonical(path, Reading::Decoded);
        let counted = self.resolve(&decoded, Reading::Decoded);
        let written = canonical(path, Reading::Written);
        let has_dots = || decoded.split('/').any(|segment| matches!(self.name(segment), "." | ".."));
        let mut others = Vec::new();
        if written != decoded || has_dots() {
            for reading in [Reading::Rfc3986, Reading::Written] {
                let other = self.resolve(&canonical(path, reading), reading);
                if other != counted && !others.contains(&other) {
                    others.push(other);
                }
            }
        }
        Endpoint { counted: Cow::Owned(counted), others }
    }

    /// Returns a literal segment of a pattern in the form in which segments of endpoints are
    /// compared.
    pub(crate) fn literal<'a>(&self, literal: &'a str) -> Cow<'a, str> {
        let name = self.name(literal);
        if self.ignore_case { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
    }

    pub(crate) fn check(&self, endpoint: &str) -> Result<(), InvalidEndpoint> {
        if endpoint.is_empty() {
            return Err(InvalidEndpoint::Empty);
        }
        if endpoint.len() > ENDPOINT_LENGTH_MAX {
            return Err(InvalidEndpoint::TooLong);
        }
        if endpoint.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(InvalidEndpoint::ControlCharacter);
        }
        if self.encoded_slashes == Some(EncodedSlashes::Refuse) && has_encoded_slash(endpoint) {
            return Err(InvalidEndpoint::EncodedSlash);
        }
        Ok(())
    }

    /// Whether the path is already canonical, which is the common case.
    fn is_normal(&self, path: &[u8]) -> bool {
        path.first() == Some(&b'/')
            && (path.len() == 1 || path[path.len() - 1] != b'/')
            && path.iter().all(|byte| needs_no_escape(*byte))
            && !path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
            && !(self.ignore_parameters && path.contains(&b';'))
            && !(self.ignore_case && path.iter().any(u8::is_ascii_uppercase))
    }

    /// Returns a segment without its parameters, if they are ignored.
    fn name<'a>(&self, segment: &'a str) -> &'a str {
        match segment.split_once(';') {
            Some((name, _)) if self.ignore_parameters => name,
            _ => segment,
        }
    }

    /// Resolves empty and dot segments as `reading` does.
    fn resolve(&self, text: &str, reading: Reading) -> String {
        let mut segments: Vec<&str> = Vec::new();
        for segment in text.split('/').map(|segment| self.name(segment)) {
            match (segment, reading) {
                ("", Reading::Decoded | Reading::Written) => {}
                (".", Reading::Decoded | Reading::Rfc3986) => {}
                ("..", Reading::Decoded | Reading::Rfc3986) => {
                    segments.pop();
                }
                _ => segments.push(segment),
            }
        }
        segments.retain(|segment| !segment.is_empty());
        let path = format!("/{}", segments.join("/"));
        if self.ignore_case { path.to_ascii_lowercase() } else { path }
    }
}

/// An endpoint in its canonical form, with other ways in which a server may read it.
#[derive(Debug)]
pub(crate) struct Endpoint<'a> {
    counted: Cow<'a, str>,
    others: Vec<String>,
}

impl<'a> Endpoint<'a> {
    pub(crate) fn counted(&self) -> &str {
        &self.counted
    }

    pub(crate) fn into_counted(self) -> Cow<'a, str> {
        self.counted
    }

    /// The other readings that rules are matched against.
    pub(crate) fn others(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str)
    }

    /// Whether a rule with this pattern can apply.
    pub(crate) fn is_covered_by(&self, pattern: &Pattern) -> bool {
        pattern.matches(&self.counted) || self.others().any(|reading| pattern.matches(reading))
    }
}

/// How a server may read a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Decodes the path, merges slashes and then resolves dot segments, like file servers.
    Decoded,
    /// Resolves dot segments first, with `\` as a slash and empty segments kept, like URL parsers.
    Rfc3986,
    /// Compares segment by segment, including dot segments, like routers.
    Written,
}

/// Whether a path may contain this byte without escaping (RFC 3986).
fn needs_no_escape(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
}

/// Returns the canonical percent-encoding of a path: unnecessary escapes are decoded, once;
/// necessary ones are in upper case. `reading` determines slashes and backslashes.
pub(crate) fn canonical(path: &str, reading: Reading) -> String {
    let mut text = String::with_capacity(path.len());
    for (byte, escaped) in bytes(path) {
        match (byte, reading) {
            (b'\\', Reading::Decoded) => text.push('/'),
            (b'\\', Reading::Rfc3986) if !escaped => text.push('/'),
            (b'/', Reading::Rfc3986 | Reading::Written) if escaped => text.push_str("%2F"),
            _ if needs_no_escape(byte) => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The decoded bytes of a path, and whether each was escaped.
fn bytes(path: &str) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = path.as_bytes();
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        let escaped = if first == b'%' { after.get(..2).and_then(hexadecimal) } else { None };
        rest = if escaped.is_some() { &after[2..] } else { after };
        Some((escaped.unwrap_or(first), escaped.is_some()))
    })
}

/// Whether the part of `endpoint` before its query contains `%2F` or `%5C`.
fn has_encoded_slash(endpoint: &str) -> bool {
    let path = endpoint.split(['?', '#']).next().unwrap_or_default();
    path.contains('%') && bytes(path).any(|(byte, escaped)| escaped && matches!(byte, b'/' | b'\\'))
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    // `from_str_radix` accepts a sign; an escape must not have one.
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u8::from_str_radix(digits, 16).ok()
}

/// An endpoint that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// It is empty.
    #[error("must not be empty")]
    Empty,
    /// It is longer than [`ENDPOINT_LENGTH_MAX`].
    #[error("must be at most 2048 bytes long")]
    TooLong,
    /// It contains a control character.
    #[error("must not contain control characters")]
    ControlCharacter,
    /// It contains an encoded slash or backslash, which [`PathOptions::encoded_slashes`] rejects.
    #[error("must not contain %2F or %5C; set `paths.encoded_slashes: decode` to read them as slashes")]
    EncodedSlash,
}

#[cfg(test)]
mod tests;
