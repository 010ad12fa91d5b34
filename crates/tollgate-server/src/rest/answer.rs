//! The bodies of answers. These types exist only here; inside, an answer is a `Decision`.

use std::time::Duration;

use serde::Serialize;
use tollgate::{Answer, Decision, NamedLimit};

use crate::headers::seconds_ceil;
use crate::respond::ErrorBody;

/// The answer to a check, and to each item of a batch.
#[derive(Debug, Serialize)]
pub(crate) struct CheckResponse<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<&'a str>,
    allowed: bool,
    limit: Option<u32>,
    remaining: Option<u32>,
    reset_at: Option<u64>,
    strategy: Option<&'static str>,
    current_count: Option<u32>,
    state: &'static str,
    rule: Option<&'a str>,
    reason: Option<&'static str>,
    degraded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_position: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage_percentage: Option<f64>,
    limits: Limits<'a>,
    /// Beside the answer when it is an error as well, as a denial by a store that fails is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ErrorBody<'a>>,
}

/// Every limit's own answer.
#[derive(Debug)]
struct Limits<'a>(&'a Decision);

/// What one limit says.
#[derive(Debug, Serialize)]
struct LimitResponse<'a> {
    rule: &'a str,
    dimension: &'a str,
    allowed: bool,
    limit: u32,
    remaining: Option<u32>,
    reset_at: Option<u64>,
    strategy: &'static str,
    quota: u32,
    #[serde(serialize_with = "seconds")]
    window_seconds: Duration,
    state: &'static str,
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
}

impl<'a> CheckResponse<'a> {
    pub(crate) fn new(decision: &'a Decision) -> Self {
        let binding = decision.binding().filter(|binding| !binding.shadow);
        let wait = decision.retry_after();
        Self {
            user_id: None,
            endpoint: None,
            allowed: decision.allowed,
            limit: binding.map(|answer| answer.capacity),
            remaining: binding.and_then(|answer| answer.remaining),
            reset_at: binding.and_then(reset_at),
            strategy: binding.map(|answer| answer.algorithm.name()),
            current_count: binding.and_then(used),
            state: binding.map_or("normal", |answer| answer.standing.name()),
            rule: decision.binding_limit().filter(|_| binding.is_some()).map(|limit| &*limit.name),
            reason: binding
                .filter(|answer| !decision.allowed || answer.degraded)
                .and_then(|answer| answer.reason)
                .map(|reason| reason.name()),
            degraded: decision.degraded(),
            retry_after: wait.map(seconds_ceil),
            retry_after_ms: wait.map(millis_ceil),
            delay_ms: binding.and_then(Answer::delay).map(millis_ceil),
            queue_position: binding.and_then(Answer::queue_position),
            replayed: decision.replayed,
            usage_percentage: None,
            limits: Limits(decision),
            error: None,
        }
    }

    /// As a status, which also says how much is used.
    pub(crate) fn with_usage(mut self, decision: &Decision) -> Self {
        let percentage = |answer: &Answer| {
            let tenths = u64::from(used(answer)?) * 1_000 / u64::from(answer.capacity);
            Some(tenths as f64 / 10.0)
        };
        self.usage_percentage = decision.binding().and_then(percentage);
        self
    }
}

impl Serialize for Limits<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(decision) = self;
        let limits = decision.limits().iter().zip(&decision.answers);
        serializer.collect_seq(limits.map(|(named, answer)| LimitResponse::new(named, answer, decision)))
    }
}

impl<'a> LimitResponse<'a> {
    fn new(named: &'a NamedLimit, answer: &Answer, decision: &Decision) -> Self {
        Self {
            rule: &named.name,
            dimension: named.dimension(),
            allowed: answer.allowed,
            limit: answer.capacity,
            remaining: answer.remaining,
            reset_at: reset_at(answer),
            strategy: answer.algorithm.name(),
            quota: named.limit.quota(),
            window_seconds: named.limit.window(),
            state: answer.standing.name(),
            reason: answer.reason.map(|reason| reason.name()),
            retry_after_ms: answer.retry_at.map(|at| millis_ceil(at.saturating_since(decision.at))),
            shadow: answer.shadow,
            degraded: answer.degraded,
        }
    }
}

/// A whole number unless it has a fraction.
pub(crate) fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    if duration.subsec_nanos() == 0 {
        serializer.serialize_u64(duration.as_secs())
    } else {
        serializer.serialize_f64(duration.as_secs_f64())
    }
}

pub(crate) fn used(answer: &Answer) -> Option<u32> {
    answer.remaining.map(|remaining| answer.capacity.saturating_sub(remaining))
}

fn reset_at(answer: &Answer) -> Option<u64> {
    answer.reset_at.map(|at| at.as_secs_ceil())
}

fn millis_ceil(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
