//! The OpenAPI document matches the service: routes, examples, and which operations require a key.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use axum::body::Body;
use client::{Client, RULES};
use http_body_util::BodyExt;
use hyper::{Method, Request};
use serde_json::{Value, json};

const EXAMPLES: &str = include_str!("../src/openapi/examples.json");

/// Returns every operation of the document, with its method and path.
fn operations(document: &Value) -> Vec<(Method, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(|(method, operation)| {
            (method.to_ascii_uppercase().parse::<Method>().unwrap(), path.as_str(), operation)
        })
    });
    operations.collect()
}

/// Resolves a reference.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => {
            document.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}"))
        }
        None => value,
    }
}

fn each_reference(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("$ref", Value::String(reference)) => see(reference),
                    ("example", _) => {}
                    _ => each_reference(value, see),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, see)),
        _ => {}
    }
}

async fn document() -> Value {
    let answer = Client::managed(RULES).await.get("/openapi.json").await;
    assert_eq!(answer.status, 200);
    answer.body
}

#[tokio::test]
async fn document_is_complete() {
    let document = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    for field in ["title", "description", "version"] {
        assert!(!document["info"][field].as_str().unwrap().is_empty(), "{field}");
    }
    assert_eq!(document["info"]["license"]["identifier"], "MIT OR Apache-2.0");
    assert_eq!(document["components"]["securitySchemes"]["api_key"]["name"], "X-API-Key");
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let mut references = 0;
    each_reference(&document, &mut |reference| {
        references += 1;
        assert!(
            document.pointer(reference.trim_start_matches('#')).is_some(),
            "{reference} cannot be resolved"
        );
    });
    assert!(references > 500, "{references}");

    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let operation_name = format!("{method} {path}");
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
            "{operation_name}: duplicate operation id"
        );
        assert!(
            !operation["summary"].as_str().unwrap_or_default().is_empty(),
            "{operation_name} has no summary"
        );
        assert!(tags.contains(operation["tags"][0].as_str().unwrap()), "{operation_name}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                !parameter["description"].as_str().unwrap_or_default().is_empty(),
                "{operation_name}: {parameter}"
            );
            let of_path = parameter["in"] == "path";
            assert_eq!(parameter["required"], of_path, "{operation_name}: {parameter}");
            assert!(
                !of_path || !parameter["example"].is_null(),
                "{operation_name} has no example of {}",
                parameter["name"]
            );
        }
        if let Some(body) = operation.get("requestBody") {
            let body = &body["content"]["application/json"];
            assert!(!body["example"].is_null(), "{operation_name} has no example of its body");
            let schema = resolve(&document, &body["schema"]);
            assert_eq!(schema["additionalProperties"], false, "{operation_name} must exclude unknown fields");
        }
        let rendering = if path.starts_with("/admin") { "AdminError" } else { "Error" };
        let mut errors = 0;
        for (status, response) in operation["responses"].as_object().unwrap() {
            let response = resolve(&document, response);
            assert!(!response["description"].as_str().unwrap().is_empty(), "{operation_name} {status}");
            assert!(response["headers"]["X-Request-Id"].is_object(), "{operation_name} {status}");
            if ["204", "304"].contains(&status.as_str()) {
                assert!(response.get("content").is_none(), "{operation_name} {status}");
                continue;
            }
            let (_, body) = response["content"].as_object().unwrap().iter().next().unwrap();
            assert!(!body["example"].is_null(), "{operation_name} has no example of {status}");
            if status.starts_with(['4', '5']) {
                errors += u32::from(status.starts_with('4'));
                let name = format!("#/components/schemas/{rendering}");
                let schemas =
                    body["schema"]["anyOf"].as_array().cloned().unwrap_or(vec![body["schema"].clone()]);
                assert!(
                    schemas.contains(&json!({"$ref": name})),
                    "{operation_name} {status}: {}",
                    body["schema"]
                );
            }
        }
        assert!(errors > 0, "{operation_name} has no error");
    }
}

/// The router and the document are built from the same list; this test checks that the paths are
/// served.
#[tokio::test]
async fn every_path_of_the_document_is_served_with_its_methods_only() {
    let document = document().await;
    let client = Client::managed(RULES).await;
    let known = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
    let mut documented: HashMap<&str, BTreeSet<String>> = HashMap::new();
    for (method, path, _) in operations(&document) {
        documented.entry(path).or_default().insert(method.to_string());
    }
    assert_eq!(documented.len(), document["paths"].as_object().unwrap().len());
    for (path, methods) in documented {
        if path == "/docs" {
            continue;
        }
        let address = path.replace(['{', '}'], "");
        let aliases = match address.strip_prefix("/api/v1/").or_else(|| address.strip_prefix("/v1/")) {
            Some(rest) => vec![format!("/v1/{rest}"), format!("/api/v1/{rest}")],
            None => vec![address.clone()],
        };
        for address in aliases {
            for method in &known {
                let answer = client.send(method.clone(), &address, &[], Body::empty()).await;
                let is_there = answer.status != 405
                    && answer.body["error"]["message"] != format!("unknown path {address}");
                assert_eq!(
                    is_there,
                    methods.contains(method.as_str()),
                    "{method} {address}: {}",
                    answer.body
                );
            }
        }
    }
}

#[tokio::test]
async fn key_is_required_where_the_document_requires_it() {
    let document = document().await;
    let client = Client::managed(RULES).await;
    for (method, path, operation) in operations(&document) {
        if path == "/docs" {
            continue;
        }
        let needed = operation.get("security").is_none();
        let address = path.replace(['{', '}'], "");
        let body = operation["requestBody"]["content"]["application/json"]["example"].to_string();
        let answer =
            client.send(method.clone(), &address, &[("content-type", "application/json")], body).await;
        assert_eq!(answer.status == 401, needed, "{method} {path}: {} {}", answer.status, answer.body);
    }
}

/// Replays the examples in their order; responses must have the fields and value types of the
/// examples.
#[tokio::test]
async fn examples_match_actual_responses() {
    let document = document().await;
    let operations = operations(&document);
    let client = Client::managed(RULES).await;
    let mut names: HashMap<String, String> = HashMap::new();
    let mut seen = BTreeSet::new();
    let exchanges: Vec<Value> = serde_json::from_str(EXAMPLES).unwrap();
    for exchange in &exchanges {
        let id = exchange["operation"].as_str().unwrap();
        seen.insert(id.to_owned());
        if id == "docs" || id == "openapi" {
            continue;
        }
        let (method, path, operation) = operations
            .iter()
            .find(|(.., operation)| operation["operationId"] == id)
            .unwrap_or_else(|| panic!("{id}"));
        let (mut address, mut query, mut headers) = (path.to_string(), Vec::new(), Vec::new());
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let value = match &exchange["parameters"][name] {
                Value::Null => continue,
                Value::String(text) => names.get(text).unwrap_or(text).clone(),
                other => other.to_string(),
            };
            match parameter["in"].as_str().unwrap() {
                "path" => address = address.replace(&format!("{{{name}}}"), &value.replace('/', "%2F")),
                "query" => query.push(format!("{name}={value}")),
                _ => headers.push((name.to_owned(), value)),
            }
        }
        let address = if query.is_empty() { address } else { format!("{address}?{}", query.join("&")) };
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = client.admin_with(method.clone(), &address, &headers, exchange["request"].clone()).await;
        assert_eq!(answer.status.as_u16(), exchange["status"], "{id} at {address}: {}", answer.body);
        alike(id, &exchange["response"], &answer.body, &mut names);
    }
    let all: BTreeSet<String> = operations
        .iter()
        .map(|(.., operation)| operation["operationId"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(seen, all);
}

/// Asserts that a response matches its example. Texts that differ, such as ids, are mapped to each
/// other from then on.
fn alike(operation_name: &str, example: &Value, answer: &Value, names: &mut HashMap<String, String>) {
    match (example, answer) {
        (Value::Object(example), Value::Object(answer)) => {
            let (expected, found): (BTreeSet<_>, BTreeSet<_>) =
                (example.keys().collect(), answer.keys().collect());
            assert_eq!(expected, found, "{operation_name}");
            example.iter().for_each(|(name, value)| {
                alike(&format!("{operation_name}.{name}"), value, &answer[name], names)
            });
        }
        (Value::Array(example), Value::Array(answer)) => {
            example
                .iter()
                .zip(answer)
                .for_each(|(example, answer)| alike(operation_name, example, answer, names));
        }
        (Value::String(example), Value::String(answer)) if example != answer => {
            names.insert(example.clone(), answer.clone());
        }
        // Whether there is another page depends on what has been written so far.
        _ if operation_name.ends_with(".next_cursor") => {}
        _ => {
            let kind = |value: &Value| std::mem::discriminant(value);
            assert_eq!(kind(example), kind(answer), "{operation_name}: {example} and {answer}");
        }
    }
}

#[tokio::test]
async fn page_loads_nothing_from_other_hosts() {
    let config = pacegate_config::Config::parse(RULES).unwrap();
    let app = pacegate_server::App::new(
        &config,
        config.limiter().unwrap(),
        pacegate_server::AdminKey::new("secret"),
    );
    let request = Request::builder().uri("/docs").body(Body::empty()).unwrap();
    let response = app.respond(request, SocketAddr::from(([127, 0, 0, 1], 9999))).await;
    assert_eq!(response.status(), 200);
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let page = response.into_body().collect().await.unwrap().to_bytes();
    let page = std::str::from_utf8(&page).unwrap();
    assert!(page.len() < 60_000, "{}", page.len());
    assert!(page.contains("fetch('openapi.json')") && !page.contains("{{"), "the page is assembled");
    assert!(
        !page.contains("http://") && !page.contains("https://") && !page.contains("src="),
        "the page loads nothing"
    );
    assert!(
        !page.contains("innerHTML") && !page.contains("style=\""),
        "the page must comply with its own policy"
    );
}

#[test]
fn library_function_returns_the_served_document() {
    let text = pacegate_server::openapi().unwrap();
    assert!(text.starts_with("{\n  \"openapi\": \"3.1.0\""), "{}", &text[..60]);
    let printed: Value = serde_json::from_str(&text).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(printed, runtime.block_on(document()));
}
