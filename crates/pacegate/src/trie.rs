//! A trie of patterns: finds all patterns that match an endpoint in one walk along its segments.

use hashbrown::HashMap;

use crate::pattern::{Pattern, Segment};

/// A map from patterns to values.
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
    /// Returns the value of `pattern`, inserted if absent.
    pub(crate) fn entry(&mut self, pattern: &Pattern) -> &mut T {
        let mut node = &mut self.root;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Rest => return node.rest.get_or_insert_default(),
                Segment::Any => node.any.get_or_insert_default(),
                Segment::Literal(text) => node.literals.entry(text.clone()).or_default(),
            };
        }
        node.here.get_or_insert_default()
    }

    /// Calls `found` with the value of every pattern that matches `endpoint`, which must be
    /// normalised.
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
        // Segments are short, so a plain loop is faster than a search that is optimised for long
        // texts.
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
