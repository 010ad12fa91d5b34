//! A tree of paths: a path is found step by step, however many paths there are.

use super::PathEntry;
use crate::ruleset::Map;

/// The paths of one domain.
#[derive(Debug)]
pub(super) struct Tree {
    /// The first one is the root.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    keys: Map<Box<str>, Values>,
    /// The index of the rule whose path ends here.
    rule: Option<usize>,
}

/// The next nodes by the value of one key.
#[derive(Debug, Default)]
struct Values {
    exact: Map<Box<str>, usize>,
    /// In the order of the rules.
    wildcards: Vec<(Box<str>, usize)>,
    any: Option<usize>,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: vec![Node::default()] }
    }
}

impl Tree {
    /// Inserts `path` for the rule with index `rule`.
    pub(super) fn insert(&mut self, path: &[PathEntry], rule: usize) {
        let mut at = 0;
        for entry in path {
            let fresh = self.nodes.len();
            let values = self.nodes[at].keys.entry(entry.key.as_str().into()).or_default();
            at = match &entry.value {
                None => *values.any.get_or_insert(fresh),
                Some(value) => {
                    // A wildcard is also found by its own text, before any other value.
                    let next = *values.exact.entry(value.as_str().into()).or_insert(fresh);
                    if next == fresh && value.contains('*') {
                        values.wildcards.push((value.as_str().into(), fresh));
                    }
                    next
                }
            };
            if at == fresh {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].rule = Some(rule);
    }

    /// Returns the rule whose path matches `entries` exactly.
    pub(super) fn find(&self, entries: &[(&str, &str)]) -> Option<usize> {
        let mut at = 0;
        for (key, value) in entries {
            let values = self.nodes[at].keys.get(*key)?;
            let wildcard = || values.wildcards.iter().find(|(pattern, _)| matches(pattern, value));
            at = match values.exact.get(*value) {
                Some(next) => *next,
                None => wildcard().map(|(_, next)| *next).or(values.any)?,
            };
        }
        self.nodes[at].rule
    }
}

/// Whether `text` matches `pattern`, in which every `*` matches any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The leftmost match is as good as any other, because the rest can match anywhere after it.
    for piece in middle.split('*') {
        match text.find(piece) {
            Some(start) => text = &text[start + piece.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn star_matches_any_characters() {
        let cases = [
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*", "ab", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*a", "ab", false),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*a", "a", false),
            ("a*bc*d", "a-bc-d", true),
            ("a*bc*d", "abcd", true),
            ("a*bc*d", "a-cb-d", false),
            ("**", "x", true),
            ("a**b", "a-b", true),
            ("*aa*aa", "aaa", false),
            ("*aa*aa", "aaaa", true),
            ("é*é", "éxé", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
