//! A caller without a key must not refund usage.

use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_testkit::effort;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::process::{Service, file};

const RULES: &str = r#"
default_limit: none
rules: [{name: logins, dimension: user, algorithm: fixed_window, limit: 5, window: 1d}]
descriptors:
  - {domain: edge, name: tokens, entries: [{key: tokens}], algorithm: token_bucket, limit: 5, window: 1d}
"#;

type Client = RateLimitServiceClient<Channel>;

async fn ask(client: &mut Client, key: Option<&'static str>, descriptor: RateLimitDescriptor) -> bool {
    let message =
        RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], ..Default::default() };
    let mut request = tonic::Request::new(message);
    if let Some(key) = key {
        request.metadata_mut().insert("x-api-key", MetadataValue::from_static(key));
    }
    client.should_rate_limit(request).await.unwrap().into_inner().overall_code() == Code::Ok
}

#[tokio::test]
async fn negative_hits_without_a_key_refund_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let service =
        Service::start(&["--config", &file(directory.path(), RULES)], &[("PACEGATE_ADMIN_KEY", "secret")]);
    let endpoint = Channel::from_shared(format!("http://{}", service.grpc)).unwrap();
    let mut client = Client::new(endpoint.connect().await.unwrap());
    let rounds = effort(100, 10_000);
    let mut passed = [0; 2];
    for (index, (key, value)) in [("user", "mallory"), ("tokens", "mallory")].into_iter().enumerate() {
        let entries = vec![Entry { key: key.into(), value: value.into() }];
        let attempt = || RateLimitDescriptor { entries: entries.clone(), ..Default::default() };
        let refund = || RateLimitDescriptor { hits_addend: Some(1_000), is_negative_hits: true, ..attempt() };
        for _ in 0..rounds {
            passed[index] += u32::from(ask(&mut client, None, attempt()).await);
            ask(&mut client, None, refund()).await;
        }
        assert_eq!(passed[index], 5, "{key}: attempts that passed under a limit of 5");
        // A caller with a key can refund, so the requests above were valid.
        ask(&mut client, Some("secret"), refund()).await;
        assert!(ask(&mut client, None, attempt()).await, "{key}");
    }
    println!("PASS attack_refunds rounds={rounds} limit=5 passed={} refunded=0", passed[0].max(passed[1]));
}
