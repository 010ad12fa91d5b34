//! `POST /api/v1/users`: many users in one change.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use axum::response::Response;
use hyper::StatusCode;
use pacegate::identity::{check_identifier, check_tier};
use pacegate_catalog::{CUSTOM_LIMITS_MAX, IMPORT_USERS_MAX, Sources, UserChange, UserOutcome};
use pacegate_http::error::ErrorBody;
use pacegate_http::request_id::request_id;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::users::{OverrideBody, given, read_limit, tier_warning};
use super::{Managed, Subject};
use crate::openapi::vocabulary as value;
use crate::respond::{ApiError, Code};
use crate::rest::decode::{Object, inside};
use crate::rest::extract::LargeJson;
use crate::rest::json;

/// Maximum number of errors in one response.
const ERRORS_MAX: usize = 1_000;

/// Users to create or update.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserImportRequest {
    /// Each user at most once.
    #[schema(value_type = Vec<ImportedUser>, required = true, max_items = 10000)]
    users: Option<Vec<Object<ImportedUser>>>,
    /// Validates the users and reports what would change, but changes nothing.
    #[serde(default)]
    dry_run: bool,
}

/// The tier and custom limits of one user. At least one of both is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ImportedUser {
    #[schema(value_type = value::UserId, required = true)]
    user_id: Option<String>,
    /// Omitted: unchanged. `null`: removed.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<value::TierName>)]
    tier: Option<Option<String>>,
    /// Keyed by rule name, at most 100. Replaces all custom limits of the user. Omitted: unchanged.
    /// `null`: all removed.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<BTreeMap<String, OverrideBody>>)]
    custom_limits: Option<Option<BTreeMap<String, Object<OverrideBody>>>>,
}

/// What an import changed, by user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserImport)]
struct UserImportResponse {
    /// Whether nothing was changed because the request is a dry run.
    dry_run: bool,
    created: Vec<String>,
    updated: Vec<String>,
    /// Users that have this tier and these custom limits already.
    unchanged: Vec<String>,
    warnings: Vec<String>,
}

/// All errors of an import.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UserImportErrors)]
struct UserImportErrors<'a> {
    error: ErrorBody<'a>,
    /// The first 1,000 errors.
    errors: Vec<FieldError>,
}

/// An invalid field of an import.
#[derive(Debug, Serialize, ToSchema)]
struct FieldError {
    /// Such as `users[2].tier`.
    field: String,
    reason: String,
}

/// Create or update many users
///
/// Applies all changes or none, in one transaction. Each changed user has an audit record with the
/// id of this request. Takes at most 10,000 users and a body of at most 4 MiB.
#[utoipa::path(
    post,
    path = "/api/v1/users",
    operation_id = "import_users",
    tag = "Users",
    request_body = UserImportRequest,
    responses(
        (status = 200, description = "What changed, or would change.", body = UserImportResponse),
        (status = 400, description = "Nothing was changed; every invalid field is listed.", body = UserImportErrors),
    )
)]
pub(crate) async fn import(
    managed: Managed,
    LargeJson(body): LargeJson<UserImportRequest>,
) -> Result<Response, ApiError> {
    let users = body.users.ok_or_else(|| ApiError::input("users", "required field is missing"))?;
    if users.len() > IMPORT_USERS_MAX {
        let reason = format!("must have at most {IMPORT_USERS_MAX} entries, got {}", users.len());
        return Err(ApiError::input("users", reason));
    }
    let dry_run = body.dry_run;
    let (users, errors) = validated(users, &managed.live.sources());
    if !errors.is_empty() {
        return Ok(rejected(&managed, errors));
    }
    let tiers: BTreeSet<String> = users.iter().filter_map(|(_, user)| user.tier.clone().flatten()).collect();
    let warnings = {
        let current = managed.live.sources();
        tiers.iter().filter_map(|tier| tier_warning(&current, tier)).collect()
    };
    let ids: Vec<String> = users.iter().map(|(user_id, _)| user_id.clone()).collect();
    let outcomes = if dry_run {
        managed.live.catalog.put_users(&managed.actor, users, true).await?
    } else {
        let write =
            managed.change(Subject::Users(&ids), |catalog, actor| catalog.put_users(actor, users, false));
        write.await?
    };
    let mut response = UserImportResponse {
        dry_run,
        created: Vec::new(),
        updated: Vec::new(),
        unchanged: Vec::new(),
        warnings,
    };
    for (user_id, outcome) in ids.into_iter().zip(outcomes) {
        match outcome {
            UserOutcome::Created => response.created.push(user_id),
            UserOutcome::Updated => response.updated.push(user_id),
            UserOutcome::Unchanged => response.unchanged.push(user_id),
        }
    }
    Ok(json(StatusCode::OK, &response))
}

/// The users as the catalog takes them, and all errors.
fn validated(
    users: Vec<Object<ImportedUser>>,
    current: &Sources,
) -> (Vec<(String, UserChange)>, Vec<ApiError>) {
    let (mut changes, mut errors) = (Vec::with_capacity(users.len()), Vec::new());
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, Object(user)) in users.into_iter().enumerate() {
        let path = format!("users[{index}]");
        let mut found = Vec::new();
        let invalid = match &user.user_id {
            None => Some("required field is missing".to_owned()),
            Some(user_id) => match check_identifier(user_id) {
                Err(invalid) => Some(invalid.reason().to_owned()),
                Ok(()) => seen
                    .insert(user_id.clone(), index)
                    .map(|first| format!("duplicate user; users[{first}] is the same")),
            },
        };
        found.extend(invalid.map(|reason| ApiError::input("user_id", reason)));
        let user_id = user.user_id.unwrap_or_default();
        if user.tier.is_none() && user.custom_limits.is_none() {
            let reason = "required field is missing; send tier, custom_limits or both";
            found.push(ApiError::input("tier", reason));
        }
        if let Some(Err(invalid)) = user.tier.as_ref().and_then(Option::as_deref).map(check_tier) {
            found.push(ApiError::input("tier", invalid.reason()));
        }
        let custom_limits = user.custom_limits.map(|limits| {
            let limits = limits.unwrap_or_default();
            if limits.len() > CUSTOM_LIMITS_MAX {
                let reason = format!("must have at most {CUSTOM_LIMITS_MAX} entries, got {}", limits.len());
                found.push(ApiError::input("custom_limits", reason));
                return Vec::new();
            }
            let mut read = Vec::with_capacity(limits.len());
            for (name, Object(body)) in limits {
                match read_limit(&name, &body, current) {
                    Ok(numbers) => read.push((name, numbers)),
                    Err(error) => found.push(error),
                }
            }
            read
        });
        errors.extend(found.into_iter().map(|error| inside(error, &path)));
        changes.push((user_id, UserChange { tier: user.tier, custom_limits }));
    }
    (changes, errors)
}

fn rejected(managed: &Managed, errors: Vec<ApiError>) -> Response {
    let count = errors.len();
    let fields = errors.into_iter().take(ERRORS_MAX).filter_map(|error| error.details);
    let errors: Vec<FieldError> = fields.map(|(field, reason)| FieldError { field, reason }).collect();
    let first = errors.first().map(|first| format!("{}: {}", first.field, first.reason)).unwrap_or_default();
    let message = match count {
        1 => format!("1 error, nothing was changed; {first}"),
        count => format!("{count} errors, nothing was changed; the first: {first}"),
    };
    let mut error = ApiError::new(Code::InvalidInput, message);
    error.details = errors.first().map(|first| (first.field.clone(), first.reason.clone()));
    let body = UserImportErrors { error: error.envelope(request_id(&managed.headers)).error, errors };
    json(error.code.status(), &body)
}
