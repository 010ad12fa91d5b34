//! `pacegate.v1.RateLimiter`: checks, quotas, resets, batches and streams of checks.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::HeaderMap;
use pacegate::{Check, CheckError, Profile};
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{
    BatchCheckRequest, BatchCheckResponse, CheckRequest, CheckResponse, CheckResult, QuotaRequest,
    QuotaResponse, RefundRequest, ResetRequest, ResetResponse, rate_limiter_server,
};
use prost::Message;
use tokio::time::Instant;
use tonic::{Extensions, Request, Response, Status, Streaming};
use tracing::Instrument;

use super::Admin;
use super::convert::{
    check, error, explain, normalise, of_quota, of_reset, response, response_together, seconds, taken,
};
use super::stream::{self, Answers};
use crate::app::Shared;
use crate::auth::actor;
use crate::batch::{CHECKS_MAX, Item, Sent, between, decide};
use crate::peer::{Peer, batch_place};
use crate::respond::ApiError;
use crate::rest::idempotency_key;
use crate::trace;
use pacegate_http::request_id::{REQUEST_ID, as_text, request_id};
use pacegate_http::server::Activity;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    shared: Arc<Shared>,
}

impl Limiter {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<CheckResponse, ApiError> {
        let (sender, message) = taken_apart(request);
        decide_one(&self.shared, &sender, message).await
    }

    async fn quota(&self, request: Request<QuotaRequest>) -> Result<QuotaResponse, ApiError> {
        let (sender, message) = taken_apart(request);
        let mut message = of_quota(message);
        normalise(&mut message);
        let asked = check(&message, &self.shared)?;
        self.shared.permit(&asked, &sender.headers, sender.peer.as_ref()).await?;
        let profile = profile(&self.shared, &asked).await;
        let decision = self.shared.limiter.peek(&asked.profile(profile.as_deref())).await;
        let decision = decision.map_err(|error| explain(&message, error))?;
        let check = response(&decision, &message);
        let CheckResponse { limit, remaining, reset_at, current_count, .. } = check;
        Ok(QuotaResponse { limit, remaining, reset_at, current_count, check: Some(check) })
    }

    async fn reset(&self, request: Request<ResetRequest>) -> Result<ResetResponse, ApiError> {
        let (metadata, extensions, message) = request.into_parts();
        let (headers, peer) = (metadata.into_headers(), peer(&extensions));
        let admin = extensions.get::<Admin>().ok_or_else(Admin::missing)?;
        let mut message = of_reset(message);
        normalise(&mut message);
        let asked = check(&message, &self.shared)?;
        self.shared.limiter.validate(&asked).map_err(|error| explain(&message, error))?;
        self.shared.record_reset(&actor(admin.key_id.clone(), peer, &headers), &asked).await?;
        let at = self.shared.limiter.reset(&asked).await;
        let at = at.map_err(|error| explain(&message, error))?;
        Ok(ResetResponse { reset_at: seconds(at) })
    }

    async fn batch(&self, request: Request<BatchCheckRequest>) -> Result<BatchCheckResponse, ApiError> {
        let (Sender { headers, peer }, mut batch) = taken_apart(request);
        if !(1..=CHECKS_MAX).contains(&batch.checks.len()) {
            return Err(ApiError::input("checks", format!("must have 1 to {CHECKS_MAX} items")));
        }
        let _place = batch_place(peer.as_ref()).await;
        let identities = batch.checks.iter().map(|check| 1 + check.also.len()).sum();
        let _unanswered = self.shared.overload.take_on_batch(identities)?;
        batch.checks.iter_mut().for_each(normalise);
        if batch.all_or_nothing {
            return self.batch_together(&batch, &headers, peer.as_ref()).await;
        }
        let key = idempotency_key(filled(&batch.idempotency_key), &headers)?;
        let body = if key.is_some() { substance(&batch) } else { Vec::new() };
        let mut asked: Vec<Result<Check<'_>, ApiError>> = Vec::with_capacity(batch.checks.len());
        for (index, message) in batch.checks.iter().enumerate() {
            between(index).await;
            asked.push(check(message, &self.shared));
        }
        let asked = self.shared.permit_each(asked, &headers, peer.as_ref()).await;
        let sender = self.shared.gate.sender(&headers, peer.as_ref());
        let users = asked.iter().map(|check| check.as_ref().ok());
        let profiles = join_all(users.map(async |check| profile(&self.shared, check?).await)).await;
        let items = asked.into_iter().zip(&profiles).zip(&batch.checks).map(|((asked, profile), message)| {
            self.shared.skew.observe(timestamp(message));
            Item {
                check: asked.map(|check| check.profile(profile.as_deref())),
                key: filled(&message.idempotency_key),
            }
        });
        let explain = |place: usize, error| explain(&batch.checks[place], error);
        let sent = Sent { key, sender: &sender, body: &body };
        let decided = decide(&self.shared, items.collect(), sent, &headers, explain).await?;
        let mut results = Vec::with_capacity(decided.len());
        for (index, (decision, message)) in decided.into_iter().zip(&batch.checks).enumerate() {
            between(index).await;
            let result = match decision {
                Ok(decision) => Outcome::Response(response(&decision, message)),
                Err(wrong) => Outcome::Error(error(wrong)),
            };
            results.push(CheckResult { result: Some(result) });
        }
        Ok(BatchCheckResponse { results, decision: None })
    }
}

/// What a batch asks for: the same whenever it is sent, and wherever its idempotency key stands.
fn substance(batch: &BatchCheckRequest) -> Vec<u8> {
    let mut batch = BatchCheckRequest { idempotency_key: String::new(), ..batch.clone() };
    batch.checks.iter_mut().for_each(|check| check.timestamp = 0);
    batch.encode_to_vec()
}

impl Limiter {
    /// Decides on all checks of a batch together.
    async fn batch_together(
        &self,
        batch: &BatchCheckRequest,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<BatchCheckResponse, ApiError> {
        let keys = batch.checks.iter().map(|check| &check.idempotency_key).chain([&batch.idempotency_key]);
        if keys.into_iter().any(|key| !key.is_empty()) {
            return Err(ApiError::input("idempotency_key", "does not go with all_or_nothing"));
        }
        let asked = batch.checks.iter().map(|message| check(message, &self.shared)).collect();
        let asked = self.shared.permit_each(asked, headers, peer).await;
        let asked: Vec<Check<'_>> = asked.into_iter().collect::<Result<_, _>>()?;
        let profiles = join_all(asked.iter().map(|check| profile(&self.shared, check))).await;
        let asked: Vec<Check<'_>> = asked
            .into_iter()
            .zip(&profiles)
            .map(|(check, profile)| check.profile(profile.as_deref()))
            .collect();
        // Each was looked at by `check` already; what is left concerns all of them.
        let (started, span) = (Instant::now(), trace::batch(headers, asked.len()));
        let decided = self.shared.limiter.check_all(&asked).instrument(span.clone()).await;
        if let Err(CheckError::Store(_)) = &decided {
            self.shared.telemetry.observe_error(started.elapsed());
        }
        let decision = decided?;
        trace::part(&span, &decision);
        self.shared.observe_together(&asked, request_id(headers), &decision, started.elapsed());
        Ok(BatchCheckResponse { results: Vec::new(), decision: Some(response_together(&decision)) })
    }

    async fn give_back(&self, request: Request<RefundRequest>) -> Result<CheckResponse, ApiError> {
        let (Sender { headers, .. }, message) = taken_apart(request);
        let mut message_check = message.check.ok_or_else(|| ApiError::input("check", "is missing"))?;
        let message_taken = message.taken.ok_or_else(|| ApiError::input("taken", "is missing"))?;
        normalise(&mut message_check);
        let asked = check(&message_check, &self.shared)?;
        let profile = profile(&self.shared, &asked).await;
        let decision = taken(&message_taken)?;
        let asked = asked.profile(profile.as_deref());
        let left = self.shared.limiter.refund(&asked, &decision).await;
        let left = left.map_err(|error| explain(&message_check, error))?;
        if decision.allowed && !decision.replayed {
            self.shared.refunds.allowed(request_id(&headers), &left);
        }
        Ok(response(&left, &message_check))
    }
}

/// Who sent a request: its metadata, and the other end of its connection.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) headers: HeaderMap,
    pub(super) peer: Option<Peer>,
}

/// Who sent a request, and its message.
fn taken_apart<T>(request: Request<T>) -> (Sender, T) {
    let (metadata, mut extensions, message) = request.into_parts();
    (Sender { headers: metadata.into_headers(), peer: extensions.remove::<Peer>() }, message)
}

/// Decides on one request, whose idempotency key may be in its metadata.
pub(super) async fn decide_one(
    shared: &Shared,
    Sender { headers, peer }: &Sender,
    mut message: CheckRequest,
) -> Result<CheckResponse, ApiError> {
    let _unanswered = shared.overload.take_on()?;
    normalise(&mut message);
    let key = idempotency_key(filled(&message.idempotency_key), headers)?;
    let sender = key.map(|_| shared.gate.sender(headers, peer.as_ref()));
    let mut asked = check(&message, shared)?;
    shared.permit(&asked, headers, peer.as_ref()).await?;
    if let Some(key) = key {
        let caller = asked.identity();
        asked = asked.idempotency(caller, key).sender(sender.as_deref());
    }
    let profile = profile(shared, &asked).await;
    let asked = asked.profile(profile.as_deref());
    let decided = shared.decide(&asked, headers).await;
    let decision = decided.map_err(|error| explain(&message, error))?;
    shared.skew.observe(timestamp(&message));
    Ok(response(&decision, &message))
}

async fn profile(shared: &Shared, check: &Check<'_>) -> Option<Arc<Profile>> {
    shared.profile(check.user()).await
}

/// The caller's clock, if it was sent.
fn timestamp(message: &CheckRequest) -> Option<i64> {
    Some(message.timestamp).filter(|timestamp| *timestamp != 0)
}

fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn peer(extensions: &Extensions) -> Option<&Peer> {
    extensions.get::<Peer>()
}

/// The answer to `request`, or the status of its error, whose cause is logged under the request's id.
pub(super) async fn respond<T, A, F: Future<Output = Result<A, ApiError>>>(
    request: Request<T>,
    answer: impl FnOnce(Request<T>) -> F,
) -> Result<Response<A>, Status> {
    let id = request.metadata().as_ref().get(&REQUEST_ID).cloned();
    let answered = answer(request).await;
    answered.map(Response::new).map_err(|error| error.logged(id.as_ref().map_or("", as_text)).into())
}

#[tonic::async_trait]
impl rate_limiter_server::RateLimiter for Limiter {
    async fn check_rate_limit(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        respond(request, |request| self.check(request)).await
    }

    async fn get_remaining_quota(
        &self,
        request: Request<QuotaRequest>,
    ) -> Result<Response<QuotaResponse>, Status> {
        respond(request, |request| self.quota(request)).await
    }

    async fn reset_limit(&self, request: Request<ResetRequest>) -> Result<Response<ResetResponse>, Status> {
        respond(request, |request| self.reset(request)).await
    }

    async fn batch_check(
        &self,
        request: Request<BatchCheckRequest>,
    ) -> Result<Response<BatchCheckResponse>, Status> {
        let (limiter, checks) = (self.clone(), request.get_ref().checks.len());
        let work = async move { respond(request, |request| limiter.batch(request)).await };
        self.shared.batches.run(checks, work).await
    }

    async fn refund(&self, request: Request<RefundRequest>) -> Result<Response<CheckResponse>, Status> {
        respond(request, |request| self.give_back(request)).await
    }

    type CheckStreamStream = Answers;

    async fn check_stream(
        &self,
        request: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        let connection = request.extensions().get::<Arc<Activity>>().cloned();
        respond(request, |request| async move {
            let (sender, messages) = taken_apart(request);
            Ok(stream::answer(self.shared.clone(), sender, messages, connection))
        })
        .await
    }
}
