//! Endpoints: one spelling per path, and patterns that are all found in one walk.

use std::borrow::Cow;
use std::fmt;

use hashbrown::HashMap;
use thiserror::Error;

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
    /// # Ok::<(), pacegate::InvalidEndpoint>(())
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
    /// # Ok::<(), pacegate::InvalidEndpoint>(())
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

    fn check(&self, endpoint: &str) -> Result<(), InvalidEndpoint> {
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
enum Reading {
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
fn canonical(path: &str, reading: Reading) -> String {
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
    #[error("must not contain %2F or %5C; paths.encoded_slashes: decode reads them as slashes")]
    EncodedSlash,
}

/// Which endpoints a rule covers: `/api/v1/orders/{id}`, `/api/v1/{*rest}` (also `/api/v1` itself), or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Segment {
    Rest,
    Any,
    Literal(Box<str>),
}

impl Pattern {
    /// The pattern that covers every endpoint.
    pub fn all() -> Self {
        Self { text: "*".into(), segments: vec![Segment::Rest] }
    }

    /// Reads a pattern. Its literal parts are normalised like endpoints.
    ///
    /// # Errors
    /// [`InvalidPattern`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        if text == "*" {
            return Ok(Self::all());
        }
        // Each part is a level of the trie, which is walked and dropped level by level on the stack.
        if text.len() > ENDPOINT_LENGTH_MAX {
            return Err(InvalidPattern::Endpoint(InvalidEndpoint::TooLong));
        }
        if text.contains(['?', '#']) {
            return Err(InvalidPattern::Query);
        }
        let mut segments = Vec::new();
        let mut parts = Vec::new();
        for part in text.split('/').filter(|part| !part.is_empty()) {
            if segments.last() == Some(&Segment::Rest) {
                return Err(InvalidPattern::RestNotLast);
            }
            segments.push(match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) => match name.strip_prefix('*') {
                    Some(name) if is_name(name) => Segment::Rest,
                    None if is_name(name) => Segment::Any,
                    _ => return Err(InvalidPattern::Parameter { part: part.into() }),
                },
                None if part.contains(['{', '}', '*']) => {
                    return Err(InvalidPattern::Parameter { part: part.into() });
                }
                None => {
                    PathOptions::default().check(part).map_err(InvalidPattern::Endpoint)?;
                    match canonical(part, Reading::Written) {
                        // A dot segment, which no endpoint has once it is normalised.
                        literal if matches!(&*literal, "." | "..") => {
                            return Err(InvalidPattern::Parameter { part: part.into() });
                        }
                        literal => Segment::Literal(literal.into()),
                    }
                }
            });
            parts.push(match segments.last() {
                Some(Segment::Literal(literal)) => literal.to_string(),
                _ => part.to_owned(),
            });
        }
        // An empty pattern is as wrong as an empty endpoint.
        if !text.starts_with('/') && segments.is_empty() {
            return Err(InvalidPattern::Endpoint(InvalidEndpoint::Empty));
        }
        Ok(Self { text: format!("/{}", parts.join("/")).into(), segments })
    }

    /// As it was written, normalised.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same text for patterns that cover the same endpoints, whatever their parameters are called.
    pub fn canonical(&self) -> String {
        let part = |segment: &Segment| match segment {
            Segment::Rest => "/{*}".to_owned(),
            Segment::Any => "/{}".to_owned(),
            Segment::Literal(text) => format!("/{text}"),
        };
        if self.segments.is_empty() { "/".to_owned() } else { self.segments.iter().map(part).collect() }
    }

    /// The same pattern for endpoints that are compared by `paths`, copied only if that makes a difference.
    pub(crate) fn compared_by(&self, paths: PathOptions) -> Cow<'_, Self> {
        if !paths.ignore_parameters && !paths.ignore_case {
            return Cow::Borrowed(self);
        }
        let mut segments = self.segments.clone();
        segments.retain_mut(|segment| {
            let Segment::Literal(text) = segment else { return true };
            let compared: Box<str> = paths.literal(text).into();
            *text = compared;
            !text.is_empty()
        });
        Cow::Owned(Self { text: self.text.clone(), segments })
    }

    /// Whether `endpoint`, which is normalised, is covered.
    pub fn matches(&self, endpoint: &str) -> bool {
        let mut parts = segments_of(endpoint);
        for segment in &self.segments {
            match (segment, parts.next()) {
                (Segment::Rest, _) => return true,
                (Segment::Any, Some(_)) => {}
                (Segment::Literal(text), Some(part)) if **text == *part => {}
                _ => return false,
            }
        }
        parts.next().is_none()
    }

    /// Whether every endpoint that `other` covers is covered.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let mut others = other.segments.iter();
        for segment in &self.segments {
            match (segment, others.next()) {
                (Segment::Rest, _) => return true,
                (Segment::Any, Some(Segment::Any | Segment::Literal(_))) => {}
                (Segment::Literal(text), Some(Segment::Literal(other))) if text == other => {}
                _ => return false,
            }
        }
        others.next().is_none()
    }

    /// What orders patterns that cover the same endpoint, the more specific one being greater: at the first difference a literal beats a
    /// parameter, and a parameter beats a rest.
    pub(crate) fn specificity(&self) -> Vec<u8> {
        // Where one pattern ends, the other one goes on with a rest that is empty: the end is the more specific.
        let ranks = self.segments.iter().map(|segment| match segment {
            Segment::Rest => 0u8,
            Segment::Any => 1,
            Segment::Literal(_) => 2,
        });
        ranks.chain([3]).collect::<Vec<u8>>()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn segments_of(endpoint: &str) -> impl Iterator<Item = &str> {
    endpoint.split('/').filter(|part| !part.is_empty())
}

/// A pattern that cannot be matched against.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPattern {
    /// It is not even an endpoint.
    #[error(transparent)]
    Endpoint(InvalidEndpoint),
    /// A part in braces has no plain name, or braces or a star stand inside a part.
    #[error("`{part}` is neither a literal, nor {{name}}, nor {{*rest}}; a lone `*` covers all endpoints")]
    Parameter {
        /// The part of the pattern.
        part: Box<str>,
    },
    /// It has a query or a fragment, which endpoints are compared without.
    #[error("must not have a query or a fragment")]
    Query,
    /// Something follows the rest.
    #[error("{{*rest}} must be the last part")]
    RestNotLast,
}

/// Patterns with a value each; all that cover an endpoint are found in one walk along its segments.
#[derive(Debug, Default)]
pub(crate) struct Trie<T> {
    root: Node<T>,
}

#[derive(Debug)]
struct Node<T> {
    literals: HashMap<Box<str>, Node<T>, foldhash::quality::RandomState>,
    any: Option<Box<Node<T>>>,
    rest: Option<T>,
    here: Option<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { literals: HashMap::default(), any: None, rest: None, here: None }
    }
}

impl<T: Default> Trie<T> {
    /// The value of `pattern`, made if it is not there yet.
    pub(crate) fn entry(&mut self, pattern: &Pattern) -> &mut T {
        let mut node = &mut self.root;
        for segment in &pattern.segments {
            node = match segment {
                Segment::Rest => return node.rest.get_or_insert_default(),
                Segment::Any => node.any.get_or_insert_default(),
                Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            };
        }
        node.here.get_or_insert_default()
    }

    /// Calls `found` with the value of every pattern that covers `endpoint`, which is normalised.
    #[inline]
    pub(crate) fn for_each<'a>(&'a self, endpoint: &str, mut found: impl FnMut(&'a T)) {
        self.root.walk(endpoint.trim_start_matches('/'), &mut found);
    }
}

impl<T> Node<T> {
    fn walk<'a>(&'a self, endpoint: &str, found: &mut impl FnMut(&'a T)) {
        if let Some(value) = &self.rest {
            found(value);
        }
        if endpoint.is_empty() {
            if let Some(value) = &self.here {
                found(value);
            }
            return;
        }
        // Segments are short: a plain loop is faster than a search that is made for long texts.
        let bytes = endpoint.as_bytes();
        let mut end = 0;
        while end < bytes.len() && bytes[end] != b'/' {
            end += 1;
        }
        let (part, rest) = endpoint.split_at(end);
        let rest = rest.get(1..).unwrap_or_default();
        if let Some(next) = self.literals.get(part) {
            next.walk(rest, found);
        }
        if let Some(next) = &self.any {
            next.walk(rest, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forty_spellings_of_one_path_are_one() {
        let spellings = [
            "/a/b",
            "a/b",
            "//a/b",
            "/a//b",
            "/a/b/",
            "/a/b//",
            "/./a/b",
            "/a/./b",
            "/a/b/.",
            "/a/b/./",
            "/x/../a/b",
            "/a/x/../b",
            "/a/b/x/..",
            "/../a/b",
            "/../../a/b",
            "/a/b?",
            "/a/b?x=1",
            "/a/b?x=/../",
            "/a/b#f",
            "/a/b/?q",
            "/%61/b",
            "/a/%62",
            "/%61/%62",
            "/a/b?%",
            "///a///b///",
            "/a/%2e/b",
            "/a/%2E/b",
            "/a/x/%2e%2e/b",
            "/a/x/.%2e/b",
            "/a/x/%2e./b",
            "/%2e/a/b",
            "/a/b/%2e",
            "a//b",
            "./a/b",
            "../a/b",
            "/a/b/x/../",
            "/a/./././b",
            "/a/b/#",
            "/x/y/../../a/b",
            "/a/b/c/d/../..",
        ];
        assert_eq!(spellings.len(), 40);
        for spelling in spellings {
            assert_eq!(PathOptions::default().normalise(spelling).unwrap(), "/a/b", "{spelling}");
        }
    }

    #[test]
    fn different_paths_stay_different() {
        let rows = [
            ("/", "/"),
            ("/a%2Fb", "/a/b"),
            ("/a%5cb", "/a/b"),
            ("/a%252Fb", "/a%252Fb"),
            ("/a%3Fb", "/a%3Fb"),
            ("/a%2Cb", "/a,b"),
            ("/%2561", "/%2561"),
            ("/a%", "/a%25"),
            ("/a%4", "/a%254"),
            ("/%+1", "/%25+1"),
            ("/%zz", "/%25zz"),
            ("/A/b", "/A/b"),
            ("/a..b", "/a..b"),
            ("/.hidden", "/.hidden"),
            ("/é", "/%C3%A9"),
            ("/%c3%a9", "/%C3%A9"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/{a}", "/%7Ba%7D"),
            ("/a\\b", "/a/b"),
            ("/a:b@c;d=e,f", "/a:b@c;d=e,f"),
        ];
        for (endpoint, normal) in rows {
            assert_eq!(PathOptions::default().normalise(endpoint).unwrap(), normal);
        }
        for bad in ["", "/a\0", "/a\r\nX: y", "/\u{1b}[31m"] {
            assert!(PathOptions::default().normalise(bad).is_err(), "{bad:?}");
        }
        assert_eq!(PathOptions::default().normalise(&"a".repeat(2_049)), Err(InvalidEndpoint::TooLong));
    }

    #[test]
    fn rules_are_matched_with_every_reading_of_a_path() {
        let rows: [(&str, &[&str]); 10] = [
            ("/a/b", &["/a/b"]),
            ("/a//b/", &["/a/b"]),
            ("/.hidden", &["/.hidden"]),
            ("/%2Fa", &["/a", "/%2Fa"]),
            ("/x/..%2fa", &["/a", "/x/..%2Fa"]),
            ("/x\\a", &["/x/a", "/x%5Ca"]),
            ("/x/../a", &["/a", "/x/../a"]),
            ("/x/..", &["/", "/x/.."]),
            ("/x//../a", &["/a", "/x/a", "/x/../a"]),
            ("/x%5C..\\a", &["/a", "/x%5C../a", "/x%5C..%5Ca"]),
        ];
        for (path, expected) in rows {
            let endpoint = PathOptions::default().endpoint(path).unwrap();
            let readings: Vec<&str> = [endpoint.counted()].into_iter().chain(endpoint.others()).collect();
            assert_eq!(readings, expected, "{path}");
        }
    }

    #[test]
    fn encoded_slashes_can_be_refused() {
        let paths = PathOptions { encoded_slashes: Some(EncodedSlashes::Refuse), ..PathOptions::default() };
        for path in ["/%2Fa", "/a%2f", "/a%5Cb", "/a%5c..%5cb"] {
            assert_eq!(paths.normalise(path), Err(InvalidEndpoint::EncodedSlash), "{path}");
            assert_eq!(paths.forwarded(path), Err(InvalidEndpoint::EncodedSlash), "{path}");
        }
        for path in ["/a%252Fb", "/a%", "/a\\b", "/a?b=%2F"] {
            assert!(paths.normalise(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn parameters_and_case_are_ignored_by_setting() {
        let paths = PathOptions { ignore_parameters: true, ignore_case: true, ..PathOptions::default() };
        let spellings =
            ["/a/b", "/A/b", "/a;x/b;y=1", "/a/b%3By", "/x/..;/a/b", "/;x/a/b", "/%41/B/", "/a/;/B"];
        for spelling in spellings {
            assert_eq!(paths.normalise(spelling).unwrap(), "/a/b", "{spelling}");
        }
        for pattern in ["/a/b", "/A;x/B", "/a/;x/b"] {
            let pattern = Pattern::parse(pattern).unwrap();
            assert!(pattern.compared_by(paths).matches("/a/b"), "{pattern}");
            assert!(!pattern.compared_by(paths).matches("/a"), "{pattern}");
        }
        assert_eq!(paths.normalise("/CAF%C3%A9").unwrap(), "/caf%c3%a9");
        assert!(Pattern::parse("/café").unwrap().compared_by(paths).matches("/caf%c3%a9"));
    }

    #[test]
    fn forwarded_path_is_the_counted_one() {
        let rows = [
            ("/a/b", "/a/b"),
            ("/", "/"),
            ("/..", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a//b", "/a/b"),
            ("//a", "/a"),
            ("/x/..%2fA", "/A"),
            ("/x\\..\\A;v=1", "/A;v=1"),
            ("/%61%2Cb%3F%zz", "/a,b%3F%25zz"),
        ];
        let all = [false, true].map(|ignore| PathOptions {
            ignore_parameters: ignore,
            ignore_case: ignore,
            ..PathOptions::default()
        });
        for (path, expected) in rows {
            for paths in all {
                let forwarded = paths.forwarded(path).unwrap();
                assert_eq!(forwarded, expected, "{path}");
                assert_eq!(paths.normalise(&forwarded), paths.normalise(path), "{path}");
                assert!(paths.endpoint(&forwarded).unwrap().others.is_empty(), "{path} has one reading");
            }
        }
        assert_eq!(all[1].forwarded("/x/..;/a/;y/b;z").unwrap(), "/a/b;z");
        let kept = PathOptions { merge_slashes: false, ..PathOptions::default() };
        let rows = [
            ("//a", "/a"),
            ("/to/http://b", "/to/http://b"),
            ("/a//", "/a//"),
            ("/a//../b", "/b"),
            ("/a///.//b", "/a////b"),
        ];
        for (path, expected) in rows {
            assert_eq!(kept.forwarded(path).unwrap(), expected, "{path}");
            assert_eq!(kept.normalise(expected), kept.normalise(path), "{path}");
        }
    }

    #[test]
    fn patterns_cover_what_they_say() {
        let rows = [
            ("*", "/", true),
            ("*", "/a/b", true),
            ("/", "/", true),
            ("/", "/a", false),
            ("/a/{id}", "/a/1", true),
            ("/a/{id}", "/a", false),
            ("/a/{id}", "/a/1/2", false),
            ("/a/{*rest}", "/a/1/2", true),
            ("/a/{*rest}", "/a", true),
            ("/a/{*rest}", "/ab", false),
            ("/a/{id}/c", "/a/b/c", true),
        ];
        for (pattern, endpoint, expected) in rows {
            let pattern = Pattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(endpoint), expected, "{pattern} {endpoint}");
            let mut trie = Trie::<usize>::default();
            *trie.entry(&pattern) += 1;
            let mut found = 0;
            trie.for_each(endpoint, |value| found += value);
            assert_eq!(found == 1, expected, "{pattern} {endpoint} in the trie");
        }
        for bad in [
            "",
            "/a/{id",
            "/a/*",
            "/{*rest}/b",
            "/{}",
            "/{*}",
            "/a{id}",
            "/{a b}",
            "/a?b",
            "/a/../b",
            "/a/./b",
        ] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
        assert!(Pattern::parse(&"/a".repeat(1_024)).is_ok());
        let deep = Pattern::parse(&"/a".repeat(1_025));
        assert_eq!(deep, Err(InvalidPattern::Endpoint(InvalidEndpoint::TooLong)));
    }

    #[test]
    fn patterns_are_compared_without_the_names_of_their_parameters() {
        let same = [("/x/{id}", "/x/{name}"), ("*", "/{*rest}"), ("/café", "/caf%c3%a9"), ("//x//", "/x")];
        for (one, other) in same {
            let (one, other) = (Pattern::parse(one).unwrap(), Pattern::parse(other).unwrap());
            assert_eq!(one.canonical(), other.canonical());
        }
        assert_ne!(
            Pattern::parse("/x/{id}").unwrap().canonical(),
            Pattern::parse("/x/{*id}").unwrap().canonical()
        );
        assert!(Pattern::parse("/café").unwrap().matches("/caf%C3%A9"));
    }

    #[test]
    fn the_more_specific_pattern_is_greater() {
        let order = ["*", "/a/{*rest}", "/a/{id}/{*rest}", "/a/{id}", "/a/b/{*rest}", "/a/b"];
        for pair in order.windows(2) {
            let (less, more) = (Pattern::parse(pair[0]).unwrap(), Pattern::parse(pair[1]).unwrap());
            assert!(less.specificity() < more.specificity(), "{less} {more}");
        }
    }
}
