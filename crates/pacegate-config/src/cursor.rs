//! Deserializes a YAML tree and collects every error instead of stopping at the first.
//!
//! serde stops at the first error of a value. A [`Cursor`] therefore reports the error at the
//! innermost value that it concerns, marks that value as invalid and deserializes the whole again
//! without it, until that succeeds. Sections and list items are deserialized one by one, so that
//! little is repeated.

use std::cell::RefCell;

use serde::de::DeserializeOwned;

use crate::deserializer::{CursorDeserializer, Error};
use crate::node::{Node, Place, Value};
use crate::{ConfigError, ConfigErrors};

/// A YAML document, with the errors and warnings found in it.
#[derive(Debug)]
pub struct Document {
    root: Node,
    findings: Findings,
}

#[derive(Debug, Default)]
struct Findings {
    errors: RefCell<Vec<(Place, ConfigError)>>,
    warnings: RefCell<Vec<(Place, ConfigError)>>,
}

/// One value of a document, with its line and path.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    pub(crate) node: &'a Node,
    path: String,
    findings: &'a Findings,
    /// Whether a field without a value is an error; otherwise it is the same as no field.
    rejects_null: bool,
}

/// Maximum number of errors reported for one section or list item, because each costs an attempt.
const ATTEMPTS_MAX: usize = 1_000;

impl Document {
    /// Parses `text`. Text that is not YAML is an error in a document without values.
    pub fn parse(text: &str) -> Self {
        match Node::parse_with_duplicates(text) {
            Ok((root, duplicates)) => {
                let document = Self { root, findings: Findings::default() };
                for (place, path) in duplicates {
                    document.report(place, path, "duplicate field");
                }
                document
            }
            Err((line, message)) => {
                let document = Self { root: Node::empty(), findings: Findings::default() };
                document.report(Place::Line(line), String::new(), message);
                document
            }
        }
    }

    /// Returns the whole document.
    pub fn root(&self) -> Cursor<'_> {
        Cursor { node: &self.root, path: String::new(), findings: &self.findings, rejects_null: false }
    }

    /// Succeeds if there were no errors.
    ///
    /// # Errors
    /// All of them, sorted by line.
    pub fn finish(self) -> Result<(), ConfigErrors> {
        let (errors, _) = self.into_findings();
        if errors.0.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns the errors and the warnings, each sorted by line.
    pub(crate) fn into_findings(self) -> (ConfigErrors, Vec<ConfigError>) {
        let sorted = |found: RefCell<Vec<(Place, ConfigError)>>| {
            let mut found = found.into_inner();
            found.sort_by(|(one, _), (other, _)| one.cmp(other));
            found.into_iter().map(|(_, error)| error).collect()
        };
        (ConfigErrors(sorted(self.findings.errors)), sorted(self.findings.warnings))
    }

    pub(crate) fn root_mut(&mut self) -> &mut Node {
        &mut self.root
    }

    pub(crate) fn report(&self, place: Place, path: String, message: impl Into<String>) {
        let error = ConfigError { place: place.to_string(), path, message: message.into() };
        self.findings.errors.borrow_mut().push((place, error));
    }
}

impl<'a> Cursor<'a> {
    /// Deserializes the value. Invalid fields are reported and left out of the result. `None` if
    /// the value is not even of the right kind.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        for _ in 0..ATTEMPTS_MAX {
            match T::deserialize(CursorDeserializer(self.clone())) {
                Ok(value) => return Some(value),
                // The invalid value is marked, and left out of the next attempt.
                Err(Error::Reported) => {}
                Err(error) => {
                    self.report(error);
                    return None;
                }
            }
        }
        None
    }

    /// Returns the items of a list. Anything else is reported as an error.
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

    /// Returns the entries of a map, with their keys. Anything else is reported as an error.
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

    /// Returns the number of items of a list. Anything else has none.
    pub(crate) fn item_count(&self) -> usize {
        if let Value::List(items) = &self.node.value { items.len() } else { 0 }
    }

    /// Returns the field `name` of a map, if it has a value.
    pub fn get(&self, name: &str) -> Option<Self> {
        let node = self.node.get(name).filter(|node| !matches!(node.value, Value::Null))?;
        Some(self.field(name, node))
    }

    /// Whether the value is an empty list, an empty map or null.
    pub fn is_empty(&self) -> bool {
        match &self.node.value {
            Value::Null => true,
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
            _ => false,
        }
    }

    /// Returns a remark about this value, or about its field `field`, such as `tls.cert`. Nothing
    /// is reported.
    pub fn remark(&self, field: &str, message: impl Into<String>) -> ConfigError {
        self.located(field, message).1
    }

    /// Reports an error in this value, or in its field `field`, such as `tls.cert`.
    pub fn reject(&self, field: &str, message: impl Into<String>) {
        self.findings.errors.borrow_mut().push(self.located(field, message));
    }

    /// Reports a warning about this value, or about its field `field`.
    pub(crate) fn warn(&self, field: &str, message: impl Into<String>) {
        self.findings.warnings.borrow_mut().push(self.located(field, message));
    }

    /// Returns `value`, the value of the field `field`. A missing value is reported as an error.
    pub fn require<T>(&self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.is_wrong(field) {
            self.reject(field, "required field is missing");
        }
        value
    }

    /// Whether no error has been reported in the document so far.
    pub fn is_valid(&self) -> bool {
        self.error_count() == 0
    }

    /// Returns the path of the value, such as `rules[2].window`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether this value, or its field `name`, is marked as invalid.
    pub(crate) fn is_wrong(&self, name: &str) -> bool {
        let node = if name.is_empty() { Some(self.node) } else { self.node.get(name) };
        node.is_some_and(|node| node.is_wrong.get())
    }

    /// Whether this value's field `name`, or an item of that list, is marked as invalid.
    pub(crate) fn is_wrong_inside(&self, name: &str) -> bool {
        let items = match self.node.get(name).map(|node| &node.value) {
            Some(Value::List(items)) => items.as_slice(),
            _ => &[],
        };
        self.is_wrong(name) || items.iter().any(|item| item.is_wrong.get())
    }

    /// Returns the text of this value, or of its field `name`, as it is written.
    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        let node = if name.is_empty() { Some(self.node) } else { self.node.get(name) };
        match node? {
            Node { value: Value::Text(text), .. } => Some(text),
            node => node.written.as_deref(),
        }
    }

    pub(crate) fn error_count(&self) -> usize {
        self.findings.errors.borrow().len()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.node.place
    }

    /// Returns the same value, in which a field without a value is an error.
    pub(crate) fn rejecting_null(self) -> Self {
        Self { rejects_null: true, ..self }
    }

    /// Whether the map has the field `name` without a value.
    pub(crate) fn has_no_value(&self, name: &str) -> bool {
        self.node.get(name).is_some_and(|node| matches!(node.value, Value::Null))
    }

    /// The line of the innermost existing value on the path to `field`, and the full path.
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
        Self { node, path: self.path_of(name), findings: self.findings, rejects_null: self.rejects_null }
    }

    pub(crate) fn item(&self, index: usize, node: &'a Node) -> Self {
        let path = format!("{}[{index}]", self.path);
        Self { node, path, findings: self.findings, rejects_null: self.rejects_null }
    }

    /// Reports an error at this value, unless it is reported at an inner value already.
    pub(crate) fn report(&self, error: Error) -> Error {
        match error {
            Error::Reported => return Error::Reported,
            Error::Missing(field) => drop(self.require::<()>(field, None)),
            Error::Message(message) => self.reject("", message),
        }
        self.node.is_wrong.set(true);
        Error::Reported
    }

    /// The error for a value of another kind. It does not quote the value, which may contain a
    /// password.
    pub(crate) fn wrong_kind(&self, expected: &str) -> Error {
        Error::Message(format!("expected {expected}, got {}", self.node.value.kind()))
    }

    /// Reports fields that are not among `known`, and fields without a value where that is an
    /// error.
    pub(crate) fn check_fields(&self, entries: &'a [(String, Node)], known: &[&str]) {
        for (name, node) in entries.iter().filter(|(_, node)| !node.is_wrong.get()) {
            if !known.contains(&name.as_str()) {
                let message = format!("unknown field; expected one of {}", known.join(", "));
                self.field(name, node).report(Error::Message(message));
            } else if self.rejects_null && matches!(node.value, Value::Null) {
                let message = "field has no value; set a value or remove the field";
                self.field(name, node).report(Error::Message(message.into()));
            }
        }
    }
}
