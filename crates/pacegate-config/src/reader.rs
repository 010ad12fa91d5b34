//! Reads typed values out of a tree and collects every mistake instead of stopping at the first.

use std::str::FromStr;
use std::time::Duration;

use pacegate_core::{Named, one_of};

use crate::node::{Node, Place, Value};
use crate::{ConfigError, ConfigErrors};

/// The mistakes found so far.
#[derive(Clone, Debug, Default)]
pub struct Mistakes(pub(crate) Vec<ConfigError>);

impl Mistakes {
    /// Adds one.
    pub fn push(&mut self, mistake: ConfigError) {
        self.0.push(mistake);
    }

    /// Whether there were none.
    ///
    /// # Errors
    /// All of them.
    pub fn finish(self) -> Result<(), ConfigErrors> {
        if self.0.is_empty() { Ok(()) } else { Err(ConfigErrors(self.0)) }
    }

    pub(crate) fn add(&mut self, place: &Place, path: &str, message: impl Into<String>) {
        self.0.push(ConfigError { place: place.to_string(), path: path.to_owned(), message: message.into() });
    }
}

/// A map whose fields are taken one by one; what is left at the end is unknown.
#[derive(Clone, Debug)]
pub struct Fields {
    path: String,
    pub(crate) place: Place,
    entries: Vec<(String, Node)>,
    asked: Vec<&'static str>,
}

/// A value with its path, ready to be converted.
#[derive(Clone, Debug)]
pub struct Field {
    pub(crate) path: String,
    pub(crate) node: Node,
}

impl Fields {
    /// `None`, with a mistake, when the node is not a map. Nothing at all counts as an empty map.
    pub fn new(field: Field, mistakes: &mut Mistakes) -> Option<Self> {
        let Field { path, node } = field;
        match node.value {
            Value::Map(entries) => Some(Self { path, place: node.place, entries, asked: Vec::new() }),
            Value::Null => Some(Self { path, place: node.place, entries: Vec::new(), asked: Vec::new() }),
            other => {
                mistakes.add(&node.place, &path, format!("must be a map, not {}", other.kind()));
                None
            }
        }
    }

    /// The field `name`, unless it is absent or empty.
    pub fn take(&mut self, name: &'static str) -> Option<Field> {
        self.asked.push(name);
        let index = self.entries.iter().position(|(key, _)| key == name)?;
        let (_, node) = self.entries.remove(index);
        let path = self.path_of(name);
        (!matches!(node.value, Value::Null)).then_some(Field { path, node })
    }

    /// The field `name`, with a mistake when it is there without a value: nobody means the default by that.
    pub(crate) fn take_filled(&mut self, name: &'static str, mistakes: &mut Mistakes) -> Option<Field> {
        let empty = self.entries.iter().find(|(key, node)| key == name && matches!(node.value, Value::Null));
        if let Some((_, node)) = empty {
            mistakes.add(&node.place, &self.path_of(name), "has no value; give it one or leave it out");
        }
        self.take(name)
    }

    /// The field `name`, with a mistake when it is absent.
    pub fn require(&mut self, name: &'static str, mistakes: &mut Mistakes) -> Option<Field> {
        let field = self.take(name);
        if field.is_none() {
            mistakes.add(&self.place, &self.path_of(name), "is missing");
        }
        field
    }

    pub(crate) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Every field that nobody asked for is a mistake.
    pub fn finish(self, mistakes: &mut Mistakes) {
        for (name, node) in &self.entries {
            let message = format!("unknown field; known are {}", self.asked.join(", "));
            mistakes.add(&node.place, &self.path_of(name), message);
        }
    }
}

impl Field {
    /// A whole document; `None`, with a mistake, when it is not YAML.
    pub fn parse(text: &str, mistakes: &mut Mistakes) -> Option<Self> {
        match Node::parse(text) {
            Ok(node) => Some(Self { path: String::new(), node }),
            Err((line, message)) => {
                mistakes.add(&Place::Line(line), "", message);
                None
            }
        }
    }

    /// Something to say about this value, at its place.
    pub fn remark(&self, message: impl Into<String>) -> ConfigError {
        let (place, path) = (self.node.place.to_string(), self.path.clone());
        ConfigError { place, path, message: message.into() }
    }

    /// Adds a mistake about this value.
    pub fn refuse<T>(&self, mistakes: &mut Mistakes, message: impl Into<String>) -> Option<T> {
        mistakes.push(self.remark(message));
        None
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Null => true,
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// Text, or a whole number as text.
    pub fn text(&self, mistakes: &mut Mistakes) -> Option<String> {
        match &self.node.value {
            Value::Text(text) => Some(text.clone()),
            // `identifier: 12345` means the text; YAML cannot know.
            Value::Integer(number) => Some(number.to_string()),
            other => self.refuse(mistakes, format!("must be text, not {}", other.kind())),
        }
    }

    /// Text as it is written, also where YAML takes it for a flag or a number: `y`, `007` and `1.10` are values like any other.
    pub fn literal(&self, mistakes: &mut Mistakes) -> Option<String> {
        self.node.written.clone().or_else(|| self.text(mistakes))
    }

    /// Text that is converted by `FromStr`.
    pub(crate) fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, mistakes: &mut Mistakes) -> Option<T> {
        let text = self.text(mistakes)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => self.refuse(mistakes, format!("`{text}`: {error}")),
        }
    }

    /// A value of an enum, by its name.
    pub(crate) fn named<T: Named>(&self, mistakes: &mut Mistakes) -> Option<T> {
        let text = self.text(mistakes)?;
        let known = T::parse(&text);
        known.or_else(|| self.refuse(mistakes, format!("expected {}, got \"{text}\"", T::expected())))
    }

    /// One of a few words.
    pub(crate) fn word(&self, words: &[&'static str], mistakes: &mut Mistakes) -> Option<&'static str> {
        let text = self.text(mistakes)?;
        let known = words.iter().copied().find(|word| *word == text);
        known.or_else(|| self.refuse(mistakes, format!("expected {}, got \"{text}\"", one_of(words))))
    }

    /// From 0 to 1.
    pub(crate) fn share(&self, mistakes: &mut Mistakes) -> Option<f64> {
        let share = match &self.node.value {
            Value::Integer(0) => Some(0.0),
            Value::Integer(1) => Some(1.0),
            Value::Float(share) if (0.0..=1.0).contains(share) => Some(*share),
            _ => None,
        };
        share.or_else(|| self.refuse(mistakes, "must be a number from 0 to 1".to_owned()))
    }

    /// True or false.
    pub fn flag(&self, mistakes: &mut Mistakes) -> Option<bool> {
        match &self.node.value {
            Value::Bool(flag) => Some(*flag),
            other => self.refuse(mistakes, format!("must be true or false, not {}", other.kind())),
        }
    }

    /// A whole number from 0.
    pub fn number(&self, mistakes: &mut Mistakes) -> Option<u64> {
        match &self.node.value {
            Value::Integer(number) => match u64::try_from(*number) {
                Ok(number) => Some(number),
                Err(_) => self.refuse(mistakes, format!("must be a positive whole number, not {number}")),
            },
            other => self.refuse(mistakes, format!("must be a whole number, not {}", other.kind())),
        }
    }

    /// `512KiB`, `64MiB`, `2GiB`, in bytes.
    pub(crate) fn size(&self, mistakes: &mut Mistakes) -> Option<u64> {
        const UNITS: [(&str, u32); 3] = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
        match &self.node.value {
            Value::Text(text) => {
                let size = UNITS.iter().find_map(|(unit, bits)| {
                    let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
                    number.checked_mul(1 << bits)
                });
                size.or_else(|| {
                    self.refuse(mistakes, format!("`{text}` is not a size like 512KiB, 64MiB or 2GiB"))
                })
            }
            Value::Integer(number) => {
                self.refuse(mistakes, format!("needs a unit: {number}KiB, {number}MiB or {number}GiB"))
            }
            other => self.refuse(mistakes, format!("must be a size like 64MiB, not {}", other.kind())),
        }
    }

    /// `60s`, `5m`, `1h 30m`, `1d`.
    pub(crate) fn duration(&self, mistakes: &mut Mistakes) -> Option<Duration> {
        match &self.node.value {
            Value::Text(text) => match humantime::parse_duration(text) {
                Ok(duration) => Some(duration),
                Err(error) => self.refuse(
                    mistakes,
                    format!("`{text}` is not a duration like 500ms, 60s, 5m or 1d: {error}"),
                ),
            },
            Value::Integer(number) => {
                self.refuse(mistakes, format!("needs a unit: {number}s, {number}m or {number}h"))
            }
            other => self.refuse(mistakes, format!("must be a duration like 60s, not {}", other.kind())),
        }
    }

    /// The items of a list; none, with a mistake, when it is something else.
    pub fn list(self, mistakes: &mut Mistakes) -> Vec<Self> {
        match self.node.value {
            Value::List(items) => {
                let path = self.path;
                let item = |(index, node)| Self { path: format!("{path}[{index}]"), node };
                items.into_iter().enumerate().map(item).collect()
            }
            other => {
                mistakes.add(&self.node.place, &self.path, format!("must be a list, not {}", other.kind()));
                Vec::new()
            }
        }
    }

    /// The entries of a map whose keys are names.
    pub(crate) fn entries(self, mistakes: &mut Mistakes) -> Vec<(String, Self)> {
        match self.node.value {
            Value::Map(entries) => {
                let path = self.path;
                let entry = |(name, node): (String, Node)| {
                    let field = Self { path: format!("{path}.{name}"), node };
                    (name, field)
                };
                entries.into_iter().map(entry).collect()
            }
            other => {
                mistakes.add(&self.node.place, &self.path, format!("must be a map, not {}", other.kind()));
                Vec::new()
            }
        }
    }
}
