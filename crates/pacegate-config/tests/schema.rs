//! The JSON Schema of the configuration says what the reader does: the same fields everywhere, and every example is valid by both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use pacegate_config::Config;
use serde_json::{Value, json};

fn schema() -> Value {
    serde_json::from_str(Config::SCHEMA).unwrap()
}

/// What the reader knows at a place, as it tells whoever gets it wrong.
fn known(document: &Value, path: &str) -> BTreeSet<String> {
    let errors = Config::parse(&document.to_string()).unwrap_err();
    let error = errors.0.iter().find(|error| error.path == path);
    let message = &error.unwrap_or_else(|| panic!("{path}: {errors}")).message;
    let (_, known) = message.split_once("unknown field; known are ").unwrap_or_else(|| panic!("{message}"));
    known.split(", ").map(str::to_owned).collect()
}

/// Puts `inner` where the schema's objects are nested, from the inside out.
fn compare(schema: &Value, wrap: &dyn Fn(Value) -> Value, path: &str, compared: &mut Vec<String>) {
    for alternative in schema["oneOf"].as_array().into_iter().flatten() {
        compare(alternative, wrap, path, compared);
    }
    if let Some(properties) = schema["properties"].as_object() {
        assert_eq!(schema["additionalProperties"], false, "{path}");
        let nowhere = if path.is_empty() { "nowhere".to_owned() } else { format!("{path}.nowhere") };
        let known = known(&wrap(json!({"nowhere": 1})), &nowhere);
        let listed: BTreeSet<String> = properties.keys().cloned().collect();
        assert_eq!(known, listed, "{path}");
        compared.push(path.to_owned());
        for (name, inner) in properties {
            assert!(
                !inner["description"].as_str().unwrap_or_default().is_empty(),
                "{path}.{name} is not described"
            );
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            compare(inner, &|value| wrap(json!({ name: value })), &path, compared);
        }
    } else if schema["additionalProperties"].is_object() {
        let path = format!("{path}.some");
        compare(&schema["additionalProperties"], &|value| wrap(json!({"some": value})), &path, compared);
    }
    if schema["items"].is_object() {
        compare(&schema["items"], &|value| wrap(json!([value])), &format!("{path}[0]"), compared);
    }
}

#[test]
fn the_schema_has_the_fields_that_the_reader_has() {
    let mut compared = Vec::new();
    compare(&schema(), &|value| value, "", &mut compared);
    for wanted in [
        "",
        "server.tls",
        "stores.some.tls",
        "plans.some[0]",
        "rules[0]",
        "descriptors[0].when[0]",
        "default_limit",
        "log",
    ] {
        assert!(compared.iter().any(|path| path == wanted), "{wanted} among {compared:?}");
    }
}

/// The names of all properties, however deep.
fn names(schema: &Value, found: &mut BTreeSet<String>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name.clone());
        names(inner, found);
    }
    for inner in
        [&schema["items"], &schema["additionalProperties"]].into_iter().filter(|inner| inner.is_object())
    {
        names(inner, found);
    }
    schema["oneOf"].as_array().into_iter().flatten().for_each(|inner| names(inner, found));
}

#[test]
fn the_example_has_everything_that_can_be_configured() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pacegate.yaml"))
            .unwrap();
    let mut found = BTreeSet::new();
    for part in [
        "server",
        "management",
        "stores",
        "catalog",
        "decision_log",
        "retention",
        "failure",
        "log",
        "traces",
        "service",
    ] {
        assert!(text.contains(&format!("{part}:")), "{part}");
        names(&schema()["properties"][part], &mut found);
    }
    found.extend(schema()["properties"].as_object().unwrap().keys().cloned());
    for name in found {
        assert!(text.contains(&format!("{name}:")), "{name} is not in the example");
    }
}

/// Every configuration that is shipped, as JSON.
fn shipped() -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["examples/pacegate.yaml", "deploy/docker/pacegate.yaml", "deploy/systemd/pacegate.yaml"]
        .into_iter()
        .map(|name| {
            let text = std::fs::read_to_string(root.join(name)).unwrap();
            (name.to_owned(), serde_saphyr::from_str(&text).unwrap())
        })
        .collect()
}

#[test]
fn what_is_shipped_is_valid_and_what_is_wrong_is_not() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for (name, document) in shipped() {
        let errors: Vec<String> = validator.iter_errors(&document).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
        Config::parse(&document.to_string()).unwrap();
    }
    for (good, document) in [
        (true, json!({})),
        (true, json!({"default_limit": "none", "server": {"grpc": "none"}})),
        (
            true,
            json!({"rules": [{"name": "a", "dimension": "user", "algorithm": "gcra", "limit": 1, "window": "1h 30m"}]}),
        ),
        (true, json!({"mode": "service", "service": {"url": "http://x:1"}})),
        (
            false,
            json!({"rules": [{"name": "a", "dimension": "user", "algorithm": "gcra", "limit": 0, "window": "1s"}]}),
        ),
        (
            false,
            json!({"rules": [{"name": "a", "dimension": "user", "algorithm": "gcra", "limit": 1, "window": 60}]}),
        ),
        (false, json!({"rules": [{"name": "a", "algorithm": "gcra", "limit": 1, "window": "1s"}]})),
        (false, json!({"rules": {"name": "a"}})),
        (false, json!({"failure": {"mode": "ajar"}})),
        (false, json!({"log": {"level": "loud"}})),
        (false, json!({"metrics": "yes"})),
        (false, json!({"server": {"max_connections": 0}})),
        (false, json!({"stores": {"default": {"connections": 1000}}})),
        (false, json!({"traces": {}})),
        (false, json!({"catalog": {"path": "x"}})),
    ] {
        assert_eq!(validator.is_valid(&document), good, "the schema on {document}");
        assert_eq!(Config::parse(&document.to_string()).is_ok(), good, "the reader on {document}");
    }
}
