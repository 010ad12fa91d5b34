//! `/api/v1/rules`: rules, from the file and from the catalog.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use pacegate::Rule;
use pacegate_catalog::Sources;
use serde::Serialize;
use utoipa::ToSchema;

use super::rule_wire::RuleBody;
use super::{IfMatch, Managed, Subject, empty, shown, with_etag};
use crate::app::Shared;
use crate::respond::{ApiError, Code};
use crate::rest::extract::{Id, Json, NoParameters, Page, PageLimit, Query, invalid_cursor};
use crate::rest::json;

/// Rules from the file, then rules from the catalog.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleList)]
struct RuleListResponse {
    rules: Vec<RuleBody>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// Prefix of cursors within the file's rules, which come first.
const FILE_CURSOR: &str = "file-";

/// List rules
///
/// Rules from the configuration file first, then rules from the catalog.
#[utoipa::path(
    get,
    path = "/api/v1/rules",
    operation_id = "list_rules",
    tag = "Rules",
    params(Page),
    responses((status = 200, description = "One page of rules.", body = RuleListResponse)),
)]
pub(crate) async fn list(managed: Managed, Query(page): Query<Page>) -> Result<Response, ApiError> {
    let (PageLimit(limit), current) = (page.limit, managed.live.sources());
    let of_file = &current.file.rules;
    let (from_file, after) = match page.cursor.0.as_deref() {
        None => (0, None),
        Some(cursor) => match cursor.strip_prefix(FILE_CURSOR) {
            Some(place) => (place.parse::<usize>().map_err(|_| invalid_cursor())?.min(of_file.len()), None),
            None => (of_file.len(), page.cursor.number()?),
        },
    };
    let mut rules: Vec<RuleBody> = of_file[from_file..].iter().take(limit).map(RuleBody::file).collect();
    let (rest, shown) = (limit - rules.len(), from_file + rules.len());
    // One more than requested shows whether there is a next page; a full page of maximum length is
    // assumed to have one.
    let requested = (rest + 1).min(PageLimit::MAX);
    let stored = managed.live.catalog.rule_page(after, requested).await?;
    let more = stored.len() > rest || (requested == rest && stored.len() == rest);
    let stored = &stored[..stored.len().min(rest)];
    rules.extend(stored.iter().map(|stored| RuleBody::stored(stored, false)));
    let next_cursor = match (shown < of_file.len(), more, stored.last()) {
        (true, ..) => Some(format!("{FILE_CURSOR}{shown}")),
        (false, true, Some(last)) => Some(last.number.to_string()),
        // The page ends with the last rule of the file.
        (false, true, None) => Some("0".to_owned()),
        (false, false, _) => None,
    };
    Ok(json(StatusCode::OK, &RuleListResponse { rules, next_cursor }))
}

/// Create a rule
///
/// It takes effect immediately on this node, and half a second later on the others.
#[utoipa::path(
    post,
    path = "/api/v1/rules",
    operation_id = "create_rule",
    tag = "Rules",
    request_body = RuleBody,
    responses(
        (status = 201, description = "Created.", body = RuleBody, headers(
            ("ETag" = String, description = "The version."),
            ("Location" = String, description = "The URL of the rule."),
        )),
        (status = 409, description = "Duplicate rule: another rule has the same name, dimension, identifier, tier, endpoint and method."),
    )
)]
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Json(body): Json<RuleBody>,
) -> Result<Response, ApiError> {
    let sliding_window = body.uses_sliding_window();
    let rule = body.rule(&shared.limiter)?;
    not_in_file(&managed.live.sources(), &rule)?;
    let write = managed.change(Subject::Rules, |catalog, actor| catalog.create_rule(actor, &rule, None));
    let stored = write.await?;
    let body = RuleBody::stored(&stored, sliding_window);
    let mut response = shown(StatusCode::CREATED, &body, stored.version);
    if let Ok(location) = HeaderValue::try_from(format!("/api/v1/rules/{}", stored.rule_id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Get a rule
#[utoipa::path(
    get,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "get_rule",
    tag = "Rules",
    params(
        ("rule_id" = String, Path, description = "The id of the rule."),
        ("If-None-Match" = Option<String>, Header, description = "ETags that the client already has."),
    ),
    responses(
        (status = 200, description = "The rule.", body = RuleBody, headers(("ETag" = String, description = "The version."))),
        (status = 304, description = "The client has the current version.", headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "Unknown rule."),
    )
)]
pub(crate) async fn get(
    managed: Managed,
    Id(rule_id): Id,
    _: Query<NoParameters>,
) -> Result<Response, ApiError> {
    if let Some(rule) = managed.live.sources().file_rule(&rule_id) {
        return Ok(shown(StatusCode::OK, &RuleBody::file(rule), 1));
    }
    let stored = managed.live.catalog.rule(&rule_id).await?.ok_or_else(|| unknown(&rule_id))?;
    if managed.has_already(stored.version) {
        return Ok(with_etag(empty(StatusCode::NOT_MODIFIED), stored.version));
    }
    Ok(shown(StatusCode::OK, &RuleBody::stored(&stored, false), stored.version))
}

/// Replace a rule
#[utoipa::path(
    put,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "replace_rule",
    tag = "Rules",
    params(("rule_id" = String, Path, description = "The id of the rule."), IfMatch),
    request_body = RuleBody,
    responses(
        (status = 200, description = "Replaced.", body = RuleBody, headers(("ETag" = String, description = "The version."))),
        (status = 404, description = "Unknown rule."),
        (status = 409, description = "The rule is defined in the configuration file, or duplicates another rule."),
    )
)]
pub(crate) async fn replace(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Id(rule_id): Id,
    Json(body): Json<RuleBody>,
) -> Result<Response, ApiError> {
    let current = managed.live.sources();
    not_of_file(&current, &rule_id)?;
    let before = managed.live.catalog.rule(&rule_id).await?.ok_or_else(|| unknown(&rule_id))?;
    body.check_owned(&before)?;
    let known = Some((before.version, before.updated_at));
    let expected = managed.expected_by(body.version, body.updated_at.as_deref(), known)?;
    let sliding_window = body.uses_sliding_window();
    let rule = body.rule(&shared.limiter)?;
    not_in_file(&current, &rule)?;
    let write = managed.change(Subject::Rules, |catalog, actor| {
        catalog.replace_rule(actor, &rule_id, expected, &rule, None)
    });
    let stored = write.await?;
    Ok(shown(StatusCode::OK, &RuleBody::stored(&stored, sliding_window), stored.version))
}

/// Delete a rule
#[utoipa::path(
    delete,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "delete_rule",
    tag = "Rules",
    params(("rule_id" = String, Path, description = "The id of the rule."), IfMatch),
    responses(
        (status = 204, description = "Deleted."),
        (status = 404, description = "Unknown rule."),
        (status = 409, description = "The rule is defined in the configuration file."),
    )
)]
pub(crate) async fn delete(managed: Managed, Id(rule_id): Id) -> Result<Response, ApiError> {
    not_of_file(&managed.live.sources(), &rule_id)?;
    let expected = managed.expected()?;
    managed.change(Subject::Rules, |catalog, actor| catalog.delete_rule(actor, &rule_id, expected)).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn unknown(rule_id: &str) -> ApiError {
    let rule_id: String = rule_id.chars().take(64).collect();
    ApiError::new(Code::NotFound, format!("unknown rule `{rule_id}`"))
}

fn not_of_file(current: &Sources, rule_id: &str) -> Result<(), ApiError> {
    match current.file_rule(rule_id) {
        None => Ok(()),
        Some(_) => Err(ApiError::new(
            Code::Conflict,
            "this rule is defined in the configuration file; change it there",
        )),
    }
}

/// Rejects a rule that duplicates a rule of the configuration file.
pub(in crate::rest) fn not_in_file(current: &Sources, rule: &Rule) -> Result<(), ApiError> {
    let variant = rule.variant();
    match current.file.rules.iter().find(|other| other.variant() == variant) {
        None => Ok(()),
        Some(other) => Err(ApiError::new(
            Code::Conflict,
            format!(
                "duplicate rule: rule `{}` in the configuration file has the same name, dimension, identifier, tier, endpoint and method",
                Sources::file_rule_id(other)
            ),
        )),
    }
}
