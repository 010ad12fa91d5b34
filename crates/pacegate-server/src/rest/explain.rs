//! `POST /api/v1/explain`: what a check would be answered, and which rules said so. Nothing is charged.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use pacegate::explain::{Explained, Verdict};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{CheckResponse, LimitNumbers};
use super::extract::{JsonBody, Reader};
use super::json;
use super::wire::CheckRequest;
use crate::app::Shared;
use crate::openapi::vocabulary as value;
use crate::pipeline::Question;
use crate::respond::ApiError;

/// How many rules are listed; there may be a hundred thousand.
const RULES_MAX: usize = 200;

/// What would be answered, and why.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
struct ExplainResponse<'a> {
    /// What a check would be answered now.
    decision: CheckResponse<'a>,
    /// The tier of the check's user.
    #[schema(required = true)]
    tier: Option<&'a str>,
    /// First those that apply, then those that came closest; at most 200.
    rules: Vec<RuleExplanation<'a>>,
    /// How many rules there are in all.
    rules_total: usize,
}

/// A rule, and whether it applies.
#[derive(Debug, Serialize, ToSchema)]
struct RuleExplanation<'a> {
    rule: &'a str,
    #[schema(value_type = value::VerdictName)]
    verdict: &'static str,
    /// The same in words.
    explanation: String,
    dimension: &'a str,
    endpoint_pattern: &'a str,
    #[schema(required = true)]
    method: Option<&'a str>,
    #[schema(required = true)]
    identifier: Option<&'a str>,
    #[schema(required = true)]
    tier: Option<&'a str>,
    #[schema(value_type = value::ModeName)]
    mode: &'static str,
    #[serde(flatten)]
    numbers: LimitNumbers<'a>,
}

impl<'a> RuleExplanation<'a> {
    fn new(rule: &'a Explained) -> Self {
        let limit = &rule.limit;
        Self {
            rule: &limit.name,
            verdict: rule.verdict.name(),
            explanation: in_words(rule),
            dimension: limit.dimension(),
            endpoint_pattern: rule.endpoint.as_str(),
            method: rule.methods.as_text(),
            identifier: rule.identifier.as_deref(),
            tier: rule.tier.as_deref(),
            mode: limit.mode.name(),
            numbers: LimitNumbers::new(limit, rule.unlimited),
        }
    }
}

fn in_words(rule: &Explained) -> String {
    let of = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    let methods = || rule.methods.as_text().unwrap_or_default().replace(',', " or ");
    match rule.verdict {
        Verdict::Applies if rule.unlimited => format!("applies: {}; not limited", rule.limit.why.name()),
        Verdict::Applies if rule.assumes_method => {
            let why = rule.limit.why.name();
            format!("applies: {why}; the check does not say its method, which may be {}", methods())
        }
        Verdict::Applies => format!("applies: {}", rule.limit.why.name()),
        Verdict::Shadowed => "another rule of this name is more specific here".to_owned(),
        Verdict::OtherUnit => {
            let unit = rule.limit.unit.as_deref().unwrap_or_default();
            format!("counts {unit}, which the check has no cost in")
        }
        Verdict::OtherMethod => format!("is for the method {} only", methods()),
        Verdict::OtherTier => format!("is for the tier {} only", of(&rule.tier)),
        Verdict::OtherIdentifier => format!("is for {} only", of(&rule.identifier)),
        Verdict::OtherEndpoint => format!("is for {} only", rule.endpoint.as_str()),
        Verdict::OtherDimension => {
            format!("counts by {}, which the check does not have", rule.limit.dimension())
        }
    }
}

/// What would a check be answered, and why?
///
/// Takes the body of a check and charges nothing.
#[utoipa::path(
    post,
    path = "/api/v1/explain",
    operation_id = "explain",
    tag = "Checks",
    request_body = CheckRequest,
    responses((status = 200, description = "What would be answered, and every rule with why it applies or does not.", body = ExplainResponse)),
)]
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    _: Reader,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let request = CheckRequest::parse(&body)?;
    let check = request.check(&shared)?;
    let profile = shared.profile(check.user()).await;
    let check = check.profile(profile.as_deref());
    let decision = shared.limiter.peek(&check).await.map_err(|error| request.explain(error))?;
    let rules = shared.limiter.explain(&check).map_err(|error| request.explain(error))?;
    let body = ExplainResponse {
        decision: CheckResponse::new(&decision).says_sliding_window(request.says_sliding_window()),
        tier: check.effective_tier(),
        rules: rules.iter().take(RULES_MAX).map(RuleExplanation::new).collect(),
        rules_total: rules.len(),
    };
    Ok(json(StatusCode::OK, &body))
}
