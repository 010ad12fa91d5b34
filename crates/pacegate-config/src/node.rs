//! A YAML document as a tree that remembers the line of each value.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
    /// The text of a scalar that YAML takes for something else: `y` is a flag to it, and `007` a
    /// number.
    pub(crate) written: Option<String>,
    /// Whether an error about it is reported; nothing reads it then.
    pub(crate) is_wrong: Cell<bool>,
    span: Range<usize>,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Line(u64),
    Environment(String),
}

/// What the configuration has no use for is only remembered as its kind.
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
    /// What kind of value it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
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

/// The most values of a document: 40 for each of the rules that there may be.
const NODES_MAX: usize = 40 * pacegate::rules::RULES_MAX;
/// The most bytes of text in them.
const SCALAR_BYTES_MAX: usize = 256 * 1024 * 1024;

impl Node {
    pub(crate) fn new(place: Place, value: Value) -> Self {
        Self { place, value, written: None, is_wrong: Cell::new(false), span: 0..0 }
    }

    /// A map without entries.
    pub(crate) fn empty() -> Self {
        Self::new(Place::Line(1), Value::Map(Vec::new()))
    }

    /// The entry `name` of a map.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// Reads a document; an empty one is an empty map.
    pub(crate) fn parse(text: &str) -> Result<Self, (u64, String)> {
        // Room for as many rules as there may be, each with all of its fields.
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: NODES_MAX,
                max_events: 2 * NODES_MAX,
                max_total_scalar_bytes: SCALAR_BYTES_MAX,
            },
        };
        let parsed: Result<Option<Self>, _> = serde_saphyr::from_str_with_options(text, options);
        match parsed {
            Ok(Some(mut node)) => {
                node.remember_text(text);
                Ok(node)
            }
            Ok(None) => Ok(Self::empty()),
            Err(error) => {
                let line = error.location().map_or(1, |location| location.line());
                let message = error.without_snippet().to_string();
                let message = message.lines().next().unwrap_or("not YAML").to_owned();
                Err((line, message))
            }
        }
    }

    fn remember_text(&mut self, text: &str) {
        match &mut self.value {
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                self.written = text.get(self.span.clone()).map(str::to_owned);
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.remember_text(text)),
            Value::Map(entries) => entries.iter_mut().for_each(|(_, node)| node.remember_text(text)),
            Value::Null | Value::Text(_) => {}
        }
    }

    /// Puts `value` at `path` below this node. Maps are made on the way; any other value in the way
    /// gives way to one.
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

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        // What an alias stands for is written where it is defined.
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
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}
