//! JSON lines: one object per line. Names of nested fields are joined by dots.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::record::Fields;

/// Maximum depth of names in the first lines.
const DEPTH_MAX: usize = 4;

/// A parser of lines of JSON.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    root: Wanted,
    slot_count: usize,
}

/// The fields that are used of an object.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// The slot of the value itself.
    slot: Option<usize>,
    inside: Vec<(String, Wanted)>,
}

impl Json {
    pub(crate) fn new(fields: &[String]) -> Self {
        let mut root = Wanted::default();
        for (slot, field) in fields.iter().enumerate() {
            let mut at = &mut root;
            for name in field.split('.') {
                let place = at.inside.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                    at.inside.push((name.to_owned(), Wanted::default()));
                    at.inside.len() - 1
                });
                at = &mut at.inside[place].1;
            }
            at.slot = Some(slot);
            // Some programs write names that contain dots.
            if field.contains('.') {
                root.inside.push((field.clone(), Wanted { slot: Some(slot), inside: Vec::new() }));
            }
        }
        Self { root, slot_count: fields.len() }
    }

    /// The fields of a line.
    pub(crate) fn fields<'a>(&self, line: &'a str) -> Result<Fields<'a>, String> {
        let mut found: Fields<'a> = smallvec::smallvec![None; self.slot_count];
        let mut deserializer = serde_json::Deserializer::from_str(line);
        let read = Object { wanted: &self.root, found: &mut found }.deserialize(&mut deserializer);
        read.and_then(|()| deserializer.end()).map_err(|error| reason(&error))?;
        Ok(found)
    }
}

/// Returns the reason without quoting the line, which may be hidden.
fn reason(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => "is not a JSON object: it ends too early".to_owned(),
        serde_json::error::Category::Syntax => {
            format!("is not a JSON object: syntax error at column {}", error.column())
        }
        _ => "is not a JSON object".to_owned(),
    }
}

/// Returns the names of all texts and numbers in a line, also in nested objects.
pub(crate) fn names(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(line) {
        collect(&object, "", DEPTH_MAX, &mut names);
    }
    names
}

fn collect(
    object: &serde_json::Map<String, serde_json::Value>,
    prefix: &str,
    depth: usize,
    names: &mut Vec<String>,
) {
    for (name, value) in object {
        match value {
            serde_json::Value::Object(inside) if depth > 0 => {
                collect(inside, &format!("{prefix}{name}."), depth - 1, names);
            }
            serde_json::Value::Object(_) | serde_json::Value::Array(_) => {}
            _ => names.push(format!("{prefix}{name}")),
        }
    }
}

/// Deserializes one object, and keeps the fields that are used.
struct Object<'w, 'f, 'a> {
    wanted: &'w Wanted,
    found: &'f mut Fields<'a>,
}

impl<'a> DeserializeSeed<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Name<'a>>()? {
            match self.wanted.inside.iter().find(|(known, _)| *known == *name.0) {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some((_, wanted)) => {
                    let value: &'a RawValue = map.next_value()?;
                    keep(wanted, value.get(), self.found);
                }
            }
        }
        Ok(())
    }
}

/// A name, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Keeps a text or a number, and the used fields of an object. Other values count as missing.
fn keep<'a>(wanted: &Wanted, value: &'a str, found: &mut Fields<'a>) {
    match (value.as_bytes().first(), wanted.slot) {
        (Some(b'{'), _) if !wanted.inside.is_empty() => {
            // The whole line has been parsed already, so this is valid.
            let mut deserializer = serde_json::Deserializer::from_str(value);
            let _ = Object { wanted, found }.deserialize(&mut deserializer);
        }
        (Some(b'"'), Some(slot)) => {
            found[slot] = serde_json::from_str::<Name<'a>>(value).ok().map(|text| text.0);
        }
        (Some(b'-' | b'0'..=b'9' | b't' | b'f'), Some(slot)) => found[slot] = Some(Cow::Borrowed(value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str, names: &[&str]) -> Result<Vec<Option<String>>, String> {
        let json = Json::new(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        Ok(json.fields(line)?.into_iter().map(|field| field.map(Cow::into_owned)).collect())
    }

    #[test]
    fn wanted_fields_are_found() {
        let line = r#" {"ts":1.50,"a":{"b":{"c":"x\"y\u00e9"},"n":null},"skip":[{"ts":2}],"t\u0069er":true,"d.e":1} "#;
        let found = fields(line, &["ts", "a.b.c", "a.n", "a.b", "tier", "none.at.all"]).unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found, [some("1.50"), some("x\"yé"), None, None, some("true"), None]);
        assert_eq!(fields(r#"{"d.e":1}"#, &["d.e"]).unwrap(), [some("1")]);
        assert_eq!(fields(r#"{"a":1,"a":2}"#, &["a"]).unwrap(), [some("2")]);
        let mut all = names(line);
        all.sort();
        assert_eq!(all, ["a.b.c", "a.n", "d.e", "tier", "ts"]);
    }

    #[test]
    fn other_values_than_objects_are_rejected() {
        let deep = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        for line in ["", "[]", "1", "{", r#"{"a":1} q"#, r#"{"a":1"#, "\"q\"", "{a:1}", "null"] {
            let reason = fields(line, &["a"]).unwrap_err();
            assert!(reason.starts_with("is not a JSON object") && !reason.contains('q'), "{line}: {reason}");
        }
        // Deep nesting does not overflow the stack.
        let _ = fields(&deep, &["a.a.a", "b"]);
        assert_eq!(names(&deep), Vec::<String>::new());
    }
}
