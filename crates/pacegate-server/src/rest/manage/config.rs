//! `/v1/rate-limit/config`: the limit of one user at one endpoint, which is a rule named `config` for that identifier.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{Request, StatusCode};
use pacegate::identity::check_identifier;
use pacegate::{Pattern, Rule};
use pacegate_catalog::StoredRule;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use super::rule_wire::read_limit;
use super::rules::not_in_file;
use super::{Managed, PathParts, empty, path_parts, rfc3339, unchanged, with_etag};
use crate::ad_hoc::{is_sliding_window, name_for};
use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code};
use crate::rest::answer::burst;
use crate::rest::json;
use crate::rest::wire::{Kind, parse_strategy, read_object};

/// The name of all these rules: of several that match, the more specific endpoint counts.
const RULE_NAME: &str = "config";
const DIMENSION: &str = "user";

/// The limit of a user at an endpoint.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ConfigRequest {
    #[schema(value_type = value::UserId, required = true)]
    user_id: Option<String>,
    #[schema(value_type = value::EndpointPattern, required = true)]
    endpoint: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<u64>,
    #[schema(value_type = value::Window, required = true)]
    window_seconds: Option<Number>,
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    strategy: Option<String>,
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<u64>,
    /// This and the time are taken so that an answer can be edited and sent back. They must be those shown.
    rule_id: Option<String>,
    updated_at: Option<String>,
}

const FIELDS: [(&str, Kind); 8] = [
    ("user_id", Kind::Text),
    ("endpoint", Kind::Text),
    ("limit", Kind::Count),
    ("window_seconds", Kind::Number),
    ("strategy", Kind::Text),
    ("burst_capacity", Kind::Count),
    ("rule_id", Kind::Text),
    ("updated_at", Kind::Text),
];

/// The limit of a user at an endpoint, as it is shown.
#[derive(Debug, Serialize, ToSchema)]
struct ConfigResponse<'a> {
    user_id: &'a str,
    endpoint: &'a str,
    limit: u32,
    #[serde(serialize_with = "crate::rest::answer::seconds")]
    #[schema(value_type = value::Window)]
    window_seconds: std::time::Duration,
    #[schema(value_type = value::AlgorithmName)]
    strategy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    burst_capacity: Option<u32>,
    rule_id: &'a str,
    #[schema(value_type = value::Time)]
    updated_at: String,
}

/// Sets the limit of a user at an endpoint
///
/// It makes or replaces the rule named `config` for that user and endpoint.
#[utoipa::path(
    put,
    path = "/v1/rate-limit/config",
    operation_id = "put_config",
    tag = "Rules",
    params(("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    request_body = ConfigRequest,
    responses(
        (status = 200, description = "It is set.", body = ConfigResponse, headers(("ETag" = String, description = "its version"))),
        (status = 409, description = "The configuration file has that rule."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn put(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let request: ConfigRequest = read_object(&body, &FIELDS)?;
    let required =
        |field: &str, value: Option<String>| value.ok_or_else(|| ApiError::input(field, "is missing"));
    let user_id = required("user_id", request.user_id)?;
    let endpoint = required("endpoint", request.endpoint)?;
    let strategy = required("strategy", request.strategy)?;
    let algorithm = parse_strategy("strategy", &strategy)?;
    let limit =
        read_limit(algorithm, request.limit, request.window_seconds.as_ref(), request.burst_capacity)?;
    let rule = Rule { limit, ..template(&user_id, &endpoint, limit)? };
    not_in_file(&managed.live.sources(), &rule)?;
    let before = managed.live.catalog.rule_of_variant(&rule).await?;
    if let Some(before) = &before {
        unchanged("rule_id", request.rule_id.as_deref(), &before.rule_id)?;
    }
    let known = before.map(|before| (before.version, before.updated_at));
    let expected = managed.expected_by(None, request.updated_at.as_deref(), known)?;
    let (stored, _) = managed.live.catalog.put_rule(&managed.actor, &rule, None, expected).await?;
    managed.in_force().await;
    Ok(shown(&stored, is_sliding_window(&strategy)))
}

/// The limit of a user at an endpoint
#[utoipa::path(
    get,
    path = "/v1/rate-limit/config/{user_id}/{endpoint}",
    operation_id = "get_config",
    tag = "Rules",
    params(
        ("user_id" = value::UserId, Path, description = "whose limit it is"),
        ("endpoint" = value::EndpointPattern, Path, description = "the endpoint, percent-encoded or as raw path segments"),
    ),
    responses(
        (status = 200, description = "It is this.", body = ConfigResponse, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "None was set."),
    )
)]
pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    Ok(shown(&find(&managed, path).await?, false))
}

/// Removes the limit of a user at an endpoint
#[utoipa::path(
    delete,
    path = "/v1/rate-limit/config/{user_id}/{endpoint}",
    operation_id = "delete_config",
    tag = "Rules",
    params(
        ("user_id" = value::UserId, Path, description = "whose limit it is"),
        ("endpoint" = value::EndpointPattern, Path, description = "the endpoint, percent-encoded or as raw path segments"),
        ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one"),
    ),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "None was set."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let (catalog, actor, expected) = (&managed.live.catalog, &managed.actor, managed.expected()?);
    let deleted = catalog.delete_rule(actor, &of_path(path)?, expected).await;
    deleted.map_err(|error| if error.is_not_found() { unknown() } else { error.into() })?;
    managed.in_force().await;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// The stored rule for the user and endpoint of the path.
async fn find(managed: &Managed, path: PathParts) -> Result<StoredRule, ApiError> {
    managed.live.catalog.rule_of_variant(&of_path(path)?).await?.ok_or_else(unknown)
}

fn unknown() -> ApiError {
    ApiError::new(Code::NotFound, "there is no configuration for this user and endpoint")
}

/// A rule of the same variant as the one for the user and endpoint of the path.
fn of_path(path: PathParts) -> Result<Rule, ApiError> {
    let mut parts = path_parts(path)?.into_iter();
    let user_id = parts.next().unwrap_or_default();
    // With nothing behind the user's slash, the endpoint is that slash.
    let endpoint = parts.next().unwrap_or_else(|| "/".to_owned());
    let limit = pacegate::Limit::per_second(1).map_err(crate::respond::invalid_limit)?;
    template(&user_id, &endpoint, limit)
}

fn template(user_id: &str, endpoint: &str, limit: pacegate::Limit) -> Result<Rule, ApiError> {
    let mut rule = Rule::new(RULE_NAME, DIMENSION, limit);
    rule.identifier = Some(user_id.to_owned());
    rule.endpoint =
        Pattern::parse(endpoint).map_err(|error| ApiError::input("endpoint", error.to_string()))?;
    check_identifier(user_id).map_err(|invalid| ApiError::input("user_id", invalid.reason()))?;
    Ok(rule)
}

fn shown(stored: &StoredRule, says_sliding_window: bool) -> Response {
    let limit = &stored.rule.limit;
    let body = ConfigResponse {
        user_id: stored.rule.identifier.as_deref().unwrap_or_default(),
        endpoint: stored.rule.endpoint.as_str(),
        limit: limit.quota(),
        window_seconds: limit.window(),
        strategy: name_for(limit.algorithm(), says_sliding_window),
        burst_capacity: burst(limit),
        rule_id: &stored.rule_id,
        updated_at: rfc3339(stored.updated_at),
    };
    with_etag(json(StatusCode::OK, &body), stored.version)
}
