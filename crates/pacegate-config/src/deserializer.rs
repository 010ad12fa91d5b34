//! A [`Cursor`] as a serde deserializer, which reports each error at the innermost value.

use std::fmt;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, Expected, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::cursor::Cursor;
use crate::node::{Node, Value};

/// Text as it is written in the file. `y`, `007` and `1.10` are text, although YAML parses them as
/// a boolean and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsWritten(pub String);

const AS_WRITTEN: &str = "$as_written";

impl<'de> Deserialize<'de> for AsWritten {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyText;

        impl Visitor<'_> for AnyText {
            type Value = AsWritten;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("text")
            }

            fn visit_str<E>(self, text: &str) -> Result<AsWritten, E> {
                Ok(AsWritten(text.to_owned()))
            }
        }
        deserializer.deserialize_newtype_struct(AS_WRITTEN, AnyText)
    }
}

/// The name of a newtype that is `none` or a value.
pub(crate) const OR_NONE: &str = "$or_none";
/// The name of a newtype that records the name of its field and deserializes nothing.
pub(crate) const NAME: &str = "$name";

/// The value of a cursor, as a serde deserializer.
pub(crate) struct CursorDeserializer<'a>(pub(crate) Cursor<'a>);

impl<'de> Deserializer<'de> for CursorDeserializer<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Integer(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(number)) => visitor.visit_i64(number),
                _ => visitor.visit_i128(*number),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(Items { cursor: &self.0, items, index: 0 }),
            Value::Map(entries) => visitor.visit_map(Fields { cursor: &self.0, entries, next: None }),
        }
    }

    /// Numbers are accepted as text, as in `identifier: 12345`.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.node.value {
            Value::Integer(number) => visitor.visit_string(number.to_string()),
            Value::Text(text) => visitor.visit_str(text),
            _ => Err(self.0.wrong_kind("text")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    /// A field without a value is skipped or rejected before.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.node.value {
            Value::List(_) => self.deserialize_any(visitor),
            _ => Err(self.0.wrong_kind("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.node.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(self.0.wrong_kind("a map")),
        }
    }

    /// Null is a map without fields.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let entries = match &self.0.node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => return Err(self.0.wrong_kind("a map")),
        };
        self.0.check_fields(entries, fields);
        visitor.visit_map(Fields { cursor: &self.0, entries, next: None })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match (name, &self.0.node.value) {
            (AS_WRITTEN, _) => match &self.0.node.written {
                Some(text) => visitor.visit_str(text),
                None => self.deserialize_str(visitor),
            },
            (OR_NONE, Value::Text(text)) if text == "none" => visitor.visit_none(),
            (NAME, _) => visitor.visit_str(self.0.path().rsplit('.').next().unwrap_or_default()),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        tuple tuple_struct enum identifier
    }
}

/// The items of a list that are not marked as invalid.
struct Items<'a, 'c> {
    cursor: &'c Cursor<'a>,
    items: &'a [Node],
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        while let Some(node) = self.items.get(self.index) {
            let item = self.cursor.item(self.index, node);
            self.index += 1;
            if !node.is_wrong.get() {
                return seed
                    .deserialize(CursorDeserializer(item.clone()))
                    .map(Some)
                    .map_err(|error| item.report(error));
            }
        }
        Ok(None)
    }
}

/// The fields of a map that have a value and are not marked as invalid.
struct Fields<'a, 'c> {
    cursor: &'c Cursor<'a>,
    entries: &'a [(String, Node)],
    next: Option<&'a (String, Node)>,
}

impl<'de> MapAccess<'de> for Fields<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let read = |(_, node): &&(String, Node)| !node.is_wrong.get() && !matches!(node.value, Value::Null);
        let index = self.entries.iter().position(|entry| read(&entry));
        let Some(index) = index else { return Ok(None) };
        self.next = Some(&self.entries[index]);
        self.entries = &self.entries[index + 1..];
        let Some((name, node)) = self.next else { return Ok(None) };
        let key = seed.deserialize(StrDeserializer::<Error>::new(name));
        key.map(Some).map_err(|error| self.cursor.field(name, node).report(error))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let Some((name, node)) = self.next.take() else { return Err(Error::custom("expected a key first")) };
        let field = self.cursor.field(name, node);
        seed.deserialize(CursorDeserializer(field.clone())).map_err(|error| field.report(error))
    }
}

/// Why a value could not be deserialized.
#[derive(Debug)]
pub(crate) enum Error {
    /// An inner value is invalid, which is reported already.
    Reported,
    /// A required field is missing.
    Missing(&'static str),
    Message(String),
}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Message(message.to_string())
    }

    fn invalid_type(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let got = match got {
            Unexpected::Bool(flag) => flag.to_string(),
            Unexpected::Unsigned(number) => number.to_string(),
            Unexpected::Signed(number) => number.to_string(),
            Unexpected::Float(number) => number.to_string(),
            Unexpected::Str(text) => format!("{text:?}"),
            Unexpected::Unit | Unexpected::Option => "no value".into(),
            Unexpected::Seq => "a list".into(),
            Unexpected::Map => "a map".into(),
            other => other.to_string(),
        };
        // serde uses the Rust names of its own types.
        let expected = match expected.to_string().as_str() {
            "u64" => "a whole number of at least 0".to_owned(),
            "a boolean" => "true or false".to_owned(),
            _ => expected.to_string(),
        };
        Self::Message(format!("expected {expected}, got {got}"))
    }

    fn invalid_value(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(got, expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported => formatter.write_str("reported"),
            Self::Missing(field) => write!(formatter, "required field `{field}` is missing"),
            Self::Message(message) => formatter.write_str(message),
        }
    }
}
