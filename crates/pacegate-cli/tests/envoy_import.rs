//! Imported files of Envoy's rate limit service, queried over its protocol: the responses are the
//! same.
//!
//! Each case names its differences. One is on purpose: a denied request charges nothing, while
//! Envoy's service counts denied requests and the other descriptors of a denied request.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod envoy_cases;
mod process;

use std::sync::Arc;

use envoy_cases::{CASES, Case};
use pacegate::{MemoryOptions, MemoryStore, Stores, Timestamp};
use pacegate_config::Config;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_server::{AdminKey, App, Listeners};
use pacegate_testkit::SimulatedClock;
use process::run;
use tokio::net::TcpListener;
use tonic::transport::{Channel, Endpoint};

/// A time at which windows of all units begin: a number of days that 7, 30 and 365 divide.
const START: u64 = 15_330 * 86_400;

/// Imports a file with the command.
fn import(yaml: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ratelimit.yaml");
    std::fs::write(&file, yaml).unwrap();
    let (code, output, errors) = run(&["import", "envoy", file.to_str().unwrap()]);
    assert_eq!(code, 0, "{yaml}\n{errors}");
    output
}

/// Serves the imported rules with a simulated clock.
async fn serve(yaml: &str) -> (Arc<SimulatedClock>, RateLimitServiceClient<Channel>) {
    let clock = Arc::new(SimulatedClock::at(Timestamp::from_micros(START * 1_000_000)));
    let store = MemoryStore::with_clock(MemoryOptions::default(), clock.clone());
    let config = Config::parse(yaml).unwrap_or_else(|errors| panic!("{yaml}\n{errors}"));
    let limiter = config.limiter_with(Stores::memory(Arc::new(store))).unwrap();
    let app = App::new(&config, limiter, AdminKey::new("secret"));
    let [http, grpc] =
        [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let url = format!("http://{}", grpc.local_addr().unwrap());
    tokio::spawn(async move {
        pacegate_server::run(Listeners::from(http).grpc(grpc), app, &config.server, std::future::pending())
            .await;
    });
    (clock, RateLimitServiceClient::new(Endpoint::from_shared(url).unwrap().connect_lazy()))
}

/// Parses `domain: a=1, b=2 @3; c=3 %5/minute x7`: descriptors with their hits (`@0` only reads,
/// `@-1` refunds), their ad-hoc limit, and the hits of the request.
fn request(text: &str) -> RateLimitRequest {
    let (text, general) = text.rsplit_once(" x").unwrap_or((text, "0"));
    let (domain, descriptors) = text.split_once(": ").unwrap();
    let descriptor = |text: &str| {
        let (text, limit) = text.rsplit_once(" %").map_or((text, None), |(text, limit)| (text, Some(limit)));
        let (text, hits) = text.rsplit_once(" @").map_or((text, None), |(text, hits)| (text, Some(hits)));
        let hits: Option<i64> = hits.map(|hits| hits.parse().unwrap());
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap();
            Entry { key: key.into(), value: value.into() }
        };
        let limit = limit.map(|limit| {
            let (quota, unit) = limit.split_once('/').unwrap();
            let unit = Unit::from_str_name(&unit.to_uppercase()).unwrap();
            RateLimitOverride { requests_per_unit: quota.parse().unwrap(), unit: unit.into() }
        });
        RateLimitDescriptor {
            entries: text.split(", ").map(entry).collect(),
            limit,
            hits_addend: hits.map(i64::unsigned_abs),
            is_negative_hits: hits.is_some_and(i64::is_negative),
        }
    };
    RateLimitRequest {
        domain: domain.into(),
        descriptors: descriptors.split("; ").map(descriptor).collect(),
        hits_addend: general.parse().unwrap(),
    }
}

fn seconds(unit: Unit) -> u64 {
    match unit {
        Unit::Unknown => panic!("a window without a name"),
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3_600,
        Unit::Day => 86_400,
        Unit::Week => 7 * 86_400,
        Unit::Month => 30 * 86_400,
        Unit::Year => 365 * 86_400,
    }
}

/// `OK 4/5`: allowed with 4 of 5 remaining; `OVER 0/5`; `OK -`: no limit applies; `OK free`:
/// unlimited.
fn describe(status: &DescriptorStatus, now: u64) -> String {
    let code = if status.code() == Code::Ok { "OK" } else { "OVER" };
    let Some(limit) = &status.current_limit else {
        let left = if status.limit_remaining == u32::MAX { "free" } else { "-" };
        return format!("{code} {left}");
    };
    if limit.requests_per_unit > 0 {
        // Envoy's service returns whole seconds.
        let left = status.duration_until_reset.expect("when the window ends");
        let left = u64::try_from(left.seconds).unwrap() + u64::from(left.nanos > 0);
        let window = seconds(limit.unit());
        let fresh = status.limit_remaining == limit.requests_per_unit;
        assert!(fresh || left == window - now % window, "{status:?} at {now}");
    }
    format!("{code} {}/{}", status.limit_remaining, limit.requests_per_unit)
}

async fn assert_case(Case { name, descriptors, steps }: &Case) {
    let items: String = descriptors.iter().map(|descriptor| format!("  - {descriptor}\n")).collect();
    let (clock, mut client) = serve(&import(&format!("domain: d\ndescriptors:\n{items}"))).await;
    for (index, (at, text, expected)) in steps.iter().enumerate() {
        let now = START * 1_000_000 + at;
        clock.set(Timestamp::from_micros(now));
        let response = client.should_rate_limit(request(text)).await.unwrap().into_inner();
        let statuses: Vec<String> =
            response.statuses.iter().map(|status| describe(status, now / 1_000_000)).collect();
        // The response of Envoy's service, then that of Pacegate if it differs.
        let expected = expected.split(" => ").last().unwrap();
        assert_eq!(statuses.join("; "), expected, "{name}, step {index} at {at} µs: {text}");
        let over = statuses.iter().any(|status| status.starts_with("OVER"));
        assert_eq!(
            response.overall_code(),
            if over { Code::OverLimit } else { Code::Ok },
            "{name}, step {index}"
        );
    }
}

#[tokio::test]
async fn imported_file_behaves_like_the_original() {
    assert!(CASES.len() >= 40);
    for case in CASES {
        assert_case(case).await;
    }
}

#[test]
fn settings_without_an_equivalent_are_rejected_by_name() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 1}";
    for (descriptor, expected) in [
        (
            format!("{{key: a, value: 'x*', share_threshold: true, {limit}}}"),
            "share_threshold: no equivalent",
        ),
        (format!("{{key: a, quota_mode: true, {limit}}}"), "quota_mode: no equivalent"),
        (format!("{{key: 'a*', {limit}}}"), "key: no equivalent"),
        (format!("{{key: a, {limit}}}\n  - {{key: a, {limit}}}"), "duplicate key `a`; line 3 has it already"),
        ("{key: a, rate_limit: {unit: decade, requests_per_unit: 1}}".into(), "unit: expected one of"),
        (
            "{key: a, rate_limit: {unlimited: true, unit: day, requests_per_unit: 1}}".into(),
            "are mutually exclusive",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ratelimit.yaml");
        std::fs::write(&file, format!("domain: d\ndescriptors:\n  - {descriptor}\n")).unwrap();
        let (code, output, errors) = run(&["import", "envoy", file.to_str().unwrap()]);
        assert_eq!((code, output.as_str()), (2, ""), "{descriptor}");
        assert!(errors.contains(expected), "{descriptor}\n{errors}");
    }
}
