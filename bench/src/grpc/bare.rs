//! A minimal tonic service: it parses the same messages and returns a fixed response.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use pacegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use pacegate_proto::v1::rate_limiter_server::{RateLimiter, RateLimiterServer};
use pacegate_proto::v1::{
    BatchCheckRequest, BatchCheckResponse, CheckRequest, CheckResponse, CheckResult, QuotaRequest,
    QuotaResponse, RefundRequest, ResetRequest, ResetResponse,
};
use tonic::{Request, Response, Status, Streaming};

/// Time after which the server exits, in case the program that started it has died.
const LIFETIME: Duration = Duration::from_secs(600);

struct Bare;

#[tonic::async_trait]
impl RateLimiter for Bare {
    async fn check_rate_limit(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        std::hint::black_box(request.into_inner());
        Ok(Response::new(CheckResponse {
            allowed: true,
            current_count: Some(1),
            limit: Some(100),
            remaining: Some(99),
            reset_at: Some(1_790_000_000),
            rule: "default".into(),
            algorithm: "token_bucket".into(),
            decided_at_us: 1_790_000_000_000_000,
            ..CheckResponse::default()
        }))
    }

    async fn get_remaining_quota(&self, _: Request<QuotaRequest>) -> Result<Response<QuotaResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn reset_limit(&self, _: Request<ResetRequest>) -> Result<Response<ResetResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn batch_check(
        &self,
        _: Request<BatchCheckRequest>,
    ) -> Result<Response<BatchCheckResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    async fn refund(&self, _: Request<RefundRequest>) -> Result<Response<CheckResponse>, Status> {
        Err(Status::unimplemented("bare"))
    }

    type CheckStreamStream = tokio_stream::Empty<Result<CheckResult, Status>>;

    async fn check_stream(
        &self,
        _: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("bare"))
    }
}

#[tonic::async_trait]
impl RateLimitService for Bare {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        std::hint::black_box(request.into_inner());
        let current_limit = RateLimit { name: "remote_address".into(), requests_per_unit: 100, unit: 1 };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(current_limit),
            limit_remaining: 99,
            duration_until_reset: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        }))
    }
}

/// Serves on `port` of the loopback address.
///
/// # Errors
/// If the port is in use.
pub fn serve(port: u16) -> Result<()> {
    // The default number of worker threads, one per available core, as in the service.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = tonic::transport::Server::builder()
            .add_service(RateLimiterServer::new(Bare))
            .add_service(RateLimitServiceServer::new(Bare))
            .serve((Ipv4Addr::LOCALHOST, port).into());
        match tokio::time::timeout(LIFETIME, server).await {
            Ok(served) => served.context("serving"),
            Err(_) => Ok(()),
        }
    })
}
