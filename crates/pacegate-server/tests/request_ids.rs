//! Every gRPC request has an id: accepted or generated, sent back, and logged.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod scripted;
mod service;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pacegate::Stores;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest, QuotaRequest, ResetRequest};
use tokio_stream::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use client::Client;
use scripted::{Behaviour, Scripted};
use service::{Service, with};

const RULES: &str = "
default_limit: none
rules: [{name: few, dimension: user, algorithm: fixed_window, limit: 1, window: 1d}]
descriptors: [{name: edge, entries: [{key: ip}], algorithm: fixed_window, limit: 1, window: 1d}]
";

const METHODS: [&str; 9] =
    ["check", "quota", "reset", "batch", "together", "stream", "envoy", "health", "invalid"];

fn check(identifier: &str, endpoint: &str) -> CheckRequest {
    CheckRequest { identifier: identifier.into(), endpoint: endpoint.into(), ..CheckRequest::default() }
}

fn envoy() -> RateLimitRequest {
    let entries = vec![Entry { key: "ip".into(), value: "192.0.2.1".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 1 }
}

/// Returns the metadata of the response to a call, or of its status.
async fn metadata(service: &Service, method: &str, sent: &[(&'static str, &str)]) -> MetadataMap {
    fn of<T>(answer: Result<Response<T>, Status>) -> MetadataMap {
        answer.map_or_else(|status| status.metadata().clone(), |response| response.metadata().clone())
    }
    let key = ("x-api-key", "secret");
    let sent: Vec<_> = sent.iter().copied().chain([key]).collect();
    let checks = || vec![check("u", "/"), check("v", "/")];
    let mut client = service.limiter();
    match method {
        "check" => of(client.check_rate_limit(with(check("u", "/"), &sent)).await),
        "quota" => {
            let quota =
                QuotaRequest { identifier: "u".into(), endpoint: "/".into(), ..QuotaRequest::default() };
            of(client.get_remaining_quota(with(quota, &sent)).await)
        }
        "reset" => {
            let reset =
                ResetRequest { identifier: "u".into(), endpoint: "/".into(), ..ResetRequest::default() };
            of(client.reset_limit(with(reset, &sent)).await)
        }
        "batch" | "together" => {
            let all_or_nothing = method == "together";
            let batch =
                BatchCheckRequest { checks: checks(), all_or_nothing, ..BatchCheckRequest::default() };
            of(client.batch_check(with(batch, &sent)).await)
        }
        "stream" => {
            let answer = client.check_stream(with(tokio_stream::iter(checks()), &sent)).await.unwrap();
            let metadata = answer.metadata().clone();
            assert_eq!(answer.into_inner().collect::<Vec<_>>().await.len(), 2);
            metadata
        }
        "envoy" => of(service.envoy().should_rate_limit(with(envoy(), &sent)).await),
        "health" => {
            let health = HealthCheckRequest { service: String::new() };
            of(HealthClient::new(service.channel()).check(with(health, &sent)).await)
        }
        _ => {
            let answer = client.check_rate_limit(with(CheckRequest::default(), &sent)).await;
            assert_eq!(answer.as_ref().unwrap_err().code(), tonic::Code::InvalidArgument);
            of(answer)
        }
    }
}

#[tokio::test]
async fn request_ids_are_accepted_or_generated_and_always_sent_back() {
    let service = Service::start(RULES).await;
    for method in METHODS {
        let id = |metadata: &MetadataMap| {
            metadata.get("x-request-id").map(|id| id.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        let taken = metadata(&service, method, &[("x-request-id", "from-the-caller")]).await;
        assert_eq!(id(&taken), "from-the-caller", "{method}");
        for unusable in [&[][..], &[("x-request-id", "two words")]] {
            let made = id(&metadata(&service, method, unusable).await);
            assert!(made.starts_with("req_"), "{method}: {made:?}");
        }
    }
}

/// The captured log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn log_lines_have_the_request_id() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let denying = Service::start(RULES).await;
    metadata(&denying, "stream", &[]).await;
    metadata(&denying, "envoy", &[]).await;
    for method in ["check", "batch", "together", "stream", "envoy"] {
        let made = metadata(&denying, method, &[]).await;
        let id = made.get("x-request-id").unwrap().to_str().unwrap();
        let log = log.text();
        assert!(log.contains(&format!("request_id=\"{id}\"")), "{method} {id}\n{log}");
    }

    // A reset fails with its store. Other calls follow the failure mode.
    let store = Scripted::new(Behaviour::Unavailable);
    let rest = Client::with_stores(RULES, Stores::remote(store, Duration::from_secs(5)));
    let failing = Service::serve(rest, RULES).await;
    for method in ["check", "batch", "together", "stream", "reset"] {
        let id = format!("failing-{method}");
        metadata(&failing, method, &[("x-request-id", &id)]).await;
        let log = log.text();
        assert!(log.contains(&format!("request_id=\"{id}\"")), "{method}\n{log}");
    }
    assert!(log.text().contains("request_id=\"failing-reset\" error="), "{}", log.text());
}
