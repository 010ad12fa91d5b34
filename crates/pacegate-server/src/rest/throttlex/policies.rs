//! `/admin/policies`: a policy is a rule named `policy` for one exact key.

use std::time::Duration;

use axum::response::Response;
use hyper::StatusCode;
use pacegate::{Algorithm, InvalidLimit, Limit, Rule, identity, rules::POLICY_NAME};
use pacegate_catalog::{PolicyDetail, StoredRule};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DIMENSION, REFILL_RATE, WINDOW_SECONDS, is_policy, kind, page_of, shown_window, with_next};
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::decode::{Count, Integer, Whole};
use crate::rest::extract::{Id, Json, NoParameters, Page, Query};
use crate::rest::json;
use crate::rest::manage::rule_wire::required;
use crate::rest::manage::rules::not_in_file;
use crate::rest::manage::{IfMatch, Managed, Subject, empty, shown, unchanged};
use crate::rest::wire::parse_strategy;

/// A policy, in requests and responses. `key`, `policyKey` or the path sets its key.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = Policy)]
pub(crate) struct PolicyBody {
    /// Read-only. A request may send it back unchanged.
    #[schema(value_type = Option<i64>)]
    id: Option<Integer>,
    #[schema(value_type = Option<value::Identifier>)]
    key: Option<String>,
    #[schema(value_type = Option<value::Identifier>)]
    policy_key: Option<String>,
    #[serde(rename = "type")]
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    kind: Option<String>,
    /// The capacity of a bucket, or the quota of a window.
    #[schema(value_type = value::Quota, required = true)]
    capacity: Option<Count>,
    /// Tokens that a bucket regains per second. Default: 10.
    #[schema(value_type = Option<u64>)]
    refill_rate: Option<Count>,
    /// Default: 60.
    #[schema(value_type = Option<u64>)]
    window_seconds: Option<Count>,
}

impl PolicyBody {
    fn new(stored: &StoredRule) -> Self {
        let (limit, key) = (&stored.rule.limit, stored.rule.identifier.clone());
        let refill_rate = match stored.policy {
            _ if limit.algorithm().takes_burst() => u64::from(limit.quota()),
            Some(own) => own.refill_rate,
            None => REFILL_RATE,
        };
        Self {
            id: Some(Whole(stored.number)),
            key: key.clone(),
            policy_key: key,
            kind: Some(kind(limit.algorithm())),
            capacity: Some(Whole(limit.capacity().into())),
            refill_rate: Some(Whole(refill_rate)),
            window_seconds: Some(Whole(shown_window(limit, stored.policy))),
        }
    }

    /// Returns the rule, and the settings that a rule cannot hold. `of` is the key in the path.
    fn rule(&self, of: Option<&str>) -> Result<(Rule, PolicyDetail), ApiError> {
        let named = match (&self.key, &self.policy_key) {
            (Some(key), Some(other)) if key != other => {
                return Err(ApiError::input("policyKey", "must equal key"));
            }
            (Some(key), _) | (None, Some(key)) => Some(key.as_str()),
            (None, None) => None,
        };
        let key = match (named, of) {
            (Some(key), Some(of)) if key != of => {
                return Err(ApiError::input("key", "must equal the key in the path"));
            }
            (named, of) => required("key", named.or(of))?,
        };
        let algorithm = parse_strategy("type", required("type", self.kind.as_deref())?)?;
        let detail = PolicyDetail {
            refill_rate: self.refill_rate.map_or(REFILL_RATE, |Whole(rate)| rate),
            window_seconds: self.window_seconds.map_or(WINDOW_SECONDS, |Whole(seconds)| seconds),
        };
        let Whole(capacity) = required("capacity", self.capacity)?;
        let rule = rule_of(key, limit(algorithm, capacity, &detail)?);
        identity::check_identifier(key).map_err(|invalid| ApiError::input("key", invalid.reason()))?;
        Ok((rule, detail))
    }
}

/// Returns the limit: a bucket holds `capacity` and is refilled every second; a window allows
/// `capacity`.
fn limit(algorithm: Algorithm, capacity: u64, detail: &PolicyDetail) -> Result<Limit, ApiError> {
    let is_bucket = algorithm.takes_burst();
    let explain = |error: InvalidLimit| {
        let field = match (error.field(), is_bucket) {
            ("limit", true) => "refillRate",
            ("window", _) => "windowSeconds",
            _ => "capacity",
        };
        ApiError::field(Code::InvalidLimit, field, error.reason())
    };
    if is_bucket {
        let limit = Limit::try_new(algorithm, detail.refill_rate, Duration::from_secs(1)).map_err(explain)?;
        return limit.with_burst(capacity).map_err(explain);
    }
    Limit::try_new(algorithm, capacity, Duration::from_secs(detail.window_seconds)).map_err(explain)
}

/// List policies
#[utoipa::path(
    get,
    path = "/admin/policies",
    operation_id = "list_policies",
    tag = "ThrottleX",
    params(Page),
    responses((status = 200, description = "One page of policies.", body = Vec<PolicyBody>, headers(
        ("Link" = String, description = "The next page, as `rel=\"next\"`."),
    ))),
)]
pub(crate) async fn list(managed: Managed, Query(page): Query<Page>) -> Result<Response, ApiError> {
    let current = managed.live.sources();
    let (policies, next) = page_of(&current.catalog.rules, page.cursor.number()?, page.limit.0);
    let policies: Vec<PolicyBody> = policies.into_iter().map(PolicyBody::new).collect();
    Ok(with_next(json(StatusCode::OK, &policies), "/admin/policies", next))
}

/// Create a policy
#[utoipa::path(
    post,
    path = "/admin/policies",
    operation_id = "create_policy",
    tag = "ThrottleX",
    request_body = PolicyBody,
    responses(
        (status = 201, description = "Created.", body = PolicyBody, headers(("ETag" = String, description = "The version."))),
        (status = 409, description = "The key already has a policy."),
    )
)]
pub(crate) async fn create(managed: Managed, Json(body): Json<PolicyBody>) -> Result<Response, ApiError> {
    let (rule, detail) = body.rule(None)?;
    not_in_file(&managed.live.sources(), &rule)?;
    let write =
        managed.change(Subject::Rules, |catalog, actor| catalog.create_rule(actor, &rule, Some(detail)));
    let stored = write.await?;
    Ok(shown(StatusCode::CREATED, &PolicyBody::new(&stored), stored.version))
}

/// Get a policy
#[utoipa::path(
    get,
    path = "/admin/policies/{key}",
    operation_id = "get_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "The key of the policy.")),
    responses(
        (status = 200, description = "The policy.", body = PolicyBody, headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "The key has no policy."),
    )
)]
pub(crate) async fn get(managed: Managed, Id(key): Id, _: Query<NoParameters>) -> Result<Response, ApiError> {
    let stored = find(&managed, &key).await?;
    Ok(shown(StatusCode::OK, &PolicyBody::new(&stored), stored.version))
}

/// Replace a policy
#[utoipa::path(
    put,
    path = "/admin/policies/{key}",
    operation_id = "replace_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "The key of the policy."), IfMatch),
    request_body = PolicyBody,
    responses(
        (status = 200, description = "Replaced.", body = PolicyBody, headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "The key has no policy."),
    )
)]
pub(crate) async fn replace(
    managed: Managed,
    Id(key): Id,
    Json(body): Json<PolicyBody>,
) -> Result<Response, ApiError> {
    let (rule, detail) = body.rule(Some(&key))?;
    unchanged("id", body.id, Whole(find(&managed, &key).await?.number))?;
    let expected = managed.expected()?;
    let write = managed.change(Subject::Rules, |catalog, actor| {
        catalog.replace_rule(actor, &rule, expected, &rule, Some(detail))
    });
    let stored = write.await.map_err(|error| of_policy(error, &key))?;
    Ok(shown(StatusCode::OK, &PolicyBody::new(&stored), stored.version))
}

/// Delete a policy
#[utoipa::path(
    delete,
    path = "/admin/policies/{key}",
    operation_id = "delete_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "The key of the policy."), IfMatch),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "The key has no policy."),
    )
)]
pub(crate) async fn delete(managed: Managed, Id(key): Id) -> Result<Response, ApiError> {
    let (rule, expected) = (template(&key)?, managed.expected()?);
    let write = managed.change(Subject::Rules, |catalog, actor| catalog.delete_rule(actor, &rule, expected));
    write.await.map_err(|error| of_policy(error, &key))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn find(managed: &Managed, key: &str) -> Result<StoredRule, ApiError> {
    let found = managed.live.catalog.rule_of_variant(&template(key)?).await?;
    found.filter(|stored| is_policy(&stored.rule)).ok_or_else(|| unknown(key))
}

/// Returns a rule of the same variant as the policy of `key`.
fn template(key: &str) -> Result<Rule, ApiError> {
    Ok(rule_of(key, Limit::per_second(1).build().map_err(invalid_limit)?))
}

fn rule_of(key: &str, limit: Limit) -> Rule {
    Rule { identifier: Some(key.to_owned()), ..Rule::new(POLICY_NAME, DIMENSION, limit) }
}

fn of_policy(error: ApiError, key: &str) -> ApiError {
    if error.code == Code::NotFound { unknown(key) } else { error }
}

fn unknown(key: &str) -> ApiError {
    let key: String = key.chars().take(64).collect();
    ApiError::new(Code::NotFound, format!("no policy for key `{key}`"))
}
