//! `ShouldRateLimit` as Envoy sees it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../client/mod.rs"]
mod client;
mod failure;
mod hits;
mod ordinary;
mod requests;
#[path = "../scripted/mod.rs"]
mod scripted;
#[path = "../service/mod.rs"]
mod service;

use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use pacegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use service::Service;

/// Simulated clocks start 123,456 µs after this second, which is 20 s into a minute.
const NOW: u64 = 1_790_000_000;

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

async fn ask(service: &Service, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    service.envoy().should_rate_limit(request(descriptors)).await.unwrap().into_inner()
}

/// Returns the overall code, and the remaining hits of each descriptor.
fn numbers(response: &RateLimitResponse) -> (Code, Vec<u32>) {
    (response.overall_code(), response.statuses.iter().map(|status| status.limit_remaining).collect())
}

/// Returns the status of a limit whose window ends in `micros` microseconds.
fn status(code: Code, name: &str, quota: u32, unit: Unit, remaining: u32, micros: i64) -> DescriptorStatus {
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit { name: name.into(), requests_per_unit: quota, unit: unit.into() }),
        limit_remaining: remaining,
        duration_until_reset: Some(prost_types::Duration {
            seconds: micros / 1_000_000,
            nanos: i32::try_from(micros % 1_000_000 * 1_000).unwrap(),
        }),
    }
}

/// Returns the headers to add.
fn headers(response: &RateLimitResponse) -> Vec<(&str, &str)> {
    let mut headers: Vec<(&str, &str)> = response
        .response_headers_to_add
        .iter()
        .map(|header| (header.key.as_str(), header.value.as_str()))
        .collect();
    headers.sort_unstable();
    headers
}
