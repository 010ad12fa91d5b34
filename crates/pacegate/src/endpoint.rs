//! Endpoints: one spelling per path, and patterns that are all found in one walk.

use std::borrow::Cow;
use std::fmt;

use hashbrown::HashMap;
use thiserror::Error;

/// The longest endpoint, in bytes.
pub const ENDPOINT_LENGTH_MAX: usize = 2_048;

/// The endpoint without its query, with one spelling for each path: a leading slash, no empty and no dot segments, no trailing
/// slash, and no percent-encoding of characters that do not need it.
///
/// # Errors
/// [`InvalidEndpoint`] when it is empty, too long or has control characters.
///
/// ```
/// use pacegate::normalise_endpoint;
///
/// assert_eq!(normalise_endpoint("//api/./v1/%6Frders/?page=2")?, "/api/v1/orders");
/// # Ok::<(), pacegate::InvalidEndpoint>(())
/// ```
pub fn normalise_endpoint(endpoint: &str) -> Result<Cow<'_, str>, InvalidEndpoint> {
    if endpoint.is_empty() {
        return Err(InvalidEndpoint::Empty);
    }
    if endpoint.len() > ENDPOINT_LENGTH_MAX {
        return Err(InvalidEndpoint::TooLong);
    }
    if endpoint.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(InvalidEndpoint::ControlCharacter);
    }
    Ok(normal_form(endpoint))
}

/// The same for what must be matched whatever it is, as long as there is something.
pub(crate) fn normal_form(endpoint: &str) -> Cow<'_, str> {
    if is_normal(endpoint.as_bytes()) {
        return Cow::Borrowed(endpoint);
    }
    let path = endpoint.split(['?', '#']).next().unwrap_or_default();
    let canonical = canonical(path);
    let mut segments: Vec<&str> = Vec::new();
    for segment in canonical.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Whether nothing has to be changed, which is how almost every endpoint arrives.
fn is_normal(path: &[u8]) -> bool {
    path.first() == Some(&b'/')
        && (path.len() == 1 || path[path.len() - 1] != b'/')
        && path.iter().all(|byte| stays_as_it_is(*byte))
        && !path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
}

/// What a path may contain without an escape (RFC 3986).
fn stays_as_it_is(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
}

/// One spelling for each path: escapes that never were needed are decoded, once; what needs one gets it, in upper case.
fn canonical(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut text = String::with_capacity(path.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = if byte == b'%' { bytes.get(at + 1..at + 3).and_then(hexadecimal) } else { None };
        match escaped {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                text.push(char::from(byte))
            }
            Some(byte) => text.push_str(&format!("%{byte:02X}")),
            None if stays_as_it_is(byte) => text.push(char::from(byte)),
            None => text.push_str(&format!("%{byte:02X}")),
        }
        at += if escaped.is_some() { 3 } else { 1 };
    }
    text
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
                None => match normalise_endpoint(part).map_err(InvalidPattern::Endpoint)?.strip_prefix('/') {
                    // A dot segment, which no endpoint has once it is normalised.
                    None | Some("") => return Err(InvalidPattern::Parameter { part: part.into() }),
                    Some(literal) => Segment::Literal(literal.into()),
                },
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
        let (part, rest) = endpoint.split_once('/').unwrap_or((endpoint, ""));
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
            assert_eq!(normalise_endpoint(spelling).unwrap(), "/a/b", "{spelling}");
        }
    }

    #[test]
    fn different_paths_stay_different() {
        let rows = [
            ("/", "/"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb", "/a%2Fb"),
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
            ("/a\\b", "/a%5Cb"),
            ("/a:b@c;d=e,f", "/a:b@c;d=e,f"),
        ];
        for (endpoint, normal) in rows {
            assert_eq!(normalise_endpoint(endpoint).unwrap(), normal);
        }
        for bad in ["", "/a\0", "/a\r\nX: y", "/\u{1b}[31m"] {
            assert!(normalise_endpoint(bad).is_err(), "{bad:?}");
        }
        assert_eq!(normalise_endpoint(&"a".repeat(2_049)), Err(InvalidEndpoint::TooLong));
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
