//! Endpoints: one spelling per path, and the others that a server may take it for.

use std::borrow::Cow;

use pacegate_core::named;
use thiserror::Error;

use crate::pattern::Pattern;

/// The longest endpoint, in bytes.
pub const ENDPOINT_LENGTH_MAX: usize = 2_048;

/// How the spellings of a path are compared, in the limiter, the layer and the proxy. Each setting stays
/// with the limiter, as the stores do.
///
/// Every server reads odd paths in its own way. The counted spelling is the one in which `%2F`, `%5C`
/// and `\` are slashes, duplicate slashes are one, and dot segments are resolved. A rule also applies
/// where it matches the path as RFC 3986 resolves it, or as it was written, so that neither
/// `/%2Freport.csv` nor `/users/a%2Fb` slips past a rule for `/report.csv` or `/users/{id}`. Which of
/// several variants of a rule applies is decided by the counted spelling, if one matches it.
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
    /// What happens to paths with `%2F` or `%5C`; decoded for matching unless it is set. The proxy
    /// refuses them unless it is set.
    pub encoded_slashes: Option<EncodedSlashes>,
    /// Whether the proxy sends duplicate slashes upstream as one. For matching they always are one.
    pub merge_slashes: bool,
    /// Whether parameters of a segment (`/report.csv;v=1`) are ignored.
    pub ignore_parameters: bool,
    /// Whether ASCII letters are compared without their case.
    pub ignore_case: bool,
}

/// What happens to paths with an encoded slash (`%2F`) or backslash (`%5C`), which some servers read as
/// a slash and others as a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// They are read as slashes.
    Decode,
    /// They are not valid.
    Refuse,
}

named!(EncodedSlashes { Decode => "decode", Refuse => "refuse" });

impl Default for PathOptions {
    fn default() -> Self {
        Self { encoded_slashes: None, merge_slashes: true, ignore_parameters: false, ignore_case: false }
    }
}

impl PathOptions {
    /// The endpoint without its query, in the spelling that is counted: a leading slash, no empty and no
    /// dot segments, no trailing slash, and no percent-encoding of characters that do not need it.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] when it is empty, too long or has characters that it must not have.
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

    /// The path that a proxy sends upstream for `path`, which has no query: the one that is counted,
    /// except that a trailing slash, ignored parameters and the case of letters stay.
    ///
    /// # Errors
    /// [`InvalidEndpoint`] as in [`normalise`](Self::normalise).
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
                // Servers that keep duplicate slashes do not expect any at the start, where a URL has its host.
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

    /// An endpoint with everything that it may be to a server.
    pub(crate) fn endpoint<'a>(&self, endpoint: &'a str) -> Result<Endpoint<'a>, InvalidEndpoint> {
        self.check(endpoint)?;
        Ok(self.any_endpoint(endpoint))
    }

    /// The same for what must be matched whatever it is, as long as there is something.
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

    /// `literal`, a segment of a pattern, as segments of endpoints are compared with it.
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

    /// Whether nothing has to be changed, which is how almost every endpoint arrives.
    fn is_normal(&self, path: &[u8]) -> bool {
        path.first() == Some(&b'/')
            && (path.len() == 1 || path[path.len() - 1] != b'/')
            && path.iter().all(|byte| stays_as_it_is(*byte))
            && !path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
            && !(self.ignore_parameters && path.contains(&b';'))
            && !(self.ignore_case && path.iter().any(u8::is_ascii_uppercase))
    }

    /// A segment without its parameters, if they are ignored.
    fn name<'a>(&self, segment: &'a str) -> &'a str {
        match segment.split_once(';') {
            Some((name, _)) if self.ignore_parameters => name,
            _ => segment,
        }
    }

    /// The path without empty and dot segments, as `reading` has them.
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

/// An endpoint in the spelling that is counted, and in others that a server may take it for.
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

    /// The other spellings that rules are matched with.
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
    /// Decodes it, merges its slashes and then resolves dot segments, as file servers do.
    Decoded,
    /// Resolves dot segments first, with `\` as a slash, as URL parsers do: an empty segment is one.
    Rfc3986,
    /// Compares it segment by segment, dots included, as routers do.
    Written,
}

/// What a path may contain without an escape (RFC 3986).
fn stays_as_it_is(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
}

/// One spelling for each path: escapes that are not needed are decoded, once; what needs one gets it, in
/// upper case. Slashes and backslashes are as `reading` has them.
pub(crate) fn canonical(path: &str, reading: Reading) -> String {
    let mut text = String::with_capacity(path.len());
    for (byte, escaped) in bytes(path) {
        match (byte, reading) {
            (b'\\', Reading::Decoded) => text.push('/'),
            (b'\\', Reading::Rfc3986) if !escaped => text.push('/'),
            (b'/', Reading::Rfc3986 | Reading::Written) if escaped => text.push_str("%2F"),
            _ if stays_as_it_is(byte) => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The bytes of a path, decoded, and whether each was escaped.
fn bytes(path: &str) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = path.as_bytes();
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        let escaped = if first == b'%' { after.get(..2).and_then(hexadecimal) } else { None };
        rest = if escaped.is_some() { &after[2..] } else { after };
        Some((escaped.unwrap_or(first), escaped.is_some()))
    })
}

/// Whether the part of `endpoint` before its query has `%2F` or `%5C`.
fn has_encoded_slash(endpoint: &str) -> bool {
    let path = endpoint.split(['?', '#']).next().unwrap_or_default();
    path.contains('%') && bytes(path).any(|(byte, escaped)| escaped && matches!(byte, b'/' | b'\\'))
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    // `from_str_radix` takes a sign, an escape does not.
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u8::from_str_radix(digits, 16).ok()
}

/// An endpoint that cannot be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// There is nothing in it.
    #[error("must not be empty")]
    Empty,
    /// It is longer than [`ENDPOINT_LENGTH_MAX`].
    #[error("must be at most 2048 bytes long")]
    TooLong,
    /// It has a character below space.
    #[error("must not contain control characters")]
    ControlCharacter,
    /// It has an encoded slash or backslash, which [`PathOptions::encoded_slashes`] refuses.
    #[error("must not contain %2F or %5C; set `paths.encoded_slashes: decode` to read them as slashes")]
    EncodedSlash,
}

#[cfg(test)]
mod tests;
