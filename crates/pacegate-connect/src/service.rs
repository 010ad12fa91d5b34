//! A Pacegate service over gRPC, as something that decides.

use std::error::Error;
use std::fmt;
use std::iter::Peekable;
use std::time::Duration;

use http::HeaderValue;
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry_http::HeaderInjector;
use pacegate::{
    Check, CheckError, Decision, StoreError, Timestamp,
    remote::{Remote, RemoteAnswers, RemoteFuture},
};
use pacegate_config::ServiceConfig;
use pacegate_proto::REQUEST_BYTES_MAX;
use pacegate_proto::v1::check_result::Result as Outcome;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{self, BatchCheckRequest, CheckRequest, QuotaRequest, RefundRequest, ResetRequest};
use pacegate_store::GuardedCalls;
use prost::Message;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::ConnectError;
use crate::convert::{decision, request, taken};

/// How long a new connection may take; requests wait for it no longer than for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer, in bytes: enough for a full batch with many limits for each check.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// So many checks go in one call, which has one deadline: more of them need more time, and that is no fault of the service.
const CALL_CHECKS_MAX: usize = 50;
/// How often an idle connection is looked at.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

type Client = RateLimiterClient<InterceptedService<Channel, ShowKey>>;

/// A Pacegate service. One connection carries all requests, and is made anew when it is lost.
pub struct Service {
    client: Client,
    calls: GuardedCalls,
}

/// Shows the API key with every request, and the trace that it is part of.
#[derive(Clone)]
struct ShowKey(Option<HeaderValue>);

impl tonic::service::Interceptor for ShowKey {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            let key = tonic::metadata::AsciiMetadataValue::try_from(key.as_bytes());
            let key = key.map_err(|_| Status::internal("service.key is not visible ASCII"))?;
            request.metadata_mut().insert("x-api-key", key);
        }
        // Whoever traces this program finds the service's spans under its own.
        get_text_map_propagator(|known| {
            let headers: &mut http::HeaderMap = request.metadata_mut().as_mut();
            known.inject_context(&Context::current(), &mut HeaderInjector(headers));
        });
        Ok(request)
    }
}

impl Service {
    /// The service that `config` names. Each request may take as long as `timeout`. It need not be there yet.
    ///
    /// # Errors
    /// [`ConnectError::Service`] when the address, the key or a file cannot be used.
    pub fn new(config: &ServiceConfig, timeout: Duration) -> Result<Self, ConnectError> {
        let wrong = |field, reason: String| ConnectError::Service { field, reason };
        let mut endpoint = Endpoint::from_shared(config.url.clone())
            .map_err(|error| wrong("url", error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ALIVE_EVERY)
            .keep_alive_while_idle(true);
        if config.url.starts_with("https://") {
            endpoint = endpoint
                .tls_config(tls(config).map_err(|(field, reason)| wrong(field, reason))?)
                .map_err(|error| wrong("tls", error.to_string()))?;
        }
        let key = config.key.as_deref().map(HeaderValue::from_str).transpose();
        let mut key = key.map_err(|_| wrong("key", "must be visible ASCII".to_owned()))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let client = RateLimiterClient::with_interceptor(endpoint.connect_lazy(), ShowKey(key));
        let client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { client, calls: GuardedCalls::new("service", timeout) })
    }

    /// Makes a call, with the deadline and the breaker around it.
    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Result<T, CheckError> {
        let answered = self.calls.call(async {
            match call(self.client.clone()).await {
                Ok(response) => Ok(Ok(response.into_inner())),
                Err(status) => sorted(status),
            }
        });
        answered.await?
    }

    /// Decides on each of the checks with one call.
    async fn check_batch(
        &self,
        checks: Vec<CheckRequest>,
    ) -> Result<Vec<Result<Decision, CheckError>>, CheckError> {
        let size = checks.len();
        let batch = BatchCheckRequest { checks, ..Default::default() };
        let response = self.call(|mut client| async move { client.batch_check(batch).await }).await?;
        let result = |result: v1::CheckResult| match result.result {
            Some(Outcome::Response(response)) => decision(response),
            Some(Outcome::Error(error)) => Err(failed_item(error)),
            None => Err(StoreError::missing_outcome().into()),
        };
        let mut decisions: Vec<_> = response.results.into_iter().map(result).collect();
        decisions.resize_with(size, || Err(StoreError::missing_outcome().into()));
        Ok(decisions)
    }
}

fn tls(config: &ServiceConfig) -> Result<ClientTlsConfig, (&'static str, String)> {
    let read = |field, path: &std::path::Path| {
        std::fs::read(path).map_err(|error| (field, format!("{}: {error}", path.display())))
    };
    let mut tls = ClientTlsConfig::new();
    tls = match &config.tls.ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("tls.ca", path)?)),
        None => tls.with_native_roots(),
    };
    if let (Some(cert), Some(key)) = (&config.tls.cert, &config.tls.key) {
        tls = tls.identity(Identity::from_pem(read("tls.cert", cert)?, read("tls.key", key)?));
    }
    Ok(tls)
}

/// Whether a status says that the service fails (outer error), or what is wrong with the request
/// (inner error).
fn sorted<T>(status: Status) -> Result<Result<T, CheckError>, StoreError> {
    let message = status.message().to_owned();
    // A status that was made here, because the service sent none, has a cause.
    if status.source().is_some() {
        return Err(if was_not_sent(&status) {
            StoreError::unavailable(message)
        } else {
            StoreError::uncertain(message)
        });
    }
    match status.code() {
        // The last one is the bound on management calls, resets among them: the service is well.
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
            Ok(Err(CheckError::Refused(message.into())))
        }
        Code::FailedPrecondition => Ok(Err(CheckError::IdempotencyMismatch)),
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            Err(StoreError::rejected(message))
        }
        Code::DeadlineExceeded => Err(StoreError::timed_out(message)),
        // The service failed, before or after it changed a counter.
        _ => Err(StoreError::uncertain(message)),
    }
}

/// Whether there was no connection to send the request on.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Requests in batches that the service accepts and answers in time: bounded in number and in bytes. A request that is
/// too long by itself is a batch of its own, which the service refuses.
struct Batches<I: Iterator<Item = CheckRequest>>(Peekable<I>);

impl<I: Iterator<Item = CheckRequest>> Iterator for Batches<I> {
    type Item = Vec<CheckRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.0.next()?;
        let mut bytes = bytes_in_batch(&first);
        let mut batch = vec![first];
        while batch.len() < CALL_CHECKS_MAX
            && let Some(next) = self.0.next_if(|next| bytes + bytes_in_batch(next) <= REQUEST_BYTES_MAX)
        {
            bytes += bytes_in_batch(&next);
            batch.push(next);
        }
        Some(batch)
    }
}

/// How much a request adds to the length of its batch.
fn bytes_in_batch(request: &CheckRequest) -> usize {
    let length = request.encoded_len();
    1 + prost::length_delimiter_len(length) + length
}

/// The error of one check of a batch: the same as if it had been asked alone.
fn failed_item(error: v1::Error) -> CheckError {
    let v1::Error { code, message, .. } = error;
    match code.as_str() {
        "IDEMPOTENCY_MISMATCH" => CheckError::IdempotencyMismatch,
        "INTERNAL_ERROR" | "SERVICE_UNAVAILABLE" => StoreError::uncertain(message).into(),
        _ => CheckError::Refused(message.into()),
    }
}

impl Remote for Service {
    fn check<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision> {
        Box::pin(async move {
            let request = request(check);
            decision(self.call(|mut client| async move { client.check_rate_limit(request).await }).await?)
        })
    }

    fn check_each<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteAnswers<'a> {
        Box::pin(async move {
            let mut decisions = Vec::with_capacity(checks.len());
            for batch in Batches(checks.iter().map(request).peekable()) {
                let size = batch.len();
                match self.check_batch(batch).await {
                    Ok(decided) => decisions.extend(decided),
                    Err(error @ CheckError::Store(_)) => {
                        // It concerns the service, not these checks: the batches after this one
                        // would fail in the same way, each after its own deadline.
                        decisions.resize_with(checks.len(), || Err(error.clone()));
                        break;
                    }
                    Err(error) => decisions.resize_with(decisions.len() + size, || Err(error.clone())),
                }
            }
            decisions
        })
    }

    fn check_all<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteFuture<'a, Decision> {
        Box::pin(async move {
            let checks = checks.iter().map(request).collect();
            let batch = BatchCheckRequest { checks, all_or_nothing: true, ..Default::default() };
            let response = self.call(|mut client| async move { client.batch_check(batch).await }).await?;
            decision(response.decision.ok_or_else(StoreError::missing_outcome)?)
        })
    }

    fn peek<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision> {
        Box::pin(async move {
            let CheckRequest {
                identifier,
                endpoint,
                custom_dimension,
                method,
                plans,
                limit,
                also,
                cost,
                tier,
                costs,
                ..
            } = request(check);
            let quota = QuotaRequest {
                identifier,
                endpoint,
                custom_dimension,
                method,
                plans,
                limit,
                also,
                cost,
                tier,
                costs,
                with_limits: true,
                ..Default::default()
            };
            let response =
                self.call(|mut client| async move { client.get_remaining_quota(quota).await }).await?;
            decision(response.check.ok_or_else(StoreError::missing_outcome)?)
        })
    }

    fn reset<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Timestamp> {
        Box::pin(async move {
            let CheckRequest {
                identifier, endpoint, custom_dimension, method, plans, also, limit, tier, ..
            } = request(check);
            let reset = ResetRequest {
                identifier,
                endpoint,
                custom_dimension,
                method,
                plans,
                also,
                limit,
                tier,
                ..Default::default()
            };
            let response = self.call(|mut client| async move { client.reset_limit(reset).await }).await?;
            let seconds = u64::try_from(response.reset_at).unwrap_or_default();
            Ok(Timestamp::from_micros(seconds.saturating_mul(1_000_000)))
        })
    }

    fn refund<'a, 'b: 'a>(
        &'a self,
        check: &'a Check<'b>,
        decision: &'a Decision,
    ) -> RemoteFuture<'a, Decision> {
        Box::pin(async move {
            let refund = RefundRequest { check: Some(request(check)), taken: Some(taken(decision)) };
            let response = self.call(|mut client| async move { client.refund(refund).await }).await?;
            self::decision(response)
        })
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the key.
        formatter.debug_struct("Service").finish_non_exhaustive()
    }
}
