//! The forms of values in the file. Each deserializes one value and describes it in the schema, so
//! that both agree on its bounds.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use pacegate::identity::{self, Invalid};
use pacegate::{Algorithm, Pattern};
use pacegate_core::Named;
use pacegate_http::{CertificateName, InvalidCertificateName};
use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use crate::deserializer::{AsWritten, OR_NONE};

/// The keyword of the schema for the type that the reference shows.
pub(crate) const DOCUMENTED_TYPE: &str = "x-type";

/// A form of values of the type `V`.
pub(crate) trait Form<V>: DeserializeOwned + JsonSchema {
    fn value(self) -> V;

    /// Returns the value as it is written in the file, for defaults in the schema.
    fn show(value: &V) -> Value;
}

/// Deserializes a field in the form `F`: `#[serde(with = "As::<Between<1, 64>>")]`.
pub(crate) struct As<F>(PhantomData<F>);

impl<F> As<F> {
    pub(crate) fn deserialize<'de, D: Deserializer<'de>, V>(deserializer: D) -> Result<V, D::Error>
    where
        F: Form<V>,
    {
        F::deserialize(deserializer).map(F::value)
    }

    pub(crate) fn serialize<V, S: Serializer>(value: &V, serializer: S) -> Result<S::Ok, S::Error>
    where
        F: Form<V>,
    {
        F::show(value).serialize(serializer)
    }
}

/// Implements `JsonSchema` for a form, without references to other schemas by name.
macro_rules! schema {
    ([$($generic:tt)*] $form:ty, $generator:ident => $schema:expr) => {
        impl<$($generic)*> JsonSchema for $form {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                std::any::type_name::<Self>().into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

pub(crate) use schema;

schema!([F: JsonSchema] As<F>, generator => F::json_schema(generator));

impl<F: Form<V>, V> Form<Option<V>> for Option<F> {
    fn value(self) -> Option<V> {
        self.map(F::value)
    }

    fn show(value: &Option<V>) -> Value {
        value.as_ref().map_or(Value::Null, F::show)
    }
}

impl<F: Form<V>, V> Form<Vec<V>> for Vec<F> {
    fn value(self) -> Vec<V> {
        self.into_iter().map(F::value).collect()
    }

    fn show(value: &Vec<V>) -> Value {
        value.iter().map(F::show).collect()
    }
}

/// A map with keys in the form `K`, in the order of the file.
pub(crate) struct Table<K, V>(Vec<(K, V)>);

schema!([K: JsonSchema, V: JsonSchema] Table<K, V>, generator => json_schema!({
    "type": "object",
    "propertyNames": generator.subschema_for::<K>(),
    "additionalProperties": generator.subschema_for::<V>(),
}));

impl<A, B, K: Form<A>, V: Form<B>> Form<Vec<(A, B)>> for Table<K, V> {
    fn value(self) -> Vec<(A, B)> {
        self.0.into_iter().map(|(key, value)| (key.value(), value.value())).collect()
    }

    /// The default is empty.
    fn show(_: &Vec<(A, B)>) -> Value {
        json!({})
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Table<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Pairs<K, V> {
            type Value = Table<K, V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Table(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy)]
pub(crate) struct Between<const MIN: u64, const MAX: u64>(pub(crate) u64);

schema!([const MIN: u64, const MAX: u64] Between<MIN, MAX>, _generator => json_schema!({
    "type": "integer", "minimum": MIN, "maximum": MAX,
}));

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Between<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MIN: u64, const MAX: u64>;

        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
            type Value = Between<MIN, MAX>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a whole number between {MIN} and {MAX}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                if (MIN..=MAX).contains(&number) {
                    return Ok(Between(number));
                }
                Err(E::custom(format!("must be between {MIN} and {MAX}, got {number}")))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                // Every number that is not negative is passed to `visit_u64`.
                Err(E::custom(format!("must be between {MIN} and {MAX}, got {number}")))
            }
        }
        deserializer.deserialize_u64(Number)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl<const MIN: u64, const MAX: u64> Form<$number> for Between<MIN, MAX> {
            fn value(self) -> $number {
                <$number>::try_from(self.0).unwrap_or(<$number>::MAX)
            }

            fn show(value: &$number) -> Value {
                json!(value)
            }
        }
    )*};
}
numbers!(u8, u64, usize);

/// A number from 0 to 1.
pub(crate) struct Share(f64);

schema!([] Share, _generator => json_schema!({"type": "number", "minimum": 0, "maximum": 1}));

impl Form<f64> for Share {
    fn value(self) -> f64 {
        self.0
    }

    fn show(value: &f64) -> Value {
        json!(value)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(deserializer).ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| D::Error::custom("expected a number between 0 and 1"))
    }
}

/// `none` or a value in the form `F`.
pub(crate) struct OrNone<F>(pub(crate) Option<F>);

schema!([F: JsonSchema] OrNone<F>, generator => json_schema!({
    "anyOf": [generator.subschema_for::<F>(), {"const": "none"}],
}));

impl<F: Form<V>, V> Form<Option<V>> for OrNone<F> {
    fn value(self) -> Option<V> {
        self.0.map(F::value)
    }

    fn show(value: &Option<V>) -> Value {
        value.as_ref().map_or(json!("none"), F::show)
    }
}

impl<'de, F: Deserialize<'de>> Deserialize<'de> for OrNone<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NoneOr<F>(PhantomData<F>);

        impl<'de, F: Deserialize<'de>> Visitor<'de> for NoneOr<F> {
            type Value = OrNone<F>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("none or a value")
            }

            fn visit_none<E>(self) -> Result<Self::Value, E> {
                Ok(OrNone(None))
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
                F::deserialize(inner).map(|value| OrNone(Some(value)))
            }
        }
        deserializer.deserialize_newtype_struct(OR_NONE, NoneOr(PhantomData))
    }
}

/// A value of an enum, by its name.
#[derive(Clone, Copy, Default)]
pub(crate) struct Word<T>(pub(crate) T);

schema!([T: Named] Word<T>, _generator => json_schema!({
    "enum": (T::VALUES.iter().map(|value| value.name()).collect::<Vec<_>>()),
}));

impl<T: Named> Form<T> for Word<T> {
    fn value(self) -> T {
        self.0
    }

    fn show(value: &T) -> Value {
        value.name().into()
    }
}

impl<T: Named> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de, T: Named> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = || D::Error::custom(format!("expected {}, got {text:?}", T::expected()));
        T::parse(&text).map(Self).ok_or_else(expected)
    }
}

/// A type of value that is written as text.
pub(crate) trait Written {
    type Value;

    /// Whether the text is taken as written where YAML parses it as a boolean or a number.
    const AS_WRITTEN: bool = false;

    fn schema() -> Schema;

    /// Returns the value of the text, or the error message.
    fn parse(text: &str) -> Result<Self::Value, String>;

    fn show(value: &Self::Value) -> String;
}

/// A value in the form of a text.
pub(crate) struct Text<W: Written>(pub(crate) W::Value);

schema!([W: Written] Text<W>, _generator => W::schema());

impl<W: Written> Form<W::Value> for Text<W> {
    fn value(self) -> W::Value {
        self.0
    }

    fn show(value: &W::Value) -> Value {
        W::show(value).into()
    }
}

impl<'de, W: Written> Deserialize<'de> for Text<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match W::AS_WRITTEN {
            true => AsWritten::deserialize(deserializer)?.0,
            false => String::deserialize(deserializer)?,
        };
        W::parse(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A duration with a unit. The bounds are in milliseconds.
pub(crate) struct Span<const MIN_MS: u64, const MAX_MS: u64>;

pub(crate) const SECOND: u64 = 1_000;
pub(crate) const HOUR: u64 = 3_600 * SECOND;
pub(crate) const DAY: u64 = 24 * HOUR;
/// No upper bound.
pub(crate) const FOREVER: u64 = u64::MAX;

impl<const MIN_MS: u64, const MAX_MS: u64> Span<MIN_MS, MAX_MS> {
    fn bounds() -> String {
        let [min, max] = [MIN_MS, MAX_MS].map(|ms| Self::show(&Duration::from_millis(ms)));
        if MAX_MS == FOREVER { format!("at least {min}") } else { format!("{min} to {max}") }
    }
}

impl<const MIN_MS: u64, const MAX_MS: u64> Written for Span<MIN_MS, MAX_MS> {
    type Value = Duration;

    fn schema() -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*[a-zµ]+\s*)+$",
            "examples": ["500ms", "60s", "5m", "1h 30m", "1d"],
            (DOCUMENTED_TYPE): (format!("duration, {}", Self::bounds())),
        })
    }

    fn parse(text: &str) -> Result<Duration, String> {
        let Ok(duration) = humantime::parse_duration(text) else {
            return Err(format!("expected a duration with a unit such as \"60s\", got {text:?}"));
        };
        let min = Duration::from_millis(MIN_MS);
        let max = if MAX_MS == FOREVER { Duration::MAX } else { Duration::from_millis(MAX_MS) };
        if (min..=max).contains(&duration) {
            return Ok(duration);
        }
        let bounds = match MAX_MS {
            FOREVER => format!("at least {}", Self::show(&min)),
            _ => format!("between {} and {}", Self::show(&min), Self::show(&max)),
        };
        Err(format!("must be {bounds}, got {text:?}"))
    }

    /// Writes a duration in the largest unit of which it is a whole number.
    fn show(duration: &Duration) -> String {
        let ms = duration.as_millis();
        let units = [("d", DAY), ("h", HOUR), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1)];
        let whole = units.iter().find(|(_, unit)| ms > 0 && ms.is_multiple_of(u128::from(*unit)));
        whole.map_or("0s".into(), |(name, unit)| format!("{}{name}", ms / u128::from(*unit)))
    }
}

/// A number of bytes with a unit.
pub(crate) struct Size<const MIN: u64, const MAX: u64>;

const SIZE_UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    fn bounds() -> [String; 2] {
        [MIN, MAX].map(|size| Self::show(&usize::try_from(size).unwrap_or(usize::MAX)))
    }
}

impl<const MIN: u64, const MAX: u64> Written for Size<MIN, MAX> {
    type Value = usize;

    fn schema() -> Schema {
        let [min, max] = Self::bounds();
        json_schema!({
            "type": "string",
            "pattern": "^[0-9]+ *[KMG]iB$",
            "examples": ["512KiB", "64MiB", "2GiB"],
            (DOCUMENTED_TYPE): (format!("size, {min} to {max}")),
        })
    }

    fn parse(text: &str) -> Result<usize, String> {
        let size = SIZE_UNITS.iter().find_map(|(unit, bits)| {
            let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            number.checked_mul(1 << bits)
        });
        let Some(size) = size else {
            return Err(format!("expected a size with a unit such as \"64MiB\", got {text:?}"));
        };
        if (MIN..=MAX).contains(&size) {
            return Ok(usize::try_from(size).unwrap_or(usize::MAX));
        }
        let [min, max] = Self::bounds();
        Err(format!("must be between {min} and {max}, got {text:?}"))
    }

    fn show(size: &usize) -> String {
        let whole = SIZE_UNITS.iter().find(|(_, bits)| size.is_multiple_of(1 << bits));
        whole.map_or(size.to_string(), |(unit, bits)| format!("{}{unit}", size >> bits))
    }
}

/// Implements `Written` for types whose text is the output of `Display`.
macro_rules! written {
    ($($written:ty: $value:ty $([$as_written:literal])?, $schema:tt, |$text:ident| $parse:expr;)*) => {$(
        impl Written for $written {
            type Value = $value;

            $(const AS_WRITTEN: bool = $as_written;)?

            fn schema() -> schemars::Schema {
                schemars::json_schema!($schema)
            }

            fn parse($text: &str) -> Result<$value, String> {
                $parse
            }

            fn show(value: &$value) -> String {
                value.to_string()
            }
        }
    )*};
}
pub(crate) use written;

pub(crate) struct Name;
pub(crate) struct Dimension;
pub(crate) struct Tier;
pub(crate) struct Unit;
pub(crate) struct Method;
/// The name of a descriptor rule.
pub(crate) struct Label;
/// A key or a value of a descriptor.
pub(crate) struct Literal;
pub(crate) struct LiteralOrEmpty;
/// The URL of a gRPC server. Errors do not quote it, because it may contain a password.
pub(crate) struct HttpUrl;

written! {
    SocketAddr: Self, {
        "type": "string", "examples": ["127.0.0.1:8080"], (DOCUMENTED_TYPE): "address and port",
    }, |text| {
        let example = "an address and a port such as \"127.0.0.1:8080\"";
        text.parse().map_err(|_| format!("expected {example}, got {text:?}"))
    };
    IpNet: Self, {"type": "string", "examples": ["10.0.0.0/8"], (DOCUMENTED_TYPE): "network"}, |text| {
        text.parse().map_err(|_| format!("expected a network such as \"10.0.0.0/8\", got {text:?}"))
    };
    Algorithm: Self, {"enum": (algorithms())}, |text| {
        text.parse().map_err(|_| format!("expected {}, got {text:?}", Algorithm::expected()))
    };
    Pattern: Self, {"type": "string"}, |text| {
        Pattern::parse(text).map_err(|error| match intended_pattern(text) {
            Some(intended) => format!("{error}; did you mean `{intended}`?"),
            None => error.to_string(),
        })
    };
    CertificateName: Self, {"type": "string", "pattern": "^(dns|uri|email|ip):."}, |text| {
        text.parse().map_err(|error: InvalidCertificateName| error.to_string())
    };
    Name: String, {"type": ["string", "integer"]}, |text| checked(text, identity::check_name);
    Label: String [true], {"type": ["string", "number", "boolean"]}, |text| Name::parse(text);
    Literal: String [true], {"type": ["string", "number", "boolean"]}, |text| {
        checked(text, identity::check_identifier)
    };
    LiteralOrEmpty: String [true], {"type": ["string", "number", "boolean"]}, |text| {
        if text.is_empty() { Ok(String::new()) } else { Literal::parse(text) }
    };
    Dimension: String, {"type": "string"}, |text| {
        identity::dimension(text).map(str::to_owned).map_err(|error| error.reason().to_owned())
    };
    Tier: String, {"type": ["string", "integer"]}, |text| checked(text, identity::check_tier);
    Unit: String, {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}, |text| {
        checked(text, identity::check_unit)
    };
    Method: String, {"type": "string"}, |text| {
        identity::method(text).map(Cow::into_owned).map_err(|error| error.reason().to_owned())
    };
    HttpUrl: String, {"type": "string", "pattern": "^https?://"}, |text| {
        let is_http = text.starts_with("http://") || text.starts_with("https://");
        let expected = "expected a URL that starts with http:// or https://";
        is_http.then(|| text.to_owned()).ok_or_else(|| expected.into())
    };
}

/// The pattern for the wildcard of other routers: `/api/{*rest}` for `/api/*` or `/api/**`.
fn intended_pattern(text: &str) -> Option<String> {
    let parent = text.strip_suffix("/**").or_else(|| text.strip_suffix("/*"))?;
    let intended = format!("{parent}/{{*rest}}");
    Pattern::parse(&intended).ok().map(|_| intended)
}

fn algorithms() -> Vec<&'static str> {
    Algorithm::ALL.map(Algorithm::name).into_iter().chain(["sliding_window"]).collect()
}

fn checked(text: &str, check: fn(&str) -> Result<(), Invalid>) -> Result<String, String> {
    check(text).map(|()| text.to_owned()).map_err(|error| error.reason().to_owned())
}
