//! Conversion between gRPC messages and the limiter's types.

use std::time::Duration;

use pacegate::{
    Algorithm, Answer, Check, CheckError, Cost, Decision, InvalidLimit, LimitSource, NamedLimit, Standing,
    Timestamp, identity,
};
use pacegate_proto::v1::{
    self, CheckRequest, CheckResponse, Dimension, LimitAnswer, QuotaRequest, ResetRequest,
};

use crate::ad_hoc::{AdHoc, InvalidAdHoc, burst_reason, is_sliding_window, name_for, window_reason};
use crate::app::Shared;
use crate::pipeline::CheckMessage;
use crate::respond::{ApiError, Code, invalid_limit};
use crate::rest::{millis_ceil, parse_strategy, used};
use pacegate_http::headers::seconds_ceil;

/// Maximum number of identities, costs and plans of one check.
const LIST_MAX: usize = 16;

/// Normalises a request: converts the method to upper case.
pub(super) fn normalise(request: &mut CheckRequest) {
    request.method.make_ascii_uppercase();
}

impl CheckMessage for CheckRequest {
    fn check(&self, shared: &Shared) -> Result<Check<'_>, ApiError> {
        check(self, shared)
    }

    fn idempotency_key(&self) -> Option<&str> {
        filled(&self.idempotency_key)
    }

    fn timestamp(&self) -> Option<i64> {
        Some(self.timestamp).filter(|timestamp| *timestamp != 0)
    }

    fn explain(&self, error: CheckError) -> ApiError {
        explain(self, error)
    }
}

/// Returns a non-empty text: an empty text means that the field is absent.
pub(super) fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Converts a request to a check, with identities in canonical form. Missing fields of an ad-hoc
/// limit come from the default limit.
fn check<'a>(request: &'a CheckRequest, shared: &Shared) -> Result<Check<'a>, ApiError> {
    let first = dimension(request.dimension, &request.custom_dimension)?;
    if request.identifier.is_empty() {
        return Err(ApiError::input("identifier", "required field is missing"));
    }
    let mut check = Check::new(first, &request.identifier);
    if request.also.len() >= LIST_MAX {
        let reason = format!("must have at most {} entries, got {}", LIST_MAX - 1, request.also.len());
        return Err(ApiError::input("also", reason));
    }
    for (index, other) in request.also.iter().enumerate() {
        let dimension =
            dimension(other.dimension, &other.custom_dimension).map_err(|error| within(index, error))?;
        check = check.and(dimension, &other.identifier);
    }
    shared.limiter.canonicalise(&mut check).map_err(|error| explain(request, error))?;
    if !request.endpoint.is_empty() {
        check = check.endpoint(&request.endpoint);
    } else if request.plans.is_empty() && request.limit.is_none() {
        return Err(ApiError::input("endpoint", "required field is missing"));
    }
    if !request.method.is_empty() {
        identity::method(&request.method).map_err(|invalid| ApiError::input("method", invalid.reason()))?;
        check = check.method(&request.method);
    }
    if request.cost > 0 {
        let cost = Cost::try_new(request.cost.into());
        check = check.cost(cost.map_err(|error| ApiError::input("cost", error.reason()))?);
    }
    if request.costs.len() > LIST_MAX {
        let reason = format!("must have at most {LIST_MAX} entries, got {}", request.costs.len());
        return Err(ApiError::input("costs", reason));
    }
    for (unit, cost) in &request.costs {
        identity::check_unit(unit).map_err(|invalid| ApiError::input("costs", invalid.reason()))?;
        if unit == identity::REQUESTS && request.cost > 0 {
            return Err(ApiError::input("costs", "duplicate cost for unit `requests`"));
        }
        let cost = Cost::try_new((*cost).into())
            .map_err(|error| ApiError::input(&format!("costs.{unit}"), error.reason()))?;
        check = check.cost_in(unit, cost);
    }
    if request.plans.len() > LIST_MAX {
        let reason = format!("must have at most {LIST_MAX} entries, got {}", request.plans.len());
        return Err(ApiError::input("plans", reason));
    }
    for plan in &request.plans {
        check = check.plan(plan);
    }
    if !request.tier.is_empty() {
        check = check.tier(request.tier.as_str());
    }
    match &request.limit {
        Some(own) => Ok(check.limit(completed(own, shared)?)),
        None => Ok(check),
    }
}

/// Returns whether the client calls the sliding log `sliding_window`.
pub(super) fn uses_sliding_window(request: &CheckRequest) -> bool {
    request.limit.as_ref().is_some_and(|limit| is_sliding_window(&limit.algorithm))
}

fn dimension(dimension: i32, custom: &str) -> Result<&str, ApiError> {
    let known = match Dimension::try_from(dimension) {
        Ok(Dimension::Unspecified) => None,
        Ok(Dimension::User) => Some(identity::USER),
        Ok(Dimension::Ip) => Some(identity::IP),
        Ok(Dimension::ApiKey) => Some(identity::API_KEY),
        Err(_) => return Err(ApiError::input("dimension", "expected one of USER, IP, API_KEY")),
    };
    match (known, custom) {
        (None, "") => Ok(identity::USER),
        (None, custom) => Ok(custom),
        (Some(known), "") => Ok(known),
        (Some(_), _) => Err(ApiError::input(
            "custom_dimension",
            "`custom_dimension` and `dimension` are mutually exclusive",
        )),
    }
}

/// Converts the ad-hoc limit of a check, whose numbers may be omitted.
fn completed(limit: &v1::Limit, shared: &Shared) -> Result<pacegate::Limit, ApiError> {
    let ad_hoc = AdHoc {
        algorithm: algorithm(limit)?,
        quota: (limit.quota > 0).then_some(limit.quota.into()),
        window: (limit.window_us > 0).then(|| Duration::from_micros(limit.window_us)),
        burst: (limit.burst > 0).then_some(limit.burst.into()),
    };
    let missing = || ApiError::field(Code::InvalidLimit, "limit.quota", "required field is missing");
    let invalid = |error| match error {
        InvalidAdHoc::Limit(error) => out_of_range(error),
        InvalidAdHoc::Window(max) => {
            ApiError::field(Code::InvalidLimit, "limit.window_us", window_reason(max))
        }
        InvalidAdHoc::Burst(max) => ApiError::field(Code::InvalidLimit, "limit.burst", burst_reason(max)),
    };
    let completed = ad_hoc.limit(shared.limiter.default_limit(), &shared.ad_hoc).map_err(invalid)?;
    completed.ok_or_else(missing)
}

/// Converts a limit that has all its numbers.
fn whole(limit: &v1::Limit) -> Result<pacegate::Limit, ApiError> {
    let algorithm = algorithm(limit)?.unwrap_or(Algorithm::TokenBucket);
    let made =
        pacegate::Limit::try_new(algorithm, limit.quota.into(), Duration::from_micros(limit.window_us));
    let made = made.and_then(|made| match limit.burst {
        0 => Ok(made),
        burst => made.with_burst(burst.into()),
    });
    made.map_err(out_of_range)
}

fn algorithm(limit: &v1::Limit) -> Result<Option<Algorithm>, ApiError> {
    let name = Some(limit.algorithm.as_str()).filter(|name| !name.is_empty());
    name.map(|name| parse_strategy("limit.algorithm", name)).transpose()
}

fn out_of_range(error: InvalidLimit) -> ApiError {
    let field = match error.field() {
        "window" => "limit.window_us",
        "burst" => "limit.burst",
        _ => "limit.quota",
    };
    ApiError::field(Code::InvalidLimit, field, invalid_limit(error).details.unwrap_or_default().1)
}

/// Returns the same error for an identity in `also`.
fn within(index: usize, error: ApiError) -> ApiError {
    match error.details {
        Some((field, reason)) => ApiError::field(error.code, &format!("also[{index}].{field}"), reason),
        None => error,
    }
}

/// Names the field of `request` that caused the error.
fn explain(request: &CheckRequest, error: CheckError) -> ApiError {
    let (wrong, of) = match &error {
        CheckError::InvalidIdentifier { dimension, reason } => {
            (ApiError::input("identifier", reason.reason()), Some(dimension))
        }
        CheckError::InvalidDimension { dimension, reason } => {
            (ApiError::input("custom_dimension", reason.reason()), Some(dimension))
        }
        CheckError::NoIdentity => (ApiError::input("identifier", error.to_string()), None),
        CheckError::DuplicateDimension { .. } => (ApiError::input("also", error.to_string()), None),
        _ => return error.into(),
    };
    let is_of = |dimension: i32, custom: &str| {
        let spelled = |word| identity::dimension(word).unwrap_or(word);
        of.is_some_and(|of| self::dimension(dimension, custom).is_ok_and(|word| *spelled(word) == **of))
    };
    if is_of(request.dimension, &request.custom_dimension) {
        return wrong;
    }
    match request.also.iter().position(|other| is_of(other.dimension, &other.custom_dimension)) {
        Some(index) => within(index, wrong),
        None => wrong,
    }
}

/// Returns the response to `request`, with the result of every limit if requested.
pub(super) fn response(decision: &Decision, request: &CheckRequest) -> CheckResponse {
    written(decision, request.with_limits, uses_sliding_window(request))
}

/// Returns the response to an all-or-nothing batch, with the result of every limit.
pub(super) fn response_together(decision: &Decision) -> CheckResponse {
    written(decision, true, false)
}

fn written(decision: &Decision, with_limits: bool, sliding_window: bool) -> CheckResponse {
    let binding = decision.binding().filter(|binding| !binding.shadow);
    let wait = decision.retry_after();
    let text = |name: Option<&str>| name.unwrap_or_default().to_owned();
    CheckResponse {
        allowed: decision.allowed(),
        current_count: binding.and_then(used),
        limit: binding.map(|answer| answer.capacity),
        remaining: binding.and_then(|answer| answer.remaining),
        reset_at: binding.and_then(|answer| answer.reset_at).map(seconds),
        retry_after: wait.map(|wait| u32::try_from(seconds_ceil(wait)).unwrap_or(u32::MAX)),
        retry_after_ms: wait.map(millis_ceil),
        rule: text(decision.binding_limit().filter(|_| binding.is_some()).map(|limit| &*limit.name)),
        algorithm: text(binding.map(|answer| name_for(answer.algorithm, sliding_window))),
        state: binding.map_or(v1::State::Normal, |answer| state(answer.standing)).into(),
        reason: text(
            binding
                .filter(|answer| !decision.allowed() || answer.degraded)
                .and_then(|answer| answer.reason)
                .map(|reason| reason.name()),
        ),
        degraded: decision.degraded(),
        replayed: decision.replayed(),
        delay_ms: binding.and_then(Answer::delay).map(millis_ceil),
        queue_position: binding.and_then(Answer::queue_position),
        decided_at_us: decision.at().as_micros(),
        decision_id: if with_limits { decision.id() } else { 0 },
        limits: if with_limits {
            decision
                .limits()
                .iter()
                .zip(decision.answers())
                .map(|(named, answer)| own(named, answer, sliding_window))
                .collect()
        } else {
            Vec::new()
        },
    }
}

fn own(named: &NamedLimit, answer: &Answer, sliding_window: bool) -> LimitAnswer {
    LimitAnswer {
        rule: named.name.to_string(),
        dimension: named.dimension().to_owned(),
        limit: Some(v1::Limit {
            algorithm: name_for(named.limit.algorithm(), sliding_window).to_owned(),
            quota: named.limit.quota(),
            window_us: u64::try_from(named.limit.window().as_micros()).unwrap_or(u64::MAX),
            burst: named.limit.capacity(),
        }),
        allowed: answer.allowed,
        remaining: answer.remaining,
        reset_at_us: answer.reset_at.map(Timestamp::as_micros),
        retry_at_us: answer.retry_at.map(Timestamp::as_micros),
        state: state(answer.standing).into(),
        reason: answer.reason.map(|reason| reason.name().to_owned()).unwrap_or_default(),
        shadow: answer.shadow,
        degraded: answer.degraded,
        delay_us: answer.delay().map(|delay| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)),
        queue_position: answer.queue_position(),
        why: named.why.name().to_owned(),
        decided_at_us: answer.at.map(Timestamp::as_micros),
        uncharged: answer.uncharged,
        unit: named.unit.as_deref().unwrap_or_default().to_owned(),
    }
}

fn state(standing: Standing) -> v1::State {
    match standing {
        Standing::Normal => v1::State::Normal,
        Standing::Warning => v1::State::Warning,
        Standing::Throttled => v1::State::Throttled,
    }
}

/// Returns whole seconds since the epoch, rounded up.
pub(super) fn seconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_secs_ceil()).unwrap_or(i64::MAX)
}

/// Returns the error of one check of a batch.
pub(super) fn error(error: ApiError) -> v1::Error {
    let field = error.details.map(|(field, _)| field).unwrap_or_default();
    v1::Error { code: error.code.name().to_owned(), message: error.message, field }
}

/// Builds a check from a message that has some of its fields.
macro_rules! check_of {
    ($message:expr, $kind:ident { $($field:ident),+ }) => {{
        let $kind { $($field),+ } = $message;
        CheckRequest { $($field,)+ ..CheckRequest::default() }
    }};
}

/// Returns the check whose quota is requested.
#[rustfmt::skip]
pub(super) fn of_quota(request: QuotaRequest) -> CheckRequest {
    check_of!(request, QuotaRequest {
        identifier, dimension, endpoint, custom_dimension, method, plans, limit, with_limits, also, cost, tier, costs
    })
}

/// Returns the check whose counters are reset.
#[rustfmt::skip]
pub(super) fn of_reset(request: ResetRequest) -> CheckRequest {
    check_of!(request, ResetRequest {
        identifier, dimension, endpoint, custom_dimension, method, plans, also, limit, tier
    })
}

/// Returns an earlier decision, as far as a refund needs it.
pub(super) fn taken(response: &CheckResponse) -> Result<Decision, ApiError> {
    if response.allowed && response.limits.is_empty() {
        return Err(ApiError::input(
            "taken.limits",
            "required field is missing; send the check with `with_limits`",
        ));
    }
    if response.allowed && response.decision_id == 0 {
        return Err(ApiError::input(
            "taken.decision_id",
            "required field is missing; send the check with `with_limits`",
        ));
    }
    let mut answers = Vec::with_capacity(response.limits.len());
    for own in &response.limits {
        let numbers = own
            .limit
            .as_ref()
            .ok_or_else(|| ApiError::input("taken.limits.limit", "required field is missing"))?;
        let numbers = whole(numbers)?;
        let mut answer = Answer::unknown(&numbers, own.allowed, pacegate::Reason::LimitExceeded);
        answer.degraded = own.degraded;
        answer.at = own.decided_at_us.map(Timestamp::from_micros);
        answer.reset_at = own.reset_at_us.map(Timestamp::from_micros);
        answer.uncharged = own.uncharged;
        let why = LimitSource::parse(&own.why).unwrap_or(LimitSource::Anyone);
        let mut named = NamedLimit::reported(&own.rule, &own.dimension, numbers, why);
        named.unit = Some(own.unit.as_str()).filter(|unit| !unit.is_empty()).map(Into::into);
        answers.push((named, answer));
    }
    let at = Timestamp::from_micros(response.decided_at_us);
    Ok(Decision::reported(response.allowed, response.replayed, at, answers, response.decision_id))
}
