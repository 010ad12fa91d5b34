//! The OpenAPI document, made from the routes and their bodies, and the page that shows it.
//!
//! What stands at a handler and at a wire type is what the document says about them. [`complete`] adds what follows from that: the errors that every
//! operation of a kind can answer with, headers, examples, and what is deprecated.

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

/// What stands above everything else.
const DESCRIPTION: &str = "Decides for every request of an API whether it may pass, under several limits at once. Every path with a version \
    answers with and without `/api` in front. Errors are `{\"error\": {…}}`, below `/admin` `{\"status\", \"error\", \"message\", \"timestamp\"}`. \
    Fields that are not known are refused.";

/// The OpenAPI 3.1 document of the REST API, as indented JSON.
///
/// # Errors
/// [`serde_json::Error`], which no document that can be built has.
pub fn openapi() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&document(&deprecations())?)
}

/// What utoipa makes, and what stands around it.
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
    ("Checks", "May a request pass, and how does a user stand?"),
    ("Rules", "Who is limited where."),
    ("Plans", "Named lists of limits that checks can name."),
    ("Users", "Tiers, limits of a user's own, and temporary overrides."),
    ("Identities", "Limits and temporary overrides of addresses, API keys and other identities."),
    ("Keys", "API keys and their roles."),
    ("Logs", "Who changed what, what was decided, and who asks most."),
    ("ThrottleX", "Policies and operations in ThrottleX's form."),
    ("Service", "Health, and this document."),
];

/// The whole document.
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
        servers: serde_json::json!([{"url": "/", "description": "the service that this document comes from"}]),
        security: serde_json::json!([{"api_key": []}, {"bearer": []}]),
        tags: TAGS
            .map(|(name, description)| serde_json::json!({"name": name, "description": description}))
            .to_vec(),
        paths,
        components: ComponentsBuilder::new().schemas_from_iter(schemas).build(),
    };
    // Through text, which keeps the order of fields.
    let mut document: Json = serde_json::from_str(&serde_json::to_string(&document)?)?;
    complete::complete(&mut document, deprecations)?;
    Ok(document)
}

/// This document
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
            tracing::error!(%error, "the OpenAPI document could not be made");
            Err(ApiError::new(Code::InternalError, "an internal error occurred"))
        }
    }
}
