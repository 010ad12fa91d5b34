//! Response bodies. These types exist only here; the rest of the crate works with `Decision`.

mod json;

use std::borrow::Cow;
use std::time::Duration;

use pacegate::{Answer, Decision, Limit, NamedLimit};
use serde::Serialize;
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::decode::Seconds;
use crate::ad_hoc::name_for;
use crate::openapi::vocabulary::{AlgorithmName, ReasonName, StandingName, Window};
use pacegate_http::error::ErrorBody;
use pacegate_http::headers::seconds_ceil;

/// The decision for a check, and for each item of a batch. The top-level fields are those of the
/// binding limit; they are null when no limit applies.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckResponse<'a> {
    /// In batch and status responses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) user_id: Option<&'a str>,
    /// In batch and status responses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) endpoint: Option<&'a str>,
    allowed: bool,
    /// The capacity: the most that can be consumed at once.
    #[schema(required = true)]
    limit: Option<u32>,
    /// The remaining quota. Null if the store is unavailable.
    #[schema(required = true)]
    remaining: Option<u32>,
    /// When the full capacity is available again, in seconds since the epoch.
    #[schema(required = true)]
    reset_at: Option<u64>,
    #[schema(required = true, value_type = Option<AlgorithmName>)]
    strategy: Option<&'static str>,
    /// The consumed quota.
    #[schema(required = true)]
    current_count: Option<u32>,
    #[schema(value_type = StandingName)]
    state: &'static str,
    /// The name of the binding rule or plan; `default` or `ad-hoc` for limits without a name.
    #[schema(required = true)]
    rule: Option<&'a str>,
    #[schema(required = true, value_type = Option<ReasonName>)]
    reason: Option<&'static str>,
    /// Whether a store was unavailable and the decision was made without it.
    degraded: bool,
    /// Whole seconds until a retry can succeed, rounded up. Only if denied and waiting helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
    /// Time to wait before proceeding, for a leaky bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delay_ms: Option<u64>,
    /// The position in a leaky bucket's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    queue_position: Option<u32>,
    /// Whether this repeats the first decision for the idempotency key. Nothing was charged.
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    /// In status responses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    pub(crate) usage_percentage: Option<f64>,
    /// The result of every limit.
    #[schema(value_type = Vec<LimitResponse<'a>>)]
    limits: Limits<'a>,
    /// Present if the decision is also an error: a limit failed closed because its store is
    /// unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = ErrorBody<'a>)]
    pub(crate) error: Option<ErrorBody<'a>>,
}

/// The decision for a check with `Prefer: return=minimal`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MinimalResponse {
    allowed: bool,
    /// The remaining quota of the binding limit. Null if no limit applies or its store is
    /// unavailable.
    #[schema(required = true)]
    remaining: Option<u32>,
    /// Whole seconds until a retry can succeed, rounded up. Only if denied and waiting helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
    /// Whether a store was unavailable and the decision was made without it.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    degraded: bool,
}

impl MinimalResponse {
    pub(crate) fn new(decision: &Decision) -> Self {
        let binding = decision.binding().filter(|binding| !binding.shadow);
        let wait = decision.retry_after();
        Self {
            allowed: decision.allowed(),
            remaining: binding.and_then(|answer| answer.remaining),
            retry_after: wait.map(seconds_ceil),
            retry_after_ms: wait.map(millis_ceil),
            degraded: decision.degraded(),
        }
    }
}

/// The decision for a check, in the form that the client prefers; this describes the response. A
/// full response also has the fields of a minimal one, so that both schemas match it.
#[derive(Debug)]
pub(crate) struct CheckAnswer;

impl PartialSchema for CheckAnswer {
    fn schema() -> RefOr<Schema> {
        AnyOfBuilder::new()
            .item(Ref::from_schema_name(CheckResponse::name()))
            .item(Ref::from_schema_name(MinimalResponse::name()))
            .description(Some("The decision for a check, in the form that the client prefers."))
            .into()
    }
}

impl ToSchema for CheckAnswer {
    fn name() -> Cow<'static, str> {
        "CheckResult".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((CheckResponse::name().into(), CheckResponse::schema()));
        schemas.push((MinimalResponse::name().into(), MinimalResponse::schema()));
        CheckResponse::schemas(schemas);
    }
}

/// The result of every limit, and whether the sliding log is called `sliding_window`.
#[derive(Debug)]
struct Limits<'a>(&'a Decision, bool);

/// The result of one limit.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimitAnswer)]
struct LimitResponse<'a> {
    rule: &'a str,
    dimension: &'a str,
    /// The unit it counts, if not requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
    allowed: bool,
    limit: u32,
    #[schema(required = true)]
    remaining: Option<u32>,
    #[schema(required = true)]
    reset_at: Option<u64>,
    #[schema(value_type = AlgorithmName)]
    strategy: &'static str,
    quota: u32,
    #[serde(serialize_with = "seconds")]
    #[schema(value_type = Window)]
    window_seconds: Duration,
    #[schema(value_type = StandingName)]
    state: &'static str,
    #[schema(required = true, value_type = Option<ReasonName>)]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
    /// Whether the limit is in shadow mode and never denies.
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    #[serde(skip_serializing_if = "is_false")]
    degraded: bool,
    /// The part of the cost that was not charged, because debt is bounded by one capacity.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    uncharged: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl<'a> CheckResponse<'a> {
    pub(crate) fn new(decision: &'a Decision) -> Self {
        let binding = decision.binding().filter(|binding| !binding.shadow);
        let wait = decision.retry_after();
        Self {
            user_id: None,
            endpoint: None,
            allowed: decision.allowed(),
            limit: binding.map(|answer| answer.capacity),
            remaining: binding.and_then(|answer| answer.remaining),
            reset_at: binding.and_then(reset_at),
            strategy: binding.map(|answer| answer.algorithm.name()),
            current_count: binding.and_then(used),
            state: binding.map_or("normal", |answer| answer.standing.name()),
            rule: decision.binding_limit().filter(|_| binding.is_some()).map(|limit| &*limit.name),
            reason: binding
                .filter(|answer| !decision.allowed() || answer.degraded)
                .and_then(|answer| answer.reason)
                .map(|reason| reason.name()),
            degraded: decision.degraded(),
            retry_after: wait.map(seconds_ceil),
            retry_after_ms: wait.map(millis_ceil),
            delay_ms: binding.and_then(Answer::delay).map(millis_ceil),
            queue_position: binding.and_then(Answer::queue_position),
            replayed: decision.replayed(),
            usage_percentage: None,
            limits: Limits(decision, false),
            error: None,
        }
    }

    /// The algorithm of the binding limit.
    pub(crate) fn strategy(&self) -> Option<&'static str> {
        self.strategy
    }

    /// Calls the sliding log `sliding_window` if the client does.
    pub(crate) fn uses_sliding_window(mut self, uses_alias: bool) -> Self {
        let Limits(decision, _) = self.limits;
        let binding = decision.binding().filter(|_| uses_alias && self.strategy.is_some());
        self.strategy = binding.map_or(self.strategy, |answer| Some(name_for(answer.algorithm, uses_alias)));
        self.limits = Limits(decision, uses_alias);
        self
    }

    /// Adds the usage, for a status response.
    pub(crate) fn with_usage(mut self, decision: &Decision) -> Self {
        let percentage = |answer: &Answer| {
            let tenths = u64::from(used(answer)?) * 1_000 / u64::from(answer.capacity);
            Some(tenths as f64 / 10.0)
        };
        self.usage_percentage = decision.binding().and_then(percentage);
        self
    }
}

impl Limits<'_> {
    fn each(&self) -> impl Iterator<Item = LimitResponse<'_>> {
        let Self(decision, sliding_window) = self;
        let limits = decision.limits().iter().zip(decision.answers());
        limits.map(|(named, answer)| {
            let strategy = name_for(answer.algorithm, *sliding_window);
            LimitResponse { strategy, ..LimitResponse::new(named, answer, decision) }
        })
    }
}

impl Serialize for Limits<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.each())
    }
}

impl<'a> LimitResponse<'a> {
    fn new(named: &'a NamedLimit, answer: &Answer, decision: &Decision) -> Self {
        Self {
            rule: &named.name,
            dimension: named.dimension(),
            unit: named.unit.as_deref(),
            allowed: answer.allowed,
            limit: answer.capacity,
            remaining: answer.remaining,
            reset_at: reset_at(answer),
            strategy: answer.algorithm.name(),
            quota: named.limit.quota(),
            window_seconds: named.limit.window(),
            state: answer.standing.name(),
            reason: answer.reason.map(|reason| reason.name()),
            retry_after_ms: answer.retry_at.map(|at| millis_ceil(at.saturating_since(decision.at()))),
            shadow: answer.shadow,
            degraded: answer.degraded,
            uncharged: answer.uncharged,
        }
    }
}

/// The numbers of a limit. None if it is unlimited.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitNumbers<'a> {
    /// The unit it counts, if not requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    unit: Option<&'a str>,
    /// Whether matching requests are unlimited. Such a rule has no numbers.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    unlimited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<AlgorithmName>)]
    algorithm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<Window>)]
    window_seconds: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    burst_capacity: Option<u32>,
}

impl<'a> LimitNumbers<'a> {
    pub(super) fn new(named: &'a NamedLimit, unlimited: bool) -> Self {
        let limit = Some(&named.limit).filter(|_| !unlimited);
        Self {
            unit: named.unit.as_deref(),
            unlimited,
            algorithm: limit.map(|limit| limit.algorithm().name()),
            limit: limit.map(Limit::quota),
            window_seconds: limit.map(|limit| Seconds(limit.window())),
            burst_capacity: limit.and_then(burst),
        }
    }
}

/// Returns the capacity of a limit whose algorithm has a burst, `None` for others.
pub(crate) fn burst(limit: &Limit) -> Option<u32> {
    limit.algorithm().takes_burst().then(|| limit.capacity())
}

/// Serialises seconds as a whole number unless they have a fraction.
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

pub(crate) fn millis_ceil(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
