//! `POST /api/v1/explain`: the decision a check would get, and the rules behind it. Nothing is
//! charged.

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
use crate::pipeline::CheckMessage;
use crate::respond::ApiError;

/// Maximum number of rules listed; a rule set may have a hundred thousand.
const RULES_MAX: usize = 200;

/// The decision a check would get, and why.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
struct ExplainResponse<'a> {
    /// The decision that a check would get now.
    decision: CheckResponse<'a>,
    /// The tier of the check's user.
    #[schema(required = true)]
    tier: Option<&'a str>,
    /// The rules that apply first, then the closest others; at most 200.
    rules: Vec<RuleExplanation<'a>>,
    /// Total number of rules.
    rules_total: usize,
}

/// A rule, and whether it applies.
#[derive(Debug, Serialize, ToSchema)]
struct RuleExplanation<'a> {
    rule: &'a str,
    #[schema(value_type = value::VerdictName)]
    verdict: &'static str,
    /// The verdict in words.
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
    /// The rule's own numbers, where an override or a custom limit replaces them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    own: Option<LimitNumbers<'a>>,
}

impl<'a> RuleExplanation<'a> {
    fn new(rule: &'a Explained) -> Self {
        let limit = &rule.limit;
        let own = Some(&*rule.own_limit).filter(|own| own.limit != limit.limit);
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
            own: own.map(|own| LimitNumbers::new(own, rule.unlimited)),
        }
    }
}

fn in_words(rule: &Explained) -> String {
    let of = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    let methods = || rule.methods.as_text().unwrap_or_default().replace(',', " or ");
    match rule.verdict {
        Verdict::Applies if rule.unlimited => format!("applies: {}; unlimited", rule.limit.why.name()),
        Verdict::Applies if rule.assumes_method => {
            let why = rule.limit.why.name();
            format!("applies: {why}; the check has no method, so {} is assumed", methods())
        }
        Verdict::Applies => format!("applies: {}", rule.limit.why.name()),
        Verdict::Shadowed => "a more specific rule with the same name applies".to_owned(),
        Verdict::OtherUnit => {
            let unit = rule.limit.unit.as_deref().unwrap_or_default();
            format!("counts {unit}; the check has no cost in {unit}")
        }
        Verdict::OtherMethod => format!("applies to method {} only", methods()),
        Verdict::OtherTier => format!("applies to tier {} only", of(&rule.tier)),
        Verdict::OtherIdentifier => format!("applies to {} only", of(&rule.identifier)),
        Verdict::OtherEndpoint => format!("applies to {} only", rule.endpoint.as_str()),
        Verdict::OtherDimension => {
            let dimension = rule.limit.dimension();
            format!("counts by {dimension}; the check has no {dimension}")
        }
    }
}

/// Explain which rules apply to a check, and why
///
/// Takes the body of a check. Charges nothing.
#[utoipa::path(
    post,
    path = "/api/v1/explain",
    operation_id = "explain",
    tag = "Checks",
    request_body = CheckRequest,
    responses((status = 200, description = "The decision, and for every rule why it applies or does not.", body = ExplainResponse)),
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
        decision: CheckResponse::new(&decision).uses_sliding_window(request.uses_sliding_window()),
        tier: check.effective_tier(),
        rules: rules.iter().take(RULES_MAX).map(RuleExplanation::new).collect(),
        rules_total: rules.len(),
    };
    Ok(json(StatusCode::OK, &body))
}
