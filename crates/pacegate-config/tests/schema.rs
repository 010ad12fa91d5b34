//! The JSON Schema describes every field and agrees with the parser, and the reference is up to
//! date.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use pacegate_config::Config;
use serde_json::{Value, json};

fn schema() -> Value {
    serde_json::from_str(&Config::schema()).unwrap()
}

/// Collects every object of the schema, with its path.
fn objects(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    if !schema.is_object() {
        return;
    }
    // The conditions of a rule are not separate objects.
    if schema["properties"].is_object() && !schema["type"].is_null() {
        found.push((path.to_owned(), schema.clone()));
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        objects(inner, &format!("{path}.{name}"), found);
    }
    for (step, inner) in [("*", &schema["additionalProperties"]), ("[]", &schema["items"])] {
        objects(inner, &format!("{path}{step}"), found);
    }
    for inner in schema["anyOf"].as_array().into_iter().flatten() {
        objects(inner, path, found);
    }
}

#[test]
fn every_field_is_described_and_others_are_rejected() {
    let mut found = Vec::new();
    objects(&schema(), "", &mut found);
    for path in [
        "",
        ".server.tls",
        ".stores*.tls",
        ".plans*[]",
        ".rules[]",
        ".descriptors[].when[]",
        ".default_limit",
    ] {
        assert!(found.iter().any(|(known, _)| known == path), "{path} among {found:?}");
    }
    for (path, object) in found {
        assert_eq!(object["additionalProperties"], false, "{path}");
        for (name, field) in object["properties"].as_object().unwrap() {
            let description = field["description"].as_str().unwrap_or_default();
            assert!(!description.is_empty(), "{path}.{name} is not described");
            assert!(!description.contains("[`"), "{path}.{name}: {description}");
        }
    }
}

#[test]
fn bounds_and_defaults_are_those_of_the_parser() {
    let schema = schema();
    let property = |path: &str| {
        path.split('.').fold(schema.clone(), |schema, name| match name {
            "*" => schema["additionalProperties"].clone(),
            "[]" => schema["items"].clone(),
            _ => schema["properties"][name].clone(),
        })
    };
    for (path, key, expected) in [
        ("server.http", "default", json!("127.0.0.1:8080")),
        ("server.grpc", "default", json!("127.0.0.1:8081")),
        ("server.admin", "default", json!("none")),
        ("server.max_request_memory", "default", json!("64MiB")),
        ("server.max_streams", "maximum", json!(10_000)),
        ("server.idle_timeout", "default", json!("30s")),
        ("retention.audit", "default", json!("90d")),
        ("failure.mode", "default", json!("open")),
        ("failure.mode", "enum", json!(["open", "closed", "local"])),
        ("policies.dimensions", "default", json!(["user", "ip", "apikey"])),
        ("log.level", "default", json!("info")),
        ("traces", "required", json!(["otlp"])),
        ("rules.[]", "required", json!(["name", "dimension"])),
        ("rules.[].mode", "default", json!("enforce")),
        ("rules.[].limit", "maximum", json!(1_000_000_000)),
        ("rules.[].identifier", "type", json!(["string", "integer"])),
        ("stores.*.max_keys", "maximum", json!(1 << 30)),
        ("stores", "type", json!(["object", "null"])),
    ] {
        assert_eq!(property(path)[key], expected, "{key} of {path}: {}", property(path));
    }
}

/// Collects the names of all properties at every level.
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
    schema["anyOf"].as_array().into_iter().flatten().for_each(|inner| names(inner, found));
}

#[test]
fn example_has_every_field() {
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

/// Returns every shipped configuration, as JSON.
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
fn schema_and_parser_agree_on_valid_and_invalid_files() {
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
        (false, json!({"default_limit": null})),
        (false, json!({"server": {"grpc": 5}})),
        (false, json!({"server": {"max_checks_per_second": 0}})),
        (false, json!({"server": {"tls": {"cert": "a.pem"}}})),
        (
            false,
            json!({"server": {"tls": {"cert": "a", "key": "a", "client_ca": "a", "identities": {"a": "admin"}}}}),
        ),
        (
            true,
            json!({"server": {"tls": {"cert": "a", "key": "a", "client_ca": "a", "identities": {"dns:a": "admin"}}}}),
        ),
        (true, json!({"server": null, "rules": null, "stores": {"default": null}})),
        (true, json!({"rules": [{"name": 5, "dimension": "user", "identifier": 5, "unlimited": true}]})),
        (false, json!({"rules": [{"name": "a", "dimension": "user", "unlimited": false}]})),
        (false, json!({"rules": [{"name": "a", "dimension": "user", "unlimited": true, "tier": null}]})),
        (
            false,
            json!({"plans": {"gold": [{"algorithm": "gcra", "limit": 1, "window": "1s", "unit": "Tokens"}]}}),
        ),
        (true, json!({"descriptors": [{"entries": [{"key": true, "value": 1.5}], "deny": true}]})),
        (false, json!({"descriptors": [{"entries": [{"key": ["a"]}], "deny": true}]})),
        (false, json!({"descriptors": [{"by": ["a"], "descriptor": 64, "deny": true}]})),
    ] {
        assert_eq!(validator.is_valid(&document), good, "the schema on {document}");
        assert_eq!(Config::parse(&document.to_string()).is_ok(), good, "the parser on {document}");
    }
}

#[test]
fn reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    let command = "cargo run -p pacegate-cli -- config schema --markdown > docs/configuration.md";
    assert!(page == Config::reference(), "docs/configuration.md is stale; regenerate it with: {command}");
}

#[test]
fn reference_page_has_every_field_and_a_valid_example() {
    let page = Config::reference();
    let mut found = BTreeSet::new();
    names(&schema(), &mut found);
    for name in found {
        assert!(page.contains(&format!("\n| `{name}` | ")), "{name} is not in the reference");
    }
    let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = Config::parse(example).unwrap();
    assert_eq!((config.rules.len(), config.warnings.len()), (2, 0), "{:?}", config.warnings);
    let is_table = |line: &str| line.starts_with('|');
    let wide: Vec<&str> = page.lines().filter(|line| line.len() > 100 && !is_table(line)).collect();
    assert!(wide.is_empty(), "{wide:?}");
    // Every link to a heading of the page has its heading.
    let slug = |heading: &str| {
        let letters = heading.chars().filter(|letter| letter.is_alphanumeric() || " _-".contains(*letter));
        letters.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let headings: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("##"))
        .map(|line| slug(line.trim_matches(['#', ' '])))
        .collect();
    let links: Vec<&str> = page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 20);
    for link in links {
        assert!(headings.iter().any(|heading| heading == link), "{link} among {headings:?}");
    }
    let unique: BTreeSet<&String> = headings.iter().collect();
    assert_eq!(unique.len(), headings.len(), "{headings:?}");
}
