//! The parts that follow from the rest of the document: shared errors, headers, examples and
//! deprecations.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::json;

use super::errors::{ERRORS, SharedError};
use super::json::Json;
use crate::deprecation::Deprecation;
use crate::respond::Rendering;

/// Recorded requests and responses. A test replays them in this order.
const EXAMPLES: &str = include_str!("examples.json");

/// Adds to a document what its paths and schemas do not contain.
pub(super) fn complete(document: &mut Json, deprecations: &[Deprecation]) -> Result<(), serde_json::Error> {
    let exchanges: Vec<Exchange> = serde_json::from_str(EXAMPLES)?;
    for (path, item) in document.object("paths").into_iter().flatten() {
        for (method, operation) in item.fields().into_iter().flatten() {
            let id = operation.get("operationId").and_then(Json::text).unwrap_or_default().to_owned();
            parameters(operation);
            errors(operation, Rendering::of(path));
            headers(operation);
            // In reverse, so that the first exchange of an operation becomes its example.
            let own = exchanges.iter().rev().filter(|exchange| exchange.operation == id);
            own.for_each(|exchange| exchange.show(operation));
            let is_deprecated = |entry: &&Deprecation| {
                entry.path == *path && entry.method.as_str().eq_ignore_ascii_case(method)
            };
            if deprecations.iter().any(|entry| is_deprecated(&entry)) {
                deprecate(operation);
            }
        }
    }
    merge_flattened(document);
    schemas(document);
    components(document);
    Ok(())
}

/// Merges flattened structs. utoipa describes them as `allOf`, where no part can exclude unknown
/// fields; here they become the one object that is sent.
fn merge_flattened(document: &mut Json) {
    let Some(schemas) = document.object("components").and_then(|all| all.get_mut("schemas")) else { return };
    let known = schemas.clone();
    for schema in schemas.fields().into_iter().flat_map(IndexMap::values_mut) {
        let Some(Json::List(parts)) = schema.fields().and_then(|fields| fields.shift_remove("allOf")) else {
            continue;
        };
        for part in parts {
            let name = part.get("$ref").and_then(Json::text).and_then(|name| name.rsplit('/').next());
            let part = name.and_then(|name| known.get(name)).unwrap_or(&part);
            let (own, required) = (part.get("properties").cloned(), part.get("required").cloned());
            if let (Some(Json::Object(own)), Some(all)) = (own, schema.object("properties")) {
                all.extend(own);
            }
            if let Some(Json::List(required)) = required {
                let before = schema.get("required").cloned();
                let before = if let Some(Json::List(before)) = before { before } else { Vec::new() };
                schema.set("required", Json::List(before.into_iter().chain(required).collect()));
            }
        }
        schema.set("type", Json::Text("object".to_owned()));
    }
}

/// Removes `null` from the types of parameters: an omitted parameter is absent, never `null`.
fn parameters(operation: &mut Json) {
    for parameter in operation.get_mut("parameters").into_iter().flat_map(Json::items_mut) {
        let Some(schema) = parameter.get_mut("schema") else { continue };
        if let Some(Json::List(choices)) = schema.get("oneOf") {
            let named = choices.iter().find(|choice| choice.get("$ref").is_some()).cloned();
            *schema = named.unwrap_or(Json::Null);
        } else if let Some(Json::List(types)) = schema.get("type") {
            let named = types.iter().find(|name| name.text() != Some("null")).cloned();
            schema.set("type", named.unwrap_or(Json::Null));
        }
    }
}

/// Adds the errors that an operation of its kind can return, and the bodies of the errors it
/// describes itself.
fn errors(operation: &mut Json, rendering: Rendering) {
    let has_body = operation.get("requestBody").is_some();
    let parameters = operation.get("parameters");
    let has_parameters = parameters.is_some();
    let is_condition = |one: &Json| one.get("name").and_then(Json::text) == Some("If-Match");
    let has_condition = matches!(parameters, Some(Json::List(all)) if all.iter().any(is_condition));
    // An operation requires a key by default; `[{}]` requires none.
    let keyed = match operation.get("security") {
        Some(Json::List(choices)) => choices.iter().any(|choice| *choice != Json::Object(IndexMap::new())),
        _ => true,
    };
    let Some(responses) = operation.object("responses") else { return };
    for error in &ERRORS {
        let applies = match error.status {
            "400" => has_body || has_parameters || keyed,
            "401" | "403" | "429" | "503" => keyed,
            "412" => has_condition,
            "413" | "415" => has_body,
            "408" | "500" => true,
            _ => false,
        };
        let reference = format!("#/components/responses/{}", error.component(rendering));
        match responses.get_mut(error.status) {
            None if applies => {
                responses.insert(error.status.to_owned(), json!({"$ref": reference}).into());
            }
            None => {}
            Some(named) => name_error(named, error, rendering),
        }
    }
    responses.sort_unstable_keys();
}

/// Completes an error that the operation describes itself. If it has its own body, it may have the
/// body of an error as well.
fn name_error(named: &mut Json, error: &SharedError, rendering: Rendering) {
    let own =
        named.get("content").and_then(|content| content.get("application/json")?.get("schema").cloned());
    let mut content = Json::from(error.content(rendering));
    if let (Some(own), Some(body)) = (own, content.get_mut("application/json")) {
        let choices: Vec<Json> = [Some(own), body.get("schema").cloned()].into_iter().flatten().collect();
        body.set("schema", Json::Object([("anyOf".to_owned(), Json::List(choices))].into_iter().collect()));
    }
    named.set("content", content);
    if let Json::Object(headers) = Json::from(error.headers()) {
        named.object("headers").into_iter().for_each(|own| own.extend(headers.clone()));
    }
}

/// Adds headers: every response has a request id, and responses to checks have rate limit headers.
fn headers(operation: &mut Json) {
    let id = operation.get("operationId").and_then(Json::text).unwrap_or_default();
    let decides = ["check", "status"].contains(&id);
    for (status, response) in operation.object("responses").into_iter().flatten() {
        if response.get("$ref").is_some() {
            continue;
        }
        let Some(headers) = response.object("headers") else { continue };
        let mut refer = |name: &str| {
            let reference = json!({"$ref": format!("#/components/headers/{name}")});
            headers.entry(name.to_owned()).or_insert_with(|| reference.into());
        };
        refer("X-Request-Id");
        if decides && ["200", "429", "503"].contains(&status.as_str()) {
            HEADERS.iter().filter(|header| header.of_decisions).for_each(|header| refer(header.name));
        }
    }
}

/// A response header.
struct Header {
    name: &'static str,
    of_decisions: bool,
    kind: &'static str,
    description: &'static str,
}

const fn header(
    name: &'static str,
    of_decisions: bool,
    kind: &'static str,
    description: &'static str,
) -> Header {
    Header { name, of_decisions, kind, description }
}

const HEADERS: [Header; 13] = [
    header("X-Request-Id", false, "string", "The id of the request, sent by the client or generated."),
    header("Retry-After", false, "integer", "Seconds after which a retry can succeed."),
    header("WWW-Authenticate", false, "string", "How to authenticate."),
    header(
        "Deprecation",
        false,
        "string",
        "The time since which this endpoint is deprecated, as `@` and seconds since the epoch.",
    ),
    header("Sunset", false, "string", "The time after which this endpoint may be removed."),
    header("Link", false, "string", "The successor of this endpoint, as `rel=\"successor-version\"`."),
    header("X-RateLimit-Limit", true, "integer", "The capacity: the most that can be consumed at once."),
    header("X-RateLimit-Remaining", true, "integer", "The remaining quota."),
    header(
        "X-RateLimit-Reset",
        true,
        "integer",
        "When the full capacity is available again, in seconds since the epoch.",
    ),
    header("X-RateLimit-Strategy", true, "string", "The algorithm of the binding limit."),
    header("X-RateLimit-State", true, "string", "`warning` or `throttled`. Absent in state `normal`."),
    header("RateLimit-Policy", true, "string", "Every limit: its name, quota and window."),
    header("RateLimit", true, "string", "Every limit: its name, remaining quota and seconds until reset."),
];

/// A request and its response.
#[derive(Deserialize)]
struct Exchange {
    operation: String,
    #[serde(default)]
    parameters: IndexMap<String, Json>,
    request: Option<Json>,
    status: u16,
    response: Option<Json>,
}

impl Exchange {
    /// Sets it as the example of its operation.
    fn show(&self, operation: &mut Json) {
        for parameter in operation.get_mut("parameters").into_iter().flat_map(Json::items_mut) {
            let name = parameter.get("name").and_then(Json::text).unwrap_or_default();
            if let Some(example) = self.parameters.get(name) {
                parameter.set("example", example.clone());
            }
        }
        if let Some(request) = &self.request {
            show_body(operation.get_mut("requestBody"), request);
        }
        if let Some(response) = &self.response {
            let answers = operation.get_mut("responses");
            show_body(answers.and_then(|answers| answers.get_mut(&self.status.to_string())), response);
        }
    }
}

fn show_body(of: Option<&mut Json>, example: &Json) {
    let content = of.and_then(|of| of.get_mut("content")?.fields());
    content.into_iter().flat_map(IndexMap::values_mut).for_each(|body| body.set("example", example.clone()));
}

/// Marks an operation as deprecated.
fn deprecate(operation: &mut Json) {
    operation.set("deprecated", Json::Bool(true));
    for response in operation.object("responses").into_iter().flat_map(IndexMap::values_mut) {
        if response.get("$ref").is_some() {
            continue;
        }
        let Some(headers) = response.object("headers") else { continue };
        for name in ["Deprecation", "Sunset", "Link"] {
            let reference = json!({"$ref": format!("#/components/headers/{name}")});
            headers.insert(name.to_owned(), reference.into());
        }
    }
}

/// Adds requirements that hold for one of several fields.
fn schemas(document: &mut Json) {
    let Some(schemas) = document.get_mut("components").and_then(|components| components.get_mut("schemas"))
    else {
        return;
    };
    let one_of = |fields: &[&[&str]]| {
        let choices = fields.iter().map(|fields| json!({"required": fields})).collect::<Vec<_>>();
        Json::from(serde_json::Value::Array(choices))
    };
    for (name, fields) in [
        ("CheckRequest", &[&["user_id"][..], &["dimension", "identifier"], &["keys"]][..]),
        ("OverrideRequest", &[&["expires_in_seconds"], &["expires_at"]]),
    ] {
        if let Some(schema) = schemas.get_mut(name) {
            schema.set("anyOf", one_of(fields));
        }
    }
    let checks =
        schemas.get_mut("BatchRequest").and_then(|batch| batch.get_mut("properties")?.get_mut("checks"));
    if let Some(checks) = checks {
        let bad = "Any other item returns an error in its place in the results.";
        let items = json!({"anyOf": [{"$ref": "#/components/schemas/CheckRequest"}, {"description": bad}]});
        checks.set("items", items);
    }
}

/// Adds the components to which operations refer.
fn components(document: &mut Json) {
    let mut responses = IndexMap::new();
    for rendering in [Rendering::Envelope, Rendering::Flat] {
        for error in &ERRORS {
            responses.insert(error.component(rendering), error.response(rendering));
        }
    }
    let headers = HEADERS.iter().map(|header| {
        let value = json!({"description": header.description, "schema": {"type": header.kind}});
        (header.name.to_owned(), Json::from(value))
    });
    let Some(components) = document.object("components") else { return };
    components.insert("responses".to_owned(), Json::Object(responses));
    components.insert("headers".to_owned(), Json::Object(headers.collect()));
    let schemes = json!({
        "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "bearer": {"type": "http", "scheme": "bearer"},
    });
    components.insert("securitySchemes".to_owned(), schemes.into());
}
