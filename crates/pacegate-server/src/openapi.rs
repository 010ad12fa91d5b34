//! The OpenAPI document, built from the routes and their bodies, and the page that shows it.
//!
//! The documentation of each handler and wire type becomes its description. [`complete`] adds what
//! follows from it: the errors that every operation of a kind can return, headers, examples and
//! deprecations.

mod complete;
mod errors;
mod json;
pub(crate) mod page;
pub(crate) mod vocabulary;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::path::Paths;
use utoipa::openapi::{Components, ComponentsBuilder};

use crate::app::Shared;
use crate::deprecation::{Deprecation, deprecations};
use crate::respond::{ApiError, Code, Envelope, Flat};
use crate::rest::routes;
use json::Json;

/// The description of the API.
const DESCRIPTION: &str = "A rate limiter: decides for every request of an API whether it is within its limits, \
    several at once. Every path with a version is served with and without the prefix `/api`. Errors have the body \
    `{\"error\": {…}}`; under `/admin` they have `{\"status\", \"error\", \"message\", \"timestamp\"}`. Unknown fields are rejected.";

/// The OpenAPI 3.1 document of the REST API, as indented JSON.
///
/// # Errors
/// [`serde_json::Error`] if the document cannot be serialised, which does not happen.
pub fn openapi() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&document(&deprecations())?)
}

/// The output of utoipa, and the other parts of the document.
#[derive(Serialize)]
struct Document {
    openapi: &'static str,
    info: serde_json::Value,
    servers: serde_json::Value,
    security: serde_json::Value,
    tags: Vec<serde_json::Value>,
    paths: Paths,
    components: Components,
}

const TAGS: [(&str, &str); 9] = [
    ("Checks", "Rate limit checks, and the usage of a user."),
    ("Rules", "Rules: which requests are limited, and how."),
    ("Plans", "Named lists of limits that checks can name."),
    ("Users", "Tiers, custom limits and temporary overrides."),
    ("Identities", "Limits and temporary overrides of addresses, API keys and other identities."),
    ("Keys", "API keys and their roles."),
    ("Logs", "The audit trail, the decision log, and usage per identifier."),
    ("ThrottleX", "Policies and operations in ThrottleX's format."),
    ("Service", "Health, metrics and this document."),
];

/// Builds the whole document.
pub(crate) fn document(deprecations: &[Deprecation]) -> Result<Json, serde_json::Error> {
    let (mut paths, mut schemas) = (Paths::new(), Vec::new());
    for (of_route, route, _) in routes() {
        schemas.extend(of_route);
        paths.paths.extend(route.paths);
    }
    schemas.push((Envelope::name().into_owned(), <Envelope<'_> as utoipa::PartialSchema>::schema()));
    schemas.push((Flat::name().into_owned(), <Flat<'_> as utoipa::PartialSchema>::schema()));
    Envelope::schemas(&mut schemas);
    Flat::schemas(&mut schemas);
    schemas.sort_by(|(one, _), (other, _)| one.cmp(other));
    let document = Document {
        openapi: "3.1.0",
        info: serde_json::json!({
            "title": "Pacegate",
            "description": DESCRIPTION,
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        }),
        servers: serde_json::json!([{"url": "/", "description": "The service that serves this document."}]),
        security: serde_json::json!([{"api_key": []}, {"bearer": []}]),
        tags: TAGS
            .map(|(name, description)| serde_json::json!({"name": name, "description": description}))
            .to_vec(),
        paths,
        components: ComponentsBuilder::new().schemas_from_iter(schemas).build(),
    };
    // Via text, which preserves the order of fields.
    let mut document: Json = serde_json::from_str(&serde_json::to_string(&document)?)?;
    complete::complete(&mut document, deprecations)?;
    Ok(document)
}

/// Get the OpenAPI document
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "Service",
    security(()),
    responses((status = 200, description = "The OpenAPI 3.1 document.", body = Object)),
)]
pub(crate) async fn document_json(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let document = shared.openapi.get_or_init(|| {
        let document = document(&shared.deprecations).and_then(|document| serde_json::to_vec(&document));
        document.map(Bytes::from).map_err(|error| error.to_string())
    });
    match document {
        Ok(document) => {
            let mut response = Response::new(Body::from(document.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(response)
        }
        Err(error) => {
            tracing::error!(%error, "OpenAPI document could not be built");
            Err(ApiError::new(Code::InternalError, "an internal error occurred"))
        }
    }
}
