//! Endpoint patterns: which endpoints a rule matches, and which of two patterns is more specific.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;

use crate::endpoint::{ENDPOINT_LENGTH_MAX, InvalidEndpoint, PathOptions, Reading, canonical};

/// A pattern for endpoints: `/api/v1/orders/{id}`, `/api/v1/{*rest}` (which includes `/api/v1`), or
/// `*` for all.
///
/// ```
/// use pacegate::Pattern;
///
/// assert_eq!(Pattern::parse("/orders/{id}")?.as_str(), "/orders/{id}");
/// assert!(Pattern::parse("/{*rest}/more").is_err());
/// # Ok::<(), pacegate::path::InvalidPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Segment {
    Rest,
    Any,
    Literal(Box<str>),
}

impl Pattern {
    /// Returns the pattern that matches every endpoint.
    pub fn all() -> Self {
        Self { text: "*".into(), segments: vec![Segment::Rest] }
    }

    /// Parses a pattern. Literal segments are normalised like endpoints.
    ///
    /// # Errors
    /// [`InvalidPattern`] if it is not valid.
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        if text == "*" {
            return Ok(Self::all());
        }
        // Each segment is a level of the trie, which recurses on the stack.
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
                        // A dot segment, which no normalised endpoint contains.
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
        // An empty pattern is rejected like an empty endpoint.
        if !text.starts_with('/') && segments.is_empty() {
            return Err(InvalidPattern::Endpoint(InvalidEndpoint::Empty));
        }
        Ok(Self { text: format!("/{}", parts.join("/")).into(), segments })
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the normalised text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns a text that is equal for patterns that match the same endpoints, whatever the names
    /// of their parameters.
    pub fn canonical(&self) -> String {
        let part = |segment: &Segment| match segment {
            Segment::Rest => "/{*}".to_owned(),
            Segment::Any => "/{}".to_owned(),
            Segment::Literal(text) => format!("/{text}"),
        };
        if self.segments.is_empty() { "/".to_owned() } else { self.segments.iter().map(part).collect() }
    }

    /// Returns the pattern in the form that `paths` compares; clones only if something changes.
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

    /// Whether the pattern matches `endpoint`, which must be normalised.
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

    /// Whether the pattern matches every endpoint that `other` matches.
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

    /// Orders patterns that match the same endpoint; the more specific one is greater. At the first
    /// difference, a literal beats a parameter, and a parameter beats a rest.
    pub(crate) fn specificity(&self) -> Vec<u8> {
        // Where one pattern ends, the other continues with an empty rest. The one that ends is more
        // specific.
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

/// A pattern that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidPattern {
    /// It is not a valid endpoint.
    #[error(transparent)]
    Endpoint(InvalidEndpoint),
    /// A part in braces is not a valid name, or braces or a star appear inside a part.
    #[error("`{part}`: expected a literal, {{name}} or {{*rest}}; use a lone `*` for all endpoints")]
    Parameter {
        /// The part of the pattern.
        part: Box<str>,
    },
    /// It has a query or a fragment.
    #[error("must not have a query or a fragment")]
    Query,
    /// A part follows the rest.
    #[error("{{*rest}} must be the last part")]
    RestNotLast,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trie::Trie;

    #[test]
    fn patterns_match_endpoints() {
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
    fn canonical_pattern_ignores_parameter_names() {
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
    fn more_specific_pattern_is_greater() {
        let order = ["*", "/a/{*rest}", "/a/{id}/{*rest}", "/a/{id}", "/a/b/{*rest}", "/a/b"];
        for pair in order.windows(2) {
            let (less, more) = (Pattern::parse(pair[0]).unwrap(), Pattern::parse(pair[1]).unwrap());
            assert!(less.specificity() < more.specificity(), "{less} {more}");
        }
    }
}
