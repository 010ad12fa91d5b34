//! `/admin/policies`: ThrottleX's policies. Each is a rule named `policy` for one exact key.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{HeaderValue, LINK};
use hyper::{Request, StatusCode};
use pacegate::{Algorithm, Limit, POLICY_NAME, Rule, identity};
use pacegate_catalog::{CatalogError, PolicyDetail, StoredRule};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rules::not_in_file;
use super::{Managed, PathParts, empty, path_part, unchanged, with_etag};
use crate::app::Shared;
use crate::openapi::parameters::PageParameters;
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code};
use crate::rest::json;
use crate::rest::wire::{Kind, parse_strategy, read_object};

/// The dimension of their keys.
pub(super) const DIMENSION: &str = "key";
/// What a policy that does not say has.
const REFILL_RATE: u64 = 10;
const WINDOW_SECONDS: u64 = 60;

/// A policy to be made. Its key is said by `key` or `policyKey`, or by the path.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PolicyRequest {
    #[schema(value_type = Option<value::Identifier>)]
    key: Option<String>,
    #[schema(value_type = Option<value::Identifier>)]
    policy_key: Option<String>,
    #[serde(rename = "type")]
    #[schema(value_type = value::AlgorithmChoice, required = true)]
    kind: Option<String>,
    /// How much a bucket holds, or how much a window allows.
    #[schema(value_type = value::Quota, required = true)]
    capacity: Option<u64>,
    /// How much a bucket gets back a second; 10 unless given.
    #[schema(value_type = Option<u64>)]
    refill_rate: Option<u64>,
    /// 60 unless given.
    #[schema(value_type = Option<u64>)]
    window_seconds: Option<u64>,
    /// Must be the one shown, if given; only the server sets it.
    id: Option<i64>,
}

const FIELDS: [(&str, Kind); 7] = [
    ("key", Kind::Text),
    ("policyKey", Kind::Text),
    ("type", Kind::Text),
    ("capacity", Kind::Count),
    ("refillRate", Kind::Count),
    ("windowSeconds", Kind::Count),
    ("id", Kind::Integer),
];

/// A policy as it is shown.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Policy)]
pub(super) struct PolicyResponse<'a> {
    id: i64,
    key: &'a str,
    policy_key: &'a str,
    #[serde(rename = "type")]
    #[schema(value_type = value::PolicyType)]
    kind: String,
    capacity: u32,
    refill_rate: u64,
    window_seconds: u64,
}

impl<'a> PolicyResponse<'a> {
    fn new(stored: &'a StoredRule) -> Self {
        let (limit, key) = (&stored.rule.limit, stored.rule.identifier.as_deref().unwrap_or_default());
        let own = stored
            .policy
            .unwrap_or(PolicyDetail { refill_rate: REFILL_RATE, window_seconds: WINDOW_SECONDS });
        let is_bucket = limit.algorithm().takes_burst();
        Self {
            id: stored.number,
            key,
            policy_key: key,
            kind: kind(limit.algorithm()),
            capacity: limit.capacity(),
            refill_rate: if is_bucket { u64::from(limit.quota()) } else { own.refill_rate },
            window_seconds: window_seconds(stored),
        }
    }
}

/// The window of a policy, which buckets have no use for but are given all the same.
fn window_seconds(stored: &StoredRule) -> u64 {
    shown_window(&stored.rule.limit, stored.policy)
}

/// The window of a limit in this form. A bucket shows the one it was given, or the usual one.
pub(super) fn shown_window(limit: &Limit, policy: Option<PolicyDetail>) -> u64 {
    if limit.algorithm().takes_burst() {
        return policy.map_or(WINDOW_SECONDS, |own| own.window_seconds);
    }
    limit.window().as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
}

impl PolicyRequest {
    /// The rule, and what it has no place for. `of` is the key in the path, if there is one.
    fn rule(&self, of: Option<&str>) -> Result<(Rule, PolicyDetail), ApiError> {
        let named = match (&self.key, &self.policy_key) {
            (Some(key), Some(other)) if key != other => {
                return Err(ApiError::input("policyKey", "differs from key"));
            }
            (Some(key), _) | (None, Some(key)) => Some(key.as_str()),
            (None, None) => None,
        };
        let key = match (named, of) {
            (Some(key), Some(of)) if key != of => {
                return Err(ApiError::input("key", "differs from the one in the path"));
            }
            (Some(key), _) | (None, Some(key)) => key,
            (None, None) => return Err(ApiError::input("key", "is missing")),
        };
        let kind = self.kind.as_deref().ok_or_else(|| ApiError::input("type", "is missing"))?;
        let algorithm = parse_strategy("type", kind)?;
        let detail = PolicyDetail {
            refill_rate: self.refill_rate.unwrap_or(REFILL_RATE),
            window_seconds: self.window_seconds.unwrap_or(WINDOW_SECONDS),
        };
        let capacity = self.capacity.ok_or_else(|| ApiError::input("capacity", "is missing"))?;
        let mut rule = Rule::new(POLICY_NAME, DIMENSION, limit(algorithm, capacity, &detail)?);
        rule.identifier = Some(key.to_owned());
        identity::check_identifier(key).map_err(|invalid| ApiError::input("key", invalid.reason()))?;
        Ok((rule, detail))
    }
}

/// An algorithm's name in ThrottleX's form, which has one of its own for the log.
pub(super) fn kind(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::SlidingLog => "SLIDING_WINDOW".to_owned(),
        other => other.name().to_ascii_uppercase(),
    }
}

/// Buckets hold `capacity` and are refilled by the second; windows allow `capacity` each.
fn limit(algorithm: Algorithm, capacity: u64, detail: &PolicyDetail) -> Result<Limit, ApiError> {
    let is_bucket = algorithm.takes_burst();
    let explain = |error: pacegate::InvalidLimit| {
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

/// Whether a rule is a policy: its key has no other limit here, and its numbers can be said in this form.
pub(super) fn is_policy(rule: &Rule) -> bool {
    let window = rule.limit.window();
    let is_said = match rule.limit.algorithm().takes_burst() {
        true => window == Duration::from_secs(1),
        false => window.subsec_nanos() == 0,
    };
    is_said && rule.is_policy()
}

/// All policies
#[utoipa::path(
    get,
    path = "/admin/policies",
    operation_id = "list_policies",
    tag = "ThrottleX",
    params(PageParameters),
    responses((status = 200, description = "One page of them.", body = Vec<PolicyResponse>, headers(
        ("Link" = String, description = "the next page, as `rel=\"next\"`"),
    ))),
)]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let current = managed.live.sources();
    let page = managed.page(&[])?;
    let (policies, next) = after(&current.catalog.rules, page.number_cursor()?, page.limit);
    let shown: Vec<PolicyResponse<'_>> = policies.into_iter().map(PolicyResponse::new).collect();
    Ok(with_next(json(StatusCode::OK, &shown), "/admin/policies", next))
}

/// The policies among `rules`, which are in the order of their numbers: up to `limit` after the number `after`, and where the next ones start.
pub(super) fn after(
    rules: &[StoredRule],
    after: Option<i64>,
    limit: usize,
) -> (Vec<&StoredRule>, Option<i64>) {
    let mut found = rules
        .iter()
        .filter(|stored| after.is_none_or(|after| stored.number > after) && is_policy(&stored.rule));
    let policies: Vec<&StoredRule> = found.by_ref().take(limit).collect();
    let next = found.next().and(policies.last()).map(|last| last.number);
    (policies, next)
}

/// Says where the next page is, the way lists without an envelope do.
pub(super) fn with_next(mut response: Response, path: &str, next: Option<impl Display>) -> Response {
    if let Some(next) = next
        && let Ok(link) = HeaderValue::try_from(format!("<{path}?cursor={next}>; rel=\"next\""))
    {
        response.headers_mut().insert(LINK, link);
    }
    response
}

/// Makes a policy
#[utoipa::path(
    post,
    path = "/admin/policies",
    operation_id = "create_policy",
    tag = "ThrottleX",
    request_body = PolicyRequest,
    responses(
        (status = 201, description = "It is made.", body = PolicyResponse, headers(("ETag" = String, description = "its version"))),
        (status = 409, description = "The key has a policy."),
    )
)]
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let (rule, detail) = read_object::<PolicyRequest>(&body, &FIELDS)?.rule(None)?;
    not_in_file(&managed.live.sources(), &rule)?;
    let stored = managed.live.catalog.create_rule(&managed.actor, &rule, Some(detail)).await?;
    managed.in_force().await;
    Ok(shown(StatusCode::CREATED, &stored))
}

/// One policy
#[utoipa::path(
    get,
    path = "/admin/policies/{key}",
    operation_id = "get_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "the key of a policy")),
    responses(
        (status = 200, description = "It is this.", body = PolicyResponse, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "The key has no policy."),
    )
)]
pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    managed.parameters(&[])?;
    Ok(shown(StatusCode::OK, &find(&managed, &path_part(path)?).await?))
}

/// Replaces a policy
#[utoipa::path(
    put,
    path = "/admin/policies/{key}",
    operation_id = "replace_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "the key of a policy"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    request_body = PolicyRequest,
    responses(
        (status = 200, description = "It is replaced.", body = PolicyResponse, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "The key has no policy."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn replace(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (managed, body) = Managed::with_json(&shared, request).await?;
    let key = path_part(path)?;
    let request = read_object::<PolicyRequest>(&body, &FIELDS)?;
    let (rule, detail) = request.rule(Some(&key))?;
    unchanged("id", request.id, find(&managed, &key).await?.number)?;
    let (catalog, actor, expected) = (&managed.live.catalog, &managed.actor, managed.expected()?);
    let replaced = catalog.replace_rule(actor, &rule, expected, &rule, Some(detail)).await;
    let stored = replaced.map_err(|error| of_key(error, &key))?;
    managed.in_force().await;
    Ok(shown(StatusCode::OK, &stored))
}

/// Removes a policy
#[utoipa::path(
    delete,
    path = "/admin/policies/{key}",
    operation_id = "delete_policy",
    tag = "ThrottleX",
    params(("key" = value::Identifier, Path, description = "the key of a policy"), ("If-Match" = Option<String>, Header, description = "the ETag that was read, or `*`; 412 if it is not the current one")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "The key has no policy."),
        (status = 412, description = "It was changed since it was read."),
    )
)]
pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    path: PathParts,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let managed = Managed::new(&shared, request).await?;
    let key = path_part(path)?;
    let (catalog, actor, expected) = (&managed.live.catalog, &managed.actor, managed.expected()?);
    let deleted = catalog.delete_rule(actor, &template(&key)?, expected).await;
    deleted.map_err(|error| of_key(error, &key))?;
    managed.in_force().await;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn find(managed: &Managed, key: &str) -> Result<StoredRule, ApiError> {
    let found = managed.live.catalog.rule_of_variant(&template(key)?).await?;
    found.filter(|stored| is_policy(&stored.rule)).ok_or_else(|| unknown(key))
}

/// A rule of the same variant as the policy of `key`.
fn template(key: &str) -> Result<Rule, ApiError> {
    let limit = Limit::per_second(1).map_err(crate::respond::invalid_limit)?;
    Ok(Rule { identifier: Some(key.to_owned()), ..Rule::new(POLICY_NAME, DIMENSION, limit) })
}

fn of_key(error: CatalogError, key: &str) -> ApiError {
    if error.is_not_found() { unknown(key) } else { error.into() }
}

fn unknown(key: &str) -> ApiError {
    let key: String = key.chars().take(64).collect();
    ApiError::new(Code::NotFound, format!("there is no policy for key: {key}"))
}

fn shown(status: StatusCode, stored: &StoredRule) -> Response {
    with_etag(json(status, &PolicyResponse::new(stored)), stored.version)
}
