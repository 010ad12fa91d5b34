//! Bodies and queries as typed values. An error names the field and what was expected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::{Error as QueryError, MapAccessDeserializer, MapDeserializer};
use serde::de::{self, DeserializeOwned, IntoDeserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, forward_to_deserialize_any};
use serde_json::error::Category;
use serde_path_to_error::{Path, Segment};

use super::answer::seconds;
use crate::respond::{ApiError, Code};

/// Errors repeat names and values of clients up to these lengths, in bytes.
const FIELD_LENGTH_MAX: usize = 256;
const REASON_LENGTH_MAX: usize = 1_024;

/// Parses a JSON object.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    // A derived type also accepts a list of its fields, unless the input starts as an object.
    let read = match body.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(body),
        _ => serde_json::from_slice(body).map(|Object(value)| value),
    };
    read.map_err(|error| diagnose::<T>(body, &error))
}

/// Parses an invalid body again to find the field: tracking the path would slow down valid bodies.
#[cold]
fn diagnose<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> ApiError {
    let position = format!(" at line {} column {}", error.line(), error.column());
    if error.classify() != Category::Data {
        return ApiError::input("body", format!("invalid JSON{position}"));
    }
    let message = error.to_string();
    let reason = message.strip_suffix(&position).unwrap_or(&message);
    let mut json = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, Object<T>>(&mut json) {
        Err(error) => invalid(error.path(), reason),
        Ok(_) => ApiError::input("body", shortened(reason, REASON_LENGTH_MAX)),
    }
}

/// Parses the parameters of a query. The last of several with one name wins.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let parameters: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
    let parameters = parameters.into_iter().map(|(name, value)| (name, Parameter(value)));
    let read = serde_path_to_error::deserialize(MapDeserializer::new(parameters));
    read.map_err(|error| invalid(error.path(), &error.inner().to_string()))
}

fn invalid(path: &Path, reason: &str) -> ApiError {
    let (field, code) = match path.iter().next_back() {
        None => ("body".to_owned(), Code::InvalidInput),
        Some(Segment::Map { key }) => (path.to_string(), code_of(key)),
        Some(_) => (path.to_string(), Code::InvalidInput),
    };
    ApiError::field(code, &shortened(&field, FIELD_LENGTH_MAX), shortened(reason, REASON_LENGTH_MAX))
}

/// Returns the error code for an invalid value of a field.
fn code_of(field: &str) -> Code {
    match field {
        "limit" | "window_seconds" | "burst_capacity" | "capacity" | "refillRate" | "windowSeconds" => {
            Code::InvalidLimit
        }
        "strategy" | "algorithm" | "type" => Code::InvalidStrategy,
        _ => Code::InvalidInput,
    }
}

/// Keeps the start and the end of a serde error: what is wrong, and what was expected.
fn shortened(text: &str, length_max: usize) -> Cow<'_, str> {
    if text.len() <= length_max {
        return text.into();
    }
    let start = text.floor_char_boundary(length_max / 2);
    let end = text.ceil_char_boundary(text.len() - length_max / 2);
    format!("{}…{}", &text[..start], &text[end..]).into()
}

/// Returns the same error for a field inside `parent`.
pub(crate) fn inside(error: ApiError, parent: &str) -> ApiError {
    let (field, reason) = error.details.unwrap_or_default();
    ApiError::field(error.code, &format!("{parent}.{field}"), reason)
}

/// A JSON object. A derived type alone also accepts a list of its fields.
#[derive(Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// A whole number. Serde alone calls it `u64` in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Whole<T>(pub(crate) T);

/// A number of requests, tokens or seconds.
pub(crate) type Count = Whole<u64>;
/// A number that may be negative.
pub(crate) type Integer = Whole<i64>;

impl<'de, T: TryFrom<u64> + TryFrom<i64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor<T>(PhantomData<T>);

        impl<T: TryFrom<u64> + TryFrom<i64>> Visitor<'_> for WholeVisitor<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                let has_sign = T::try_from(-1_i64).is_ok();
                formatter.write_str(if has_sign { "a whole number" } else { "a positive whole number" })
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
                T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
                T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }

        deserializer.deserialize_i64(WholeVisitor(PhantomData)).map(Self)
    }
}

/// A duration in seconds, with milliseconds as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) Duration);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        seconds(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SecondsVisitor;

        impl Visitor<'_> for SecondsVisitor {
            type Value = Duration;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a positive number of seconds with at most three decimals")
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Duration, E> {
                Ok(Duration::from_secs(seconds))
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Duration, E> {
                Err(E::invalid_value(Unexpected::Signed(seconds), &self))
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Duration, E> {
                let milliseconds = seconds * 1_000.0;
                let whole = milliseconds.round();
                // Doubles near the longest window are 7e-6 ms apart.
                if (milliseconds - whole).abs() < 1e-5 && (0.0..1e15).contains(&whole) {
                    return Ok(Duration::from_millis(whole as u64));
                }
                Err(E::invalid_value(Unexpected::Float(seconds), &self))
            }
        }

        deserializer.deserialize_f64(SecondsVisitor).map(Self)
    }
}

/// The value of a query parameter, converted to a number or a flag where one is expected.
struct Parameter<'a>(Cow<'a, str>);

impl IntoDeserializer<'_> for Parameter<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Parameter<'_> {
    type Error = QueryError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_str(&self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_some(self)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        match (self.0.parse(), self.0.parse()) {
            (Ok(number), _) => visitor.visit_u64(number),
            (_, Ok(number)) => visitor.visit_i64(number),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        match self.0.parse() {
            Ok(flag) => visitor.visit_bool(flag),
            Err(_) => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
