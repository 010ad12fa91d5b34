//! `/v1/rate-limit/config`: the limit of one user at one endpoint, which is a rule named `config`
//! for that identifier.

use axum::response::Response;
use hyper::StatusCode;
use pacegate::identity::check_identifier;
use pacegate::{Limit, Pattern, Rule};
use pacegate_catalog::StoredRule;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rule_wire::{read_limit, required};
use super::rules::not_in_file;
use super::{IfMatch, Managed, Subject, empty, shown, unchanged};
use crate::ad_hoc::{is_sliding_window, name_for};
use crate::clock::rfc3339;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::answer::burst;
use crate::rest::decode::{Count, Seconds, Whole};
use crate::rest::extract::{Json, NoParameters, Query, UserEndpoint};

/// The name of all these rules: of several that match, the most specific endpoint applies.
const RULE_NAME: &str = "config";
const DIMENSION: &str = "user";

/// The limit of a user at an endpoint, in requests and responses. A response can be edited and sent
/// back.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Config)]
pub(crate) struct ConfigBody {
    #[schema(value_type = value::UserId, required = true)]
    user_id: Option<String>,
    #[schema(value_type = value::EndpointPattern, required = true)]
    endpoint: Option<String>,
    #[schema(value_type = value::Quota, required = true)]
    limit: Option<Count>,
    #[schema(value_type = value::Window, required = true)]
    window_seconds: Option<Seconds>,
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<value::Burst>)]
    burst_capacity: Option<Count>,
    /// Read-only, like `updated_at`. A request may send both back unchanged.
    rule_id: Option<String>,
    #[schema(value_type = Option<value::Time>)]
    updated_at: Option<String>,
}

impl ConfigBody {
    fn new(stored: &StoredRule, sliding_window: bool) -> Self {
        let (limit, count) = (&stored.rule.limit, |number: u32| Whole(u64::from(number)));
        Self {
            user_id: stored.rule.identifier.clone(),
            endpoint: Some(stored.rule.endpoint.as_str().to_owned()),
            limit: Some(count(limit.quota())),
            window_seconds: Some(Seconds(limit.window())),
            strategy: Some(name_for(limit.algorithm(), sliding_window).to_owned()),
            burst_capacity: burst(limit).map(count),
            rule_id: Some(stored.rule_id.clone()),
            updated_at: Some(rfc3339(stored.updated_at)),
        }
    }
}

/// Set the limit of a user at an endpoint
///
/// Creates or replaces the rule named `config` for that user and endpoint.
#[utoipa::path(
    put,
    path = "/v1/rate-limit/config",
    operation_id = "put_config",
    tag = "Rules",
    params(IfMatch),
    request_body = ConfigBody,
    responses(
        (status = 200, description = "Set.", body = ConfigBody, headers(("ETag" = String, description = "The version."))),
        (status = 409, description = "The rule is defined in the configuration file."),
    )
)]
pub(crate) async fn put(managed: Managed, Json(body): Json<ConfigBody>) -> Result<Response, ApiError> {
    let user_id = required("user_id", body.user_id)?;
    let endpoint = required("endpoint", body.endpoint)?;
    let strategy = ("strategy", body.strategy.as_deref());
    let limit = read_limit(strategy, body.limit, body.window_seconds, body.burst_capacity)?;
    let rule = rule_of(&user_id, &endpoint, limit)?;
    not_in_file(&managed.live.sources(), &rule)?;
    let before = managed.live.catalog.rule_of_variant(&rule).await?;
    if let Some(before) = &before {
        unchanged("rule_id", body.rule_id.as_deref(), &before.rule_id)?;
    }
    let known = before.map(|before| (before.version, before.updated_at));
    let expected = managed.expected_by(None, body.updated_at.as_deref(), known)?;
    let write =
        managed.change(Subject::Rules, |catalog, actor| catalog.put_rule(actor, &rule, None, expected));
    let (stored, _) = write.await?;
    let sliding_window = body.strategy.as_deref().is_some_and(is_sliding_window);
    Ok(shown(StatusCode::OK, &ConfigBody::new(&stored, sliding_window), stored.version))
}

/// Get the limit of a user at an endpoint
#[utoipa::path(
    get,
    path = "/v1/rate-limit/config/{user_id}/{endpoint}",
    operation_id = "get_config",
    tag = "Rules",
    params(
        ("user_id" = value::UserId, Path, description = "The user's identifier."),
        ("endpoint" = value::EndpointPattern, Path, description = "The endpoint, percent-encoded or as raw path segments."),
    ),
    responses(
        (status = 200, description = "The limit.", body = ConfigBody, headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "No limit is set for this user and endpoint."),
    )
)]
pub(crate) async fn get(
    managed: Managed,
    path: UserEndpoint,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    let stored = managed.live.catalog.rule_of_variant(&of_path(&path)?).await?.ok_or_else(unknown)?;
    Ok(shown(StatusCode::OK, &ConfigBody::new(&stored, false), stored.version))
}

/// Remove the limit of a user at an endpoint
#[utoipa::path(
    delete,
    path = "/v1/rate-limit/config/{user_id}/{endpoint}",
    operation_id = "delete_config",
    tag = "Rules",
    params(
        ("user_id" = value::UserId, Path, description = "The user's identifier."),
        ("endpoint" = value::EndpointPattern, Path, description = "The endpoint, percent-encoded or as raw path segments."),
        IfMatch,
    ),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "No limit is set for this user and endpoint."),
    )
)]
pub(crate) async fn delete(managed: Managed, path: UserEndpoint) -> Result<Response, ApiError> {
    let (rule, expected) = (of_path(&path)?, managed.expected()?);
    let write = managed.change(Subject::Rules, |catalog, actor| catalog.delete_rule(actor, &rule, expected));
    write.await.map_err(|error| if error.code == Code::NotFound { unknown() } else { error })?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn unknown() -> ApiError {
    ApiError::new(Code::NotFound, "no limit is set for this user and endpoint")
}

/// Returns a rule of the same variant as the rule for the user and endpoint of the path.
fn of_path(path: &UserEndpoint) -> Result<Rule, ApiError> {
    let limit = Limit::per_second(1).build().map_err(invalid_limit)?;
    rule_of(&path.user_id, &path.endpoint, limit)
}

fn rule_of(user_id: &str, endpoint: &str, limit: Limit) -> Result<Rule, ApiError> {
    let mut rule = Rule::new(RULE_NAME, DIMENSION, limit);
    rule.identifier = Some(user_id.to_owned());
    rule.endpoint =
        Pattern::parse(endpoint).map_err(|error| ApiError::input("endpoint", error.to_string()))?;
    check_identifier(user_id).map_err(|invalid| ApiError::input("user_id", invalid.reason()))?;
    Ok(rule)
}
