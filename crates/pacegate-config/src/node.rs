//! A YAML document as a tree that records the line of each value.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// A value and where it is written.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The line of its key, or of the value itself in a list.
    pub(crate) place: Place,
    pub(crate) value: Value,
    /// The source text of a scalar that YAML does not parse as text: `y` is a boolean, and `007` a
    /// number.
    pub(crate) written: Option<String>,
    /// Whether an error in it is reported. It is skipped from then on.
    pub(crate) is_wrong: Cell<bool>,
    span: Range<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Line(u64),
    Environment(String),
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Value {
    /// The kind of the value, for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "no value",
            Self::Bool(_) => "true or false",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number with a fraction",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(formatter, "line {line}"),
            Self::Environment(name) => write!(formatter, "environment variable {name}"),
        }
    }
}

/// Maximum number of values in a document: 40 for each of the maximum number of rules.
const NODES_MAX: usize = 40 * pacegate::rules::RULES_MAX;
/// Maximum number of bytes of text in them.
const SCALAR_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A repeated key, and where it is.
type Repeated = (Place, String);

impl Node {
    pub(crate) fn new(place: Place, value: Value) -> Self {
        Self { place, value, written: None, is_wrong: Cell::new(false), span: 0..0 }
    }

    /// Returns an empty map.
    pub(crate) fn empty() -> Self {
        Self::new(Place::Line(1), Value::Map(Vec::new()))
    }

    /// Returns the entry `name` of a map.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Parses a document. An empty document is an empty map.
    pub(crate) fn parse(text: &str) -> Result<Self, (u64, String)> {
        Self::parse_by(text, DuplicateKeyPolicy::Error).map_err(|error| described(&error))
    }

    /// Parses a document as [`parse`](Self::parse) does, and returns where keys are repeated. Only
    /// the first of them has a value.
    pub(crate) fn parse_with_duplicates(text: &str) -> Result<(Self, Vec<Repeated>), (u64, String)> {
        let error = match Self::parse_by(text, DuplicateKeyPolicy::Error) {
            Ok(node) => return Ok((node, Vec::new())),
            Err(error) => error,
        };
        let mut duplicates = Vec::new();
        if matches!(error.without_snippet(), serde_saphyr::Error::DuplicateMappingKey { .. })
            && let Ok(mut node) = Self::parse_by(text, DuplicateKeyPolicy::LastWins)
        {
            node.remove_duplicates("", &mut duplicates);
            // The parser itself merges repeated keys that are numbers.
            if !duplicates.is_empty() {
                return Ok((node, duplicates));
            }
        }
        Err(described(&error))
    }

    fn parse_by(text: &str, duplicate_keys: DuplicateKeyPolicy) -> Result<Self, serde_saphyr::Error> {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: NODES_MAX,
                max_events: 2 * NODES_MAX,
                max_total_scalar_bytes: SCALAR_BYTES_MAX,
            },
            duplicate_keys: duplicate_keys,
        };
        let parsed: Option<Self> = serde_saphyr::from_str_with_options(text, options)?;
        let Some(mut node) = parsed else { return Ok(Self::empty()) };
        node.record_text(text);
        Ok(node)
    }

    fn record_text(&mut self, text: &str) {
        match &mut self.value {
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                self.written = text.get(self.span.clone()).map(str::to_owned);
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.record_text(text)),
            Value::Map(entries) => entries.iter_mut().for_each(|(_, node)| node.record_text(text)),
            Value::Null | Value::Text(_) => {}
        }
    }

    /// Removes repeated keys, and records where they are.
    fn remove_duplicates(&mut self, path: &str, found: &mut Vec<(Place, String)>) {
        match &mut self.value {
            Value::List(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    item.remove_duplicates(&format!("{path}[{index}]"), found);
                }
            }
            Value::Map(entries) => {
                let mut seen = HashSet::new();
                entries.retain_mut(|(name, node)| {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    let is_first = seen.insert(name.clone());
                    if is_first {
                        node.remove_duplicates(&path, found);
                    } else {
                        found.push((node.place.clone(), path));
                    }
                    is_first
                });
            }
            _ => {}
        }
    }

    /// Sets the value at `path` below this node. Missing maps on the path are created, and other
    /// values on the path are replaced by maps.
    pub(crate) fn set<'a>(&mut self, mut path: impl Iterator<Item = &'a str>, value: Value, place: &Place) {
        let Some(key) = path.next() else {
            *self = Self::new(place.clone(), value);
            return;
        };
        let mut entries = match std::mem::replace(&mut self.value, Value::Null) {
            Value::Map(entries) => entries,
            _ => Vec::new(),
        };
        let index = entries.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            entries.push((key.to_owned(), Self::new(place.clone(), Value::Null)));
            entries.len() - 1
        });
        entries[index].1.set(path, value, place);
        self.value = Value::Map(entries);
    }
}

/// The line and the first line of the message of a syntax error.
fn described(error: &serde_saphyr::Error) -> (u64, String) {
    let line = error.location().map_or(1, |location| location.line());
    let message = error.without_snippet().to_string();
    (line, message.lines().next().unwrap_or("not valid YAML").to_owned())
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        // The text of an alias is at its definition.
        let span = spanned.defined.span();
        let index = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0);
        let start = index(span.byte_offset());
        let node = Self::new(Place::Line(spanned.referenced.line()), spanned.value);
        Ok(Self { span: start..start + index(span.byte_len()), ..node })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, node)) = map.next_entry::<Spanned<String>, Node>()? {
            entries.push((key.value, Node { place: Place::Line(key.referenced.line()), ..node }));
        }
        Ok(Value::Map(entries))
    }
}
