//! `pacegate.v1.RateLimiter`: checks, quotas, resets, batches and streams of checks.

use std::sync::Arc;

use hyper::HeaderMap;
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::{
    BatchCheckRequest, BatchCheckResponse, CheckRequest, CheckResponse, CheckResult, QuotaRequest,
    QuotaResponse, RefundRequest, ResetRequest, ResetResponse, rate_limiter_server,
};
use prost::Message;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::Admin;
use super::convert::{
    error, filled, normalise, of_quota, of_reset, response, response_together, seconds, taken,
};
use super::stream::{self, Answers};
use crate::app::Shared;
use crate::auth::actor;
use crate::peer::{Peer, batch_permit};
use crate::pipeline::batch::{Batch, check_size, yield_after_some};
use crate::pipeline::{Caller, CheckMessage, idempotency_key};
use crate::respond::ApiError;
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
        let (sender, message) = split_request(request);
        decide_one(&self.shared, sender.caller(), message).await
    }

    async fn quota(&self, request: Request<QuotaRequest>) -> Result<QuotaResponse, ApiError> {
        let (sender, message) = split_request(request);
        let mut message = of_quota(message);
        normalise(&mut message);
        let decision = self.shared.peek(&message, sender.caller()).await?;
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
        let at = self.shared.reset(&message, &actor(admin.key_id.clone(), peer, &headers)).await?;
        Ok(ResetResponse { reset_at: seconds(at) })
    }

    async fn batch(&self, request: Request<BatchCheckRequest>) -> Result<BatchCheckResponse, ApiError> {
        let (sender, mut batch) = split_request(request);
        check_size(batch.checks.len())?;
        let _permit = batch_permit(sender.peer.as_ref()).await;
        batch.checks.iter_mut().for_each(normalise);
        if batch.all_or_nothing {
            let keys = batch.checks.iter().map(|check| &check.idempotency_key);
            if keys.chain([&batch.idempotency_key]).any(|key| !key.is_empty()) {
                return Err(ApiError::input(
                    "idempotency_key",
                    "`idempotency_key` and `all_or_nothing` are mutually exclusive",
                ));
            }
            let decision = self.shared.decide_all(&batch.checks, sender.caller()).await?;
            return Ok(BatchCheckResponse {
                results: Vec::new(),
                decision: Some(response_together(&decision)),
            });
        }
        // The encoded batch is only needed for an idempotency key.
        let has_key = idempotency_key(filled(&batch.idempotency_key), &sender.headers)?.is_some();
        let body = if has_key { idempotent_content(&batch) } else { Vec::new() };
        let batch_of_checks =
            Batch { messages: &batch.checks, key: filled(&batch.idempotency_key), body: &body };
        let decided = self.shared.decide_each(batch_of_checks, sender.caller()).await?;
        let mut results = Vec::with_capacity(decided.len());
        for (index, (decision, message)) in decided.into_iter().zip(&batch.checks).enumerate() {
            yield_after_some(index).await;
            let result = match decision {
                Ok(decision) => Outcome::Response(response(&decision, message)),
                Err(wrong) => Outcome::Error(error(wrong)),
            };
            results.push(CheckResult { result: Some(result) });
        }
        Ok(BatchCheckResponse { results, decision: None })
    }

    async fn refund_check(&self, request: Request<RefundRequest>) -> Result<CheckResponse, ApiError> {
        let (Sender { headers, .. }, message) = split_request(request);
        let mut message_check =
            message.check.ok_or_else(|| ApiError::input("check", "required field is missing"))?;
        let message_taken =
            message.taken.ok_or_else(|| ApiError::input("taken", "required field is missing"))?;
        normalise(&mut message_check);
        let check = message_check.check(&self.shared)?;
        let profile = self.shared.profile(check.user()).await;
        let decision = taken(&message_taken)?;
        let check = check.profile(profile.as_deref());
        let left = self.shared.limiter.refund(&check, &decision).await;
        let left = left.map_err(|error| message_check.explain(error))?;
        if decision.allowed() && !decision.replayed() {
            self.shared.observer.refunds.allowed(request_id(&headers), &left);
        }
        Ok(response(&left, &message_check))
    }
}

/// Returns the content of a batch that an idempotency key covers: without the key itself and
/// without timestamps.
fn idempotent_content(batch: &BatchCheckRequest) -> Vec<u8> {
    let mut batch = BatchCheckRequest { idempotency_key: String::new(), ..batch.clone() };
    batch.checks.iter_mut().for_each(|check| check.timestamp = 0);
    batch.encode_to_vec()
}

/// The sender of a request: its metadata and its peer.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) headers: HeaderMap,
    pub(super) peer: Option<Peer>,
}

impl Sender {
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { headers: &self.headers, peer: self.peer.as_ref() }
    }
}

/// Splits a request into its sender and its message.
fn split_request<T>(request: Request<T>) -> (Sender, T) {
    let (metadata, mut extensions, message) = request.into_parts();
    (Sender { headers: metadata.into_headers(), peer: extensions.remove::<Peer>() }, message)
}

/// Decides one check, whose idempotency key may be in its metadata.
pub(super) async fn decide_one(
    shared: &Shared,
    caller: Caller<'_>,
    mut message: CheckRequest,
) -> Result<CheckResponse, ApiError> {
    let _unanswered = shared.overload.accept()?;
    normalise(&mut message);
    let decision = shared.decide(&message, caller).await?;
    Ok(response(&decision, &message))
}

pub(super) fn peer(extensions: &Extensions) -> Option<&Peer> {
    extensions.get::<Peer>()
}

/// Returns the response to `request`, or the status of its error, whose cause is logged under the
/// request's id.
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
        respond(request, |request| self.refund_check(request)).await
    }

    type CheckStreamStream = Answers;

    async fn check_stream(
        &self,
        request: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        let connection = request.extensions().get::<Arc<Activity>>().cloned();
        respond(request, |request| async move {
            let (sender, messages) = split_request(request);
            Ok(stream::answer(self.shared.clone(), sender, messages, connection))
        })
        .await
    }
}
