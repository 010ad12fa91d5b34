//! Fields that are deserialized separately.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::cursor::Cursor;
use crate::deserializer::NAME;

/// A field that is deserialized separately from its struct, so that each error in it is reported.
#[derive(Clone, Debug)]
pub struct Part<T> {
    /// The name of the field. `None` if it is not set.
    name: Option<String>,
    contents: PhantomData<T>,
}

impl<T> Part<T> {
    /// Returns the value. `None` if it is not set.
    pub fn cursor<'a>(&self, parent: &Cursor<'a>) -> Option<Cursor<'a>> {
        self.name.as_ref().and_then(|name| parent.get(name))
    }
}

impl<T: for<'de> Deserialize<'de>> Part<T> {
    /// Deserializes the value. `None` if it is not set or not of the right kind.
    pub fn read(&self, parent: &Cursor<'_>) -> Option<T> {
        self.cursor(parent).and_then(|cursor| cursor.read())
    }
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self { name: None, contents: PhantomData }
    }
}

impl<'de, T> Deserialize<'de> for Part<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = String;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a field")
            }

            fn visit_str<E>(self, name: &str) -> Result<String, E> {
                Ok(name.to_owned())
            }
        }
        let name = deserializer.deserialize_newtype_struct(NAME, Name)?;
        Ok(Self { name: Some(name), contents: PhantomData })
    }
}

impl<T: JsonSchema> JsonSchema for Part<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
