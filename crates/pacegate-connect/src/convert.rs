//! Conversions between the types of a limiter and gRPC messages.

use std::sync::Arc;
use std::time::Duration;

use pacegate::{
    Answer, Check, CheckError, Decision, Limit, LimitSource, NamedLimit, Reason, Standing, StoreError,
    Timestamp,
};
use pacegate_proto::v1::{self, CheckRequest, CheckResponse, Identity, LimitAnswer};

/// Converts a check to a request for the answer of every limit.
pub(crate) fn request(check: &Check<'_>) -> CheckRequest {
    let mut identities = check.identities().iter().map(|(dimension, identifier)| Identity {
        identifier: identifier.clone().into_owned(),
        dimension: 0,
        custom_dimension: (*dimension).to_owned(),
    });
    let first = identities.next().unwrap_or_default();
    CheckRequest {
        identifier: first.identifier,
        custom_dimension: first.custom_dimension,
        also: identities.collect(),
        endpoint: check.endpoint.unwrap_or_default().to_owned(),
        method: check.method.unwrap_or_default().to_owned(),
        cost: check.cost.get(),
        costs: check.costs().iter().map(|(unit, cost)| ((*unit).to_owned(), cost.get())).collect(),
        plans: check.plans().iter().map(|plan| (*plan).to_owned()).collect(),
        limit: check.own_limit().map(|limit| message(&limit)),
        idempotency_key: check.idempotency_key().unwrap_or_default().to_owned(),
        tier: check.own_tier().unwrap_or_default().to_owned(),
        with_limits: true,
        ..CheckRequest::default()
    }
}

fn message(limit: &Limit) -> v1::Limit {
    v1::Limit {
        algorithm: limit.algorithm().name().to_owned(),
        quota: limit.quota(),
        window_us: u64::try_from(limit.window().as_micros()).unwrap_or(u64::MAX),
        burst: if limit.algorithm().takes_burst() { limit.capacity() } else { 0 },
    }
}

/// Converts a decision back to the message it came in, for the service that made it.
pub(crate) fn taken(decision: &Decision) -> CheckResponse {
    let answer = |(named, answer): (&Arc<NamedLimit>, &Answer)| LimitAnswer {
        rule: named.name.to_string(),
        dimension: named.dimension().to_owned(),
        limit: Some(message(&named.limit)),
        allowed: answer.allowed,
        degraded: answer.degraded,
        shadow: answer.shadow,
        why: named.why.name().to_owned(),
        decided_at_us: answer.at.map(Timestamp::as_micros),
        reset_at_us: answer.reset_at.map(Timestamp::as_micros),
        uncharged: answer.uncharged,
        unit: named.unit.as_deref().unwrap_or_default().to_owned(),
        ..LimitAnswer::default()
    };
    CheckResponse {
        allowed: decision.allowed(),
        replayed: decision.replayed(),
        decided_at_us: decision.at().as_micros(),
        limits: decision.limits().iter().zip(decision.answers()).map(answer).collect(),
        decision_id: decision.id(),
        ..CheckResponse::default()
    }
}

/// Converts a response to a decision.
pub(crate) fn decision(response: CheckResponse) -> Result<Decision, CheckError> {
    let mut answers = Vec::with_capacity(response.limits.len());
    for own in response.limits {
        // A newer service may send values that this version does not know.
        let unreadable = || StoreError::foreign("the service's response cannot be parsed");
        answers.push(own_answer(own).ok_or_else(unreadable)?);
    }
    let at = Timestamp::from_micros(response.decided_at_us);
    Ok(Decision::reported(response.allowed, response.replayed, at, answers, response.decision_id))
}

fn own_answer(own: LimitAnswer) -> Option<(NamedLimit, Answer)> {
    let numbers = own.limit?;
    let algorithm = numbers.algorithm.parse().ok()?;
    let mut limit =
        Limit::try_new(algorithm, numbers.quota.into(), Duration::from_micros(numbers.window_us)).ok()?;
    if algorithm.takes_burst() && numbers.burst > 0 {
        limit = limit.with_burst(numbers.burst.into()).ok()?;
    }
    let standing = match v1::State::try_from(own.state) {
        Ok(v1::State::Warning) => Standing::Warning,
        Ok(v1::State::Throttled) => Standing::Throttled,
        _ => Standing::Normal,
    };
    let mut answer = Answer::unknown(&limit, own.allowed, Reason::FailOpen);
    answer.shadow = own.shadow;
    answer.degraded = own.degraded;
    answer.remaining = own.remaining;
    answer.reset_at = own.reset_at_us.map(Timestamp::from_micros);
    answer.retry_at = own.retry_at_us.map(Timestamp::from_micros);
    answer.reason = Reason::parse(&own.reason);
    answer.at = own.decided_at_us.map(Timestamp::from_micros);
    answer.uncharged = own.uncharged;
    (answer.standing, answer.previous_standing) = (standing, standing);
    if let Some(position) = own.queue_position {
        answer.set_queue(Duration::from_micros(own.delay_us.unwrap_or_default()), position);
    }
    let mut named = NamedLimit::reported(
        &own.rule,
        &own.dimension,
        limit,
        LimitSource::parse(&own.why).unwrap_or(LimitSource::Anyone),
    );
    named.unit = Some(own.unit).filter(|unit| !unit.is_empty()).map(Into::into);
    if own.shadow {
        named.mode = pacegate::Mode::Shadow;
    }
    Some((named, answer))
}
