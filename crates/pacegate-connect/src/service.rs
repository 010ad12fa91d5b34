//! A Pacegate service over gRPC, as a [`Remote`].

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
    remote::{Remote, RemoteDecisions, RemoteFuture},
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

/// Time limit for a new connection. A request waits for it no longer than its own timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a response, in bytes: enough for a full batch with many limits per check.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of checks per call. A call has one deadline, and a larger batch could miss it
/// although the service is healthy.
const CALL_CHECKS_MAX: usize = 50;
/// Interval of keep-alive pings on an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

type Client = RateLimiterClient<InterceptedService<Channel, ApiKeyInterceptor>>;

/// A Pacegate service. One connection carries all requests, and is re-established when it is lost.
pub struct Service {
    client: Client,
    calls: GuardedCalls,
}

/// Adds the API key and the trace context to every request.
#[derive(Clone)]
struct ApiKeyInterceptor(Option<HeaderValue>);

impl tonic::service::Interceptor for ApiKeyInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            let key = tonic::metadata::AsciiMetadataValue::try_from(key.as_bytes());
            let key = key.map_err(|_| Status::internal("service.key: must be visible ASCII"))?;
            request.metadata_mut().insert("x-api-key", key);
        }
        // Spans of the service become children of the spans of this program.
        get_text_map_propagator(|known| {
            let headers: &mut http::HeaderMap = request.metadata_mut().as_mut();
            known.inject_context(&Context::current(), &mut HeaderInjector(headers));
        });
        Ok(request)
    }
}

impl Service {
    /// Returns the service that `config` names. `timeout` is the time limit of each request. The
    /// service need not be running yet.
    ///
    /// # Errors
    /// [`ConnectError::Service`] if the address, the key or a file is not valid.
    pub fn new(config: &ServiceConfig, timeout: Duration) -> Result<Self, ConnectError> {
        let invalid = |field, reason: String| ConnectError::Service { field, reason };
        let mut endpoint = Endpoint::from_shared(config.url.clone())
            .map_err(|error| invalid("url", error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_while_idle(true);
        if config.url.starts_with("https://") {
            endpoint = endpoint
                .tls_config(tls(config).map_err(|(field, reason)| invalid(field, reason))?)
                .map_err(|error| invalid("tls", error.to_string()))?;
        }
        let key = config.key.as_deref().map(HeaderValue::from_str).transpose();
        let mut key = key.map_err(|_| invalid("key", "must be visible ASCII".to_owned()))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let client = RateLimiterClient::with_interceptor(endpoint.connect_lazy(), ApiKeyInterceptor(key));
        let client = client.max_decoding_message_size(RESPONSE_BYTES_MAX);
        Ok(Self { client, calls: GuardedCalls::new("service", timeout) })
    }

    /// Makes a call, guarded by the deadline and the circuit breaker.
    async fn call<T, F: Future<Output = Result<tonic::Response<T>, Status>>>(
        &self,
        call: impl FnOnce(Client) -> F,
    ) -> Result<T, CheckError> {
        let answered = self.calls.call(async {
            match call(self.client.clone()).await {
                Ok(response) => Ok(Ok(response.into_inner())),
                Err(status) => classify(status),
            }
        });
        answered.await?
    }

    /// Decides on each check, in one call.
    async fn check_batch(
        &self,
        checks: Vec<CheckRequest>,
    ) -> Result<Vec<Result<Decision, CheckError>>, CheckError> {
        let size = checks.len();
        let batch = BatchCheckRequest { checks, ..Default::default() };
        let response = self.call(|mut client| async move { client.batch_check(batch).await }).await?;
        let result = |result: v1::CheckResult| match result.result {
            Some(Outcome::Response(response)) => decision(response),
            Some(Outcome::Error(error)) => Err(error_of_check(error)),
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

/// Classifies a status: the service failed (outer error), or the request is invalid (inner error).
fn classify<T>(status: Status) -> Result<Result<T, CheckError>, StoreError> {
    let message = status.message().to_owned();
    // A status that was created locally, because the service sent none, has a source.
    if status.source().is_some() {
        return Err(if is_connect_error(&status) {
            StoreError::unavailable(message)
        } else {
            StoreError::uncertain(message)
        });
    }
    match status.code() {
        // `ResourceExhausted` is the rate limit on management calls, including resets; the service
        // is healthy.
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
            Ok(Err(CheckError::Rejected(message.into())))
        }
        Code::FailedPrecondition => Ok(Err(CheckError::IdempotencyMismatch)),
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            Err(StoreError::rejected(message))
        }
        Code::DeadlineExceeded => Err(StoreError::timed_out(message)),
        // The service failed, possibly after it changed a counter.
        _ => Err(StoreError::uncertain(message)),
    }
}

/// Whether the request failed because there was no connection.
fn is_connect_error(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Splits requests into batches that the service accepts and answers in time, bounded by number and
/// bytes. A request that is too long becomes a batch of its own, which the service rejects.
struct Batches<I: Iterator<Item = CheckRequest>>(Peekable<I>);

impl<I: Iterator<Item = CheckRequest>> Iterator for Batches<I> {
    type Item = Vec<CheckRequest>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.0.next()?;
        let mut bytes = encoded_length(&first);
        let mut batch = vec![first];
        while batch.len() < CALL_CHECKS_MAX
            && let Some(next) = self.0.next_if(|next| bytes + encoded_length(next) <= REQUEST_BYTES_MAX)
        {
            bytes += encoded_length(&next);
            batch.push(next);
        }
        Some(batch)
    }
}

/// The length that a request adds to its batch.
fn encoded_length(request: &CheckRequest) -> usize {
    let length = request.encoded_len();
    1 + prost::length_delimiter_len(length) + length
}

/// Converts the error of one check of a batch, like the error of a single check.
fn error_of_check(error: v1::Error) -> CheckError {
    let v1::Error { code, message, .. } = error;
    match code.as_str() {
        "IDEMPOTENCY_MISMATCH" => CheckError::IdempotencyMismatch,
        "INTERNAL_ERROR" | "SERVICE_UNAVAILABLE" => StoreError::uncertain(message).into(),
        _ => CheckError::Rejected(message.into()),
    }
}

impl Remote for Service {
    fn check<'a, 'b: 'a>(&'a self, check: &'a Check<'b>) -> RemoteFuture<'a, Decision> {
        Box::pin(async move {
            let request = request(check);
            decision(self.call(|mut client| async move { client.check_rate_limit(request).await }).await?)
        })
    }

    fn check_each<'a, 'b: 'a>(&'a self, checks: &'a [Check<'b>]) -> RemoteDecisions<'a> {
        Box::pin(async move {
            let mut decisions = Vec::with_capacity(checks.len());
            for batch in Batches(checks.iter().map(request).peekable()) {
                let size = batch.len();
                match self.check_batch(batch).await {
                    Ok(decided) => decisions.extend(decided),
                    Err(error @ CheckError::Store(_)) => {
                        // The service is unavailable: later batches would fail in the same way,
                        // each after its own deadline.
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
        // The API key is omitted.
        formatter.debug_struct("Service").finish_non_exhaustive()
    }
}
