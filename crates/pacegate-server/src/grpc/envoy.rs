//! `envoy.service.ratelimit.v3.RateLimitService`, for Envoy and other clients of its protocol. All
//! descriptors of a request are decided together.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;
use pacegate::{
    Algorithm, Check, Cost, FailureMode, Limit, Profile,
    descriptor::{Allowance, Descriptor, DescriptorDecision, DescriptorOutcome, Hits},
    identity,
};
use pacegate_config::{AdHocCallers, AdHocConfig};
use pacegate_proto::envoy::config::core::v3::HeaderValue;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use pacegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server,
};
use pacegate_proto::envoy::r#type::v3::RateLimitUnit;
use prost_types::Duration as ProtoDuration;
use smallvec::SmallVec;
use tonic::{Request, Response, Status};

use super::Unread;
use super::limiter::{peer, respond};
use crate::app::Shared;
use crate::observe::Deciding;
use crate::peer::Peer;
use crate::pipeline::Caller;
use crate::respond::ApiError;
use pacegate_http::headers::seconds_ceil;
use pacegate_http::request_id::request_id;

/// Maximum number of descriptors of one request, and of entries of one descriptor.
const DESCRIPTORS_MAX: usize = 64;
const ENTRIES_MAX: usize = 64;
/// Maximum time to wait for a user's profile, because Envoy's deadline is short. After that, the
/// last known tier applies, or none.
const PROFILE_TIMEOUT: Duration = Duration::from_millis(3);

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The named windows.
const UNITS: [(Unit, Duration); 7] = [
    (Unit::Second, Duration::from_secs(1)),
    (Unit::Minute, Duration::from_secs(60)),
    (Unit::Hour, Duration::from_secs(3_600)),
    (Unit::Day, DAY),
    (Unit::Week, DAY.saturating_mul(7)),
    (Unit::Month, DAY.saturating_mul(30)),
    (Unit::Year, DAY.saturating_mul(365)),
];

/// The service.
#[derive(Debug)]
pub(super) struct Envoy {
    shared: Arc<Shared>,
}

impl Envoy {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Decides a request. One whose message was not `read` is not an error, because Envoy lets a
    /// request pass on errors.
    pub(super) async fn decide(
        &self,
        message: RateLimitRequest,
        Caller { headers, peer }: Caller<'_>,
        read: bool,
    ) -> Result<RateLimitResponse, ApiError> {
        let Some(_unanswered) = self.shared.overload.accept().ok().filter(|_| read) else {
            return Ok(undecided(&message, self.shared.failure_mode));
        };
        let gives_back = message.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
        let may_refund = gives_back && self.shared.gate.may_refund(headers, peer).await;
        let max_window = self.max_window(&message, headers, peer).await;
        let profile = self.profile(&message).await;
        let permits = Permits { refund: may_refund, max_window };
        let (descriptors, ignored) = descriptors(&message, profile.as_deref(), permits)?;
        if ignored > 0 {
            self.shared.observer.ignored_limits.note(ignored, request_id(headers));
        }
        let deciding = pin!(self.shared.envoy.check_descriptors(&message.domain, &descriptors));
        let (decided, deciding) = self.shared.observer.time(headers, deciding).await;
        let decision = match decided {
            Ok(decision) => decision,
            // Not an error: Envoy lets a request pass on errors.
            Err(error) => {
                self.shared.observer.note_error(&error, deciding.took);
                drop(ApiError::from(error).logged(deciding.request_id));
                return Ok(undecided(&message, self.shared.failure_mode));
            }
        };
        deciding.record(&decision.whole());
        self.observe(&message, &decision, &deciding);
        Ok(self.response(&decision))
    }

    /// Returns the longest window of an ad-hoc limit in this request; `None` if it may send none.
    async fn max_window(
        &self,
        message: &RateLimitRequest,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Option<Duration> {
        let AdHocConfig { allow, max_window, .. } = self.shared.ad_hoc;
        if allow != AdHocCallers::Always && message.descriptors.iter().any(|given| given.limit.is_some()) {
            Box::pin(self.shared.gate.permit_ad_hoc(allow, headers, peer)).await.ok()?;
        }
        Some(max_window)
    }

    /// Returns the profile of the user, if a descriptor names one.
    async fn profile(&self, message: &RateLimitRequest) -> Option<Arc<Profile>> {
        let live = self.shared.live.as_ref()?;
        let entries = message.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let is_user = |key: &str| identity::dimension(key) == Ok(identity::USER);
        let user = &entries.into_iter().find(|entry| is_user(&entry.key))?.value;
        // The lookup continues after the timeout, so that the next request finds its result.
        live.profiles.get_within(user, PROFILE_TIMEOUT).await
    }

    /// Observes the decision of each descriptor; if the request is denied, of those that deny it.
    fn observe(
        &self,
        message: &RateLimitRequest,
        decision: &DescriptorDecision,
        Deciding { request_id, took, .. }: &Deciding<'_>,
    ) {
        for (descriptor, outcome) in message.descriptors.iter().zip(&decision.outcomes) {
            let refunds = &self.shared.observer.refunds;
            if outcome.refunded {
                refunds.allowed(request_id, &outcome.decision);
            }
            if outcome.refund_rejected {
                refunds.rejected(request_id, &outcome.decision);
            }
            // A peek or a refund consumes nothing.
            let Hits::Take(cost) = hits(descriptor, message.hits_addend) else { continue };
            let noted = outcome.matched && (decision.allowed || !outcome.decision.allowed());
            let prefix = self.shared.limiter.ipv6_prefix();
            if let Some(check) = noted.then(|| describe(descriptor, prefix)).flatten() {
                let check = [check.cost(cost)];
                self.shared.observer.note(&check, request_id, &outcome.decision, *took);
            }
        }
    }

    fn response(&self, decision: &DescriptorDecision) -> RateLimitResponse {
        let (whole, families) = (decision.whole(), self.shared.envoy_families);
        // Both header families, and the headers of a denial and of an unavailable store.
        let mut added: Vec<HeaderValue> = Vec::with_capacity(9);
        families.for_each(&whole, |name, value| {
            added.push(header(name.as_str(), value.to_str().unwrap_or_default()));
        });
        if !decision.allowed
            && let Some(wait) = whole.retry_after()
        {
            added.push(header(RETRY_AFTER.as_str(), &seconds_ceil(wait).to_string()));
        }
        if decision.degraded() {
            added.push(header("x-pacegate-degraded", "true"));
        }
        RateLimitResponse {
            overall_code: code(decision.allowed).into(),
            statuses: decision.outcomes.iter().map(status).collect(),
            response_headers_to_add: added,
            request_headers_to_add: Vec::new(),
            raw_body: Vec::new(),
        }
    }
}

#[tonic::async_trait]
impl rate_limit_service_server::RateLimitService for Envoy {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        respond(request, |request| async {
            let (metadata, extensions, message) = request.into_parts();
            let (headers, read) = (metadata.into_headers(), extensions.get::<Unread>().is_none());
            self.decide(message, Caller { headers: &headers, peer: peer(&extensions) }, read).await
        })
        .await
    }
}

/// The permissions of a caller.
#[derive(Clone, Copy)]
struct Permits {
    /// Refund hits, even if the rule is not `refundable`.
    refund: bool,
    /// Send ad-hoc limits with windows of up to this.
    max_window: Option<Duration>,
}

/// Converts the descriptors of a request, and counts the ad-hoc limits that are ignored. Envoy lets
/// a request pass on errors, so the rules apply instead.
fn descriptors<'a>(
    message: &'a RateLimitRequest,
    profile: Option<&'a Profile>,
    permits: Permits,
) -> Result<(SmallVec<[Descriptor<'a>; 2]>, u64), ApiError> {
    if message.domain.is_empty() {
        return Err(ApiError::input("domain", "must not be empty"));
    }
    if !(1..=DESCRIPTORS_MAX).contains(&message.descriptors.len()) {
        let (max, count) = (DESCRIPTORS_MAX, message.descriptors.len());
        let reason = format!("must have between 1 and {max} entries, got {count}");
        return Err(ApiError::input("descriptors", reason));
    }
    let mut descriptors = SmallVec::with_capacity(message.descriptors.len());
    let mut ignored = 0;
    for (index, given) in message.descriptors.iter().enumerate() {
        if given.entries.len() > ENTRIES_MAX {
            let field = format!("descriptors[{index}].entries");
            let reason = format!("must have at most {ENTRIES_MAX} entries, got {}", given.entries.len());
            return Err(ApiError::input(&field, reason));
        }
        let entries = given.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        let mut descriptor = Descriptor::new(entries).hits(hits(given, message.hits_addend)).profile(profile);
        if !permits.refund {
            descriptor = descriptor.refundable_only();
        }
        if let Some(own) = &given.limit {
            let field = format!("descriptors[{index}].limit");
            let allowance = allowance(own, &field)?;
            let window =
                if let Allowance::Limit(limit) = &allowance { limit.window() } else { Duration::ZERO };
            if permits.max_window.is_some_and(|max| window <= max) {
                descriptor = descriptor.allowance(allowance);
            } else {
                ignored += 1;
            }
        }
        descriptors.push(descriptor);
    }
    Ok((descriptors, ignored))
}

/// Returns the hits of a descriptor; `general` is the default of the request, where 0 means that it
/// is absent.
fn hits(descriptor: &RateLimitDescriptor, general: u32) -> Hits {
    let hits = match descriptor.hits_addend {
        Some(0) => return Hits::Peek,
        Some(hits) => hits,
        None => u64::from(general.max(1)),
    };
    let cost = Cost::try_new(hits).unwrap_or(Cost::MAX);
    if descriptor.is_negative_hits { Hits::Refund(cost) } else { Hits::Take(cost) }
}

/// Converts the ad-hoc limit of a descriptor, counted like Envoy's service in windows aligned to
/// the epoch.
fn allowance(own: &RateLimitOverride, field: &str) -> Result<Allowance, ApiError> {
    // The two enums have the same numbers.
    let unit = RateLimitUnit::try_from(own.unit).map_or(Unit::Unknown as i32, |unit| unit as i32);
    let Some((_, window)) = UNITS.iter().find(|(known, _)| *known as i32 == unit) else {
        let reason = "expected one of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH, YEAR";
        return Err(ApiError::input(&format!("{field}.unit"), reason));
    };
    if own.requests_per_unit == 0 {
        return Ok(Allowance::Nothing);
    }
    let quota = u64::from(own.requests_per_unit).min(Limit::QUOTA_MAX);
    let limit = Limit::try_new(Algorithm::FixedWindow, quota, *window);
    limit.map(Allowance::Limit).map_err(|error| ApiError::input(field, error.to_string()))
}

/// Returns a descriptor as a check, for the decision log and usage: its entries are identities,
/// `path` is the endpoint, and `method` the method.
fn describe(descriptor: &RateLimitDescriptor, ipv6_prefix: u8) -> Option<Check<'_>> {
    let (mut endpoint, mut method) = (None, None);
    let mut identities: SmallVec<[(&str, Cow<'_, str>); 2]> = SmallVec::new();
    for entry in &descriptor.entries {
        match entry.key.as_str() {
            "path" | "endpoint" => endpoint = Some(entry.value.as_str()),
            "method" => method = Some(entry.value.as_str()),
            // A key that is not a dimension is shown as sent.
            key => identities.push(
                identity::of_entry(key, &entry.value, ipv6_prefix).unwrap_or((key, (&*entry.value).into())),
            ),
        }
    }
    if identities.is_empty() {
        return None;
    }
    let mut check = Check::of(identities);
    (check.endpoint, check.method) = (endpoint, method);
    Some(check)
}

fn status(outcome: &DescriptorOutcome) -> DescriptorStatus {
    let decision = &outcome.decision;
    let mut status =
        DescriptorStatus { code: code(decision.allowed()).into(), ..DescriptorStatus::default() };
    if let Some(name) = &outcome.banned_by {
        status.current_limit = Some(RateLimit { name: name.to_string(), ..RateLimit::default() });
        return status;
    }
    let Some((named, answer)) = decision.binding_limit().zip(decision.binding()) else {
        // Envoy's own service reports "no limit" like this.
        status.limit_remaining = if outcome.unlimited { u32::MAX } else { 0 };
        return status;
    };
    // Values that are unknown because the store is unavailable are omitted.
    if let (Some(remaining), Some(reset_at)) = (answer.remaining, answer.reset_at) {
        let window = Duration::from_secs(named.limit.refill_secs_ceil());
        let unit =
            UNITS.iter().find(|(_, duration)| *duration == window).map_or(Unit::Unknown, |(unit, _)| *unit);
        let name = named.name.to_string();
        let requests_per_unit = named.limit.capacity();
        status.current_limit = Some(RateLimit { name, requests_per_unit, unit: unit.into() });
        status.limit_remaining = remaining;
        let left = reset_at.saturating_since(answer.at.unwrap_or(decision.at()));
        status.duration_until_reset = Some(ProtoDuration {
            seconds: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(left.subsec_nanos()).unwrap_or_default(),
        });
    }
    status
}

/// Returns the response when nothing could be decided.
fn undecided(message: &RateLimitRequest, mode: FailureMode) -> RateLimitResponse {
    let allowed = mode != FailureMode::Closed;
    let status = DescriptorStatus { code: code(allowed).into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: code(allowed).into(),
        statuses: vec![status; message.descriptors.len()],
        response_headers_to_add: vec![header("x-pacegate-degraded", "true")],
        ..RateLimitResponse::default()
    }
}

fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: Vec::new() }
}
