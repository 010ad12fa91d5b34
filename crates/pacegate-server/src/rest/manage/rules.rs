//! `/api/v1/rules`: who is limited where, of the file and of the catalog.

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

/// The file's rules, then the catalog's.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleList)]
struct RuleListResponse {
    rules: Vec<RuleBody>,
    /// Null on the last page.
    #[schema(required = true)]
    next_cursor: Option<String>,
}

/// The start of cursors within the file's rules, which come first.
const FILE_CURSOR: &str = "file-";

/// All rules
///
/// Those of the configuration file, then those of the catalog.
#[utoipa::path(
    get,
    path = "/api/v1/rules",
    operation_id = "list_rules",
    tag = "Rules",
    params(Page),
    responses((status = 200, description = "One page of them.", body = RuleListResponse)),
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
    // One more than asked for tells whether there is a next page; of the longest pages a full one may have one.
    let asked = (rest + 1).min(PageLimit::MAX);
    let stored = managed.live.catalog.rule_page(after, asked).await?;
    let more = stored.len() > rest || (asked == rest && stored.len() == rest);
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

/// Makes a rule
///
/// It is in force at once on this node, and on the others half a second later.
#[utoipa::path(
    post,
    path = "/api/v1/rules",
    operation_id = "create_rule",
    tag = "Rules",
    request_body = RuleBody,
    responses(
        (status = 201, description = "It is made.", body = RuleBody, headers(
            ("ETag" = String, description = "its version"),
            ("Location" = String, description = "where it is"),
        )),
        (status = 409, description = "There is a rule of the same name, dimension, identifier, tier, endpoint and method."),
    )
)]
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    managed: Managed,
    Json(body): Json<RuleBody>,
) -> Result<Response, ApiError> {
    let sliding_window = body.says_sliding_window();
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

/// One rule
#[utoipa::path(
    get,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "get_rule",
    tag = "Rules",
    params(
        ("rule_id" = String, Path, description = "the id of a rule"),
        ("If-None-Match" = Option<String>, Header, description = "ETags that the client has already"),
    ),
    responses(
        (status = 200, description = "It is this.", body = RuleBody, headers(("ETag" = String, description = "its version"))),
        (status = 304, description = "It is what the client has.", headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "There is no such rule."),
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

/// Replaces a rule
#[utoipa::path(
    put,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "replace_rule",
    tag = "Rules",
    params(("rule_id" = String, Path, description = "the id of a rule"), IfMatch),
    request_body = RuleBody,
    responses(
        (status = 200, description = "It is replaced.", body = RuleBody, headers(("ETag" = String, description = "its version"))),
        (status = 404, description = "There is no such rule."),
        (status = 409, description = "The rule is from the configuration file, or another is the same variant."),
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
    let sliding_window = body.says_sliding_window();
    let rule = body.rule(&shared.limiter)?;
    not_in_file(&current, &rule)?;
    let write = managed.change(Subject::Rules, |catalog, actor| {
        catalog.replace_rule(actor, &rule_id, expected, &rule, None)
    });
    let stored = write.await?;
    Ok(shown(StatusCode::OK, &RuleBody::stored(&stored, sliding_window), stored.version))
}

/// Removes a rule
#[utoipa::path(
    delete,
    path = "/api/v1/rules/{rule_id}",
    operation_id = "delete_rule",
    tag = "Rules",
    params(("rule_id" = String, Path, description = "the id of a rule"), IfMatch),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "There is no such rule."),
        (status = 409, description = "The rule is from the configuration file."),
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
    ApiError::new(Code::NotFound, format!("there is no rule {rule_id}"))
}

fn not_of_file(current: &Sources, rule_id: &str) -> Result<(), ApiError> {
    match current.file_rule(rule_id) {
        None => Ok(()),
        Some(_) => {
            Err(ApiError::new(Code::Conflict, "this rule is from the configuration file; change it there"))
        }
    }
}

/// Two rules cannot be the same variant of one name, whoever they are from.
pub(in crate::rest) fn not_in_file(current: &Sources, rule: &Rule) -> Result<(), ApiError> {
    let variant = rule.variant();
    match current.file.rules.iter().find(|other| other.variant() == variant) {
        None => Ok(()),
        Some(other) => Err(ApiError::new(
            Code::Conflict,
            format!(
                "the configuration file has rule {} for the same dimension, identifier, tier, endpoint and method",
                Sources::file_rule_id(other)
            ),
        )),
    }
}
