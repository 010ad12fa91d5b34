//! Deserialises a YAML tree and collects every error instead of stopping at the first.
//!
//! serde stops at the first error of a value. A [`Cursor`] therefore reports an error at the
//! innermost value that it concerns, marks that value as wrong and deserialises the whole again
//! without it, until it succeeds. Sections and entries of lists are read one by one, so that what
//! is repeated is small.

use std::cell::RefCell;

use serde::de::DeserializeOwned;

use crate::deserializer::{CursorDeserializer, Error};
use crate::node::{Node, Place, Value};
use crate::{ConfigError, ConfigErrors};

/// A YAML document and the errors found in it.
#[derive(Debug)]
pub struct Document {
    root: Node,
    errors: Errors,
}

type Errors = RefCell<Vec<(Place, ConfigError)>>;

/// One value of a document with its line and path.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    pub(crate) node: &'a Node,
    path: String,
    errors: &'a Errors,
    /// Whether a field without a value is an error; otherwise it is the same as no field.
    rejects_null: bool,
}

/// The most errors that are reported for one section or entry, because each costs an attempt.
const ATTEMPTS_MAX: usize = 1_000;

impl Document {
    /// Parses `text`; text that is not YAML is an error of a document without values.
    pub fn parse(text: &str) -> Self {
        match Node::parse(text) {
            Ok(root) => Self { root, errors: Errors::default() },
            Err((line, message)) => {
                let document = Self { root: Node::empty(), errors: Errors::default() };
                document.report(Place::Line(line), String::new(), message);
                document
            }
        }
    }

    /// The whole document.
    pub fn root(&self) -> Cursor<'_> {
        Cursor { node: &self.root, path: String::new(), errors: &self.errors, rejects_null: false }
    }

    /// Succeeds if there were no errors.
    ///
    /// # Errors
    /// All of them, in the order of their lines.
    pub fn finish(self) -> Result<(), ConfigErrors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by(|(one, _), (other, _)| one.cmp(other));
        if errors.is_empty() {
            Ok(())
        } else {
            Err(ConfigErrors(errors.into_iter().map(|(_, error)| error).collect()))
        }
    }

    pub(crate) fn root_mut(&mut self) -> &mut Node {
        &mut self.root
    }

    pub(crate) fn report(&self, place: Place, path: String, message: impl Into<String>) {
        let error = ConfigError { place: place.to_string(), path, message: message.into() };
        self.errors.borrow_mut().push((place, error));
    }
}

impl<'a> Cursor<'a> {
    /// Deserialises the value. `None` if it is not even of the right kind; fields that are wrong
    /// are left out of what is returned, and reported.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        for _ in 0..ATTEMPTS_MAX {
            match T::deserialize(CursorDeserializer(self.clone())) {
                Ok(value) => return Some(value),
                // It is marked as wrong, and left out of the next attempt.
                Err(Error::Reported) => {}
                Err(error) => {
                    self.report(error);
                    return None;
                }
            }
        }
        None
    }

    /// The items of a list. Anything else is reported.
    pub fn items(&self) -> Vec<Self> {
        match &self.node.value {
            Value::List(items) => {
                items.iter().enumerate().map(|(index, node)| self.item(index, node)).collect()
            }
            _ => {
                self.report(self.wrong_kind("a list"));
                Vec::new()
            }
        }
    }

    /// The entries of a map, with their keys. Anything but a map is reported.
    pub fn entries(&self) -> Vec<(&'a str, Self)> {
        match &self.node.value {
            Value::Map(entries) => {
                entries.iter().map(|(name, node)| (name.as_str(), self.field(name, node))).collect()
            }
            _ => {
                self.report(self.wrong_kind("a map"));
                Vec::new()
            }
        }
    }

    /// The field `name` of a map, if it has a value.
    pub fn get(&self, name: &str) -> Option<Self> {
        let node = self.node.get(name).filter(|node| !matches!(node.value, Value::Null))?;
        Some(self.field(name, node))
    }

    /// Whether it is an empty list or map, or nothing.
    pub fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Null => true,
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// A remark about this value, or about the field of it that `field` names, such as `tls.cert`.
    pub fn remark(&self, field: &str, message: impl Into<String>) -> ConfigError {
        self.located(field, message).1
    }

    /// Reports an error of this value, or of the field of it that `field` names, such as
    /// `tls.cert`.
    pub fn refuse(&self, field: &str, message: impl Into<String>) {
        self.errors.borrow_mut().push(self.located(field, message));
    }

    /// `value`, which is a field of this map; its absence is reported.
    pub fn require<T>(&self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.is_wrong(field) {
            self.refuse(field, "is missing");
        }
        value
    }

    /// Whether nothing has been reported about the document so far.
    pub fn is_valid(&self) -> bool {
        self.error_count() == 0
    }

    /// The path of the value, such as `rules[2].window`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether an error of this value, or of the field of it that `name` names, is reported.
    pub(crate) fn is_wrong(&self, name: &str) -> bool {
        let node = if name.is_empty() { Some(self.node) } else { self.node.get(name) };
        node.is_some_and(|node| node.is_wrong.get())
    }

    pub(crate) fn error_count(&self) -> usize {
        self.errors.borrow().len()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.node.place
    }

    /// The same value, in which a field without a value is an error.
    pub(crate) fn rejecting_null(self) -> Self {
        Self { rejects_null: true, ..self }
    }

    /// Whether the field `name` of a map is there without a value.
    pub(crate) fn has_no_value(&self, name: &str) -> bool {
        self.node.get(name).is_some_and(|node| matches!(node.value, Value::Null))
    }

    /// The line of the innermost value on the way to `field`, and its path whether it exists or
    /// not.
    fn located(&self, field: &str, message: impl Into<String>) -> (Place, ConfigError) {
        let (mut node, mut known) = (self.node, true);
        for name in field.split('.').filter(|name| !name.is_empty()) {
            match node.get(name) {
                Some(inner) if known => node = inner,
                _ => known = false,
            }
        }
        let place = node.place.clone();
        let error =
            ConfigError { place: place.to_string(), path: self.path_of(field), message: message.into() };
        (place, error)
    }

    fn path_of(&self, name: &str) -> String {
        match (self.path.is_empty(), name.is_empty()) {
            (_, true) => self.path.clone(),
            (true, false) => name.to_owned(),
            (false, false) => format!("{}.{name}", self.path),
        }
    }

    pub(crate) fn field(&self, name: &str, node: &'a Node) -> Self {
        Self { node, path: self.path_of(name), errors: self.errors, rejects_null: self.rejects_null }
    }

    pub(crate) fn item(&self, index: usize, node: &'a Node) -> Self {
        let path = format!("{}[{index}]", self.path);
        Self { node, path, errors: self.errors, rejects_null: self.rejects_null }
    }

    /// Reports an error at this value unless that was done further inside.
    pub(crate) fn report(&self, error: Error) -> Error {
        match error {
            Error::Reported => return Error::Reported,
            Error::Missing(field) => drop(self.require::<()>(field, None)),
            Error::Message(message) => self.refuse("", message),
        }
        self.node.is_wrong.set(true);
        Error::Reported
    }

    /// Without the value itself, which may hold a password.
    pub(crate) fn wrong_kind(&self, expected: &str) -> Error {
        Error::Message(format!("expected {expected}, got {}", self.node.value.kind()))
    }

    /// Reports the fields that are not among `known`, and those without a value where that is an
    /// error.
    pub(crate) fn check_fields(&self, entries: &'a [(String, Node)], known: &[&str]) {
        for (name, node) in entries.iter().filter(|(_, node)| !node.is_wrong.get()) {
            if !known.contains(&name.as_str()) {
                let message = format!("unknown field; expected one of {}", known.join(", "));
                self.field(name, node).report(Error::Message(message));
            } else if self.rejects_null && matches!(node.value, Value::Null) {
                let message = "has no value; give it one or remove it";
                self.field(name, node).report(Error::Message(message.into()));
            }
        }
    }
}
