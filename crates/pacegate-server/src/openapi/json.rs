//! JSON whose objects preserve the order of their fields.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// An object.
    Object(IndexMap<String, Self>),
}

impl Json {
    /// Returns the field `name` of an object.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(name),
            _ => None,
        }
    }

    /// Returns the field `name` of an object, mutably.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        match self {
            Self::Object(fields) => fields.get_mut(name),
            _ => None,
        }
    }

    /// Returns the fields of an object.
    pub(crate) fn fields(&mut self) -> Option<&mut IndexMap<String, Self>> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns the fields of the object in field `name`, which is created if absent.
    pub(crate) fn object(&mut self, name: &str) -> Option<&mut IndexMap<String, Self>> {
        let empty = || Self::Object(IndexMap::new());
        self.fields()?.entry(name.to_owned()).or_insert_with(empty).fields()
    }

    /// Sets the field `name` of an object.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Self>) {
        if let Some(fields) = self.fields() {
            fields.insert(name.to_owned(), value.into());
        }
    }

    /// Returns the items of a list.
    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut Self> {
        let items = match self {
            Self::List(items) => items.as_mut_slice(),
            _ => &mut [],
        };
        items.iter_mut()
    }

    /// Returns the text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(fields) => {
                Self::Object(fields.into_iter().map(|(name, value)| (name, Self::from(value))).collect())
            }
        }
    }
}
