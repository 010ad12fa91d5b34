//! gRPC's health protocol, which reports the same as `/readyz`, and reflection.

use std::time::Duration;

use pacegate::Stores;
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use super::check;
use super::client::Client;
use super::scripted::{Behaviour, Scripted};
use super::service::{Service, soon};

const NAMES: [&str; 3] = ["", "pacegate.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"];

async fn health(service: &Service, name: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: name.into() };
    let answer = HealthClient::new(service.channel()).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

async fn watch(service: &Service, name: &str) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest { service: name.into() };
    HealthClient::new(service.channel()).watch(request).await.unwrap().into_inner()
}

/// Returns the next status of a watch.
async fn next(stream: &mut Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    soon(stream.next()).await.map(|answer| answer.unwrap().status())
}

/// Asserts that REST and gRPC agree on readiness.
async fn assert_ready(service: &Service, ready: bool) {
    let status = service.rest.get("/readyz").await.status.as_u16();
    assert_eq!(status, if ready { 200 } else { 503 });
    assert_eq!(service.rest.get("/healthz").await.status, 200, "the process stays alive");
    for name in NAMES {
        let expected = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        assert_eq!(health(service, name).await, Ok(expected), "{name}");
    }
}

#[tokio::test]
async fn health_equals_readiness_and_changes_are_streamed() {
    let store = Scripted::new(Behaviour::Answer);
    let stores = Stores::remote(store.clone(), Duration::from_millis(50));
    let rules = "rules: [{name: r, dimension: user, algorithm: gcra, limit: 100, window: 1s}]\nserver: {drain_delay: 2s}\n";
    let service = Service::serve(Client::with_stores(rules, stores), rules).await;
    let mut watches = Vec::new();
    for name in NAMES {
        watches.push(watch(&service, name).await);
    }
    for watch in &mut watches {
        assert_eq!(next(watch).await, Some(ServingStatus::Serving));
    }
    assert_ready(&service, true).await;
    assert_eq!(health(&service, "pacegate.v1.Nothing").await, Err(Code::NotFound));
    let mut unknown = watch(&service, "pacegate.v1.Nothing").await;
    assert_eq!(next(&mut unknown).await, Some(ServingStatus::ServiceUnknown));

    store.set(Behaviour::Rejected);
    service.limiter().check_rate_limit(check("u", "/")).await.unwrap();
    for watch in &mut watches {
        assert_eq!(next(watch).await, Some(ServingStatus::NotServing));
    }
    assert_ready(&service, false).await;

    store.set(Behaviour::Answer);
    for watch in &mut watches {
        assert_eq!(next(watch).await, Some(ServingStatus::Serving), "without any request");
    }
    assert_ready(&service, true).await;

    // While it drains, it is not ready; existing connections still work.
    let address = service.grpc;
    let (rest, running) = service.stop();
    for watch in &mut watches {
        assert_eq!(next(watch).await, Some(ServingStatus::NotServing));
    }
    assert_eq!(rest.get("/readyz").await.status, 503);
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(answer.into_inner().status(), ServingStatus::NotServing, "new clients see it as well");
    for watch in &mut watches {
        assert_eq!(next(watch).await, None, "the watch ends");
    }
    assert_eq!(next(&mut unknown).await, None);
    soon(running).await.unwrap();
}

fn reflection_request(message: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(message) }
}

async fn reflect(service: &Service, message: MessageRequest) -> MessageResponse {
    let mut client = ServerReflectionClient::new(service.channel());
    let answers =
        client.server_reflection_info(tokio_stream::iter([reflection_request(message)])).await.unwrap();
    let answer: ServerReflectionResponse = soon(answers.into_inner().next()).await.unwrap().unwrap();
    answer.message_response.unwrap()
}

fn files(answer: MessageResponse) -> Vec<FileDescriptorProto> {
    let MessageResponse::FileDescriptorResponse(files) = answer else { panic!("{answer:?}") };
    files.file_descriptor_proto.iter().map(|file| FileDescriptorProto::decode(&**file).unwrap()).collect()
}

#[tokio::test]
async fn reflection_lists_services_and_messages() {
    let service = Service::start("").await;
    let MessageResponse::ListServicesResponse(list) =
        reflect(&service, MessageRequest::ListServices(String::new())).await
    else {
        panic!("expected a list of services")
    };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "pacegate.v1.RateLimiter",
        ]
    );
    let symbol = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit";
    let files_of_it = files(reflect(&service, MessageRequest::FileContainingSymbol(symbol.into())).await);
    let method = &files_of_it[0].service[0].method[0];
    assert_eq!(method.name(), "ShouldRateLimit");
    assert_eq!(method.input_type(), ".envoy.service.ratelimit.v3.RateLimitRequest");
    assert_eq!(method.output_type(), ".envoy.service.ratelimit.v3.RateLimitResponse");
    let own = files(
        reflect(&service, MessageRequest::FileContainingSymbol("pacegate.v1.RateLimiter".into())).await,
    );
    let methods: Vec<(&str, bool, bool)> = own[0].service[0]
        .method
        .iter()
        .map(|method| (method.name(), method.client_streaming(), method.server_streaming()))
        .collect();
    assert_eq!(
        methods[..5],
        [
            ("CheckRateLimit", false, false),
            ("GetRemainingQuota", false, false),
            ("ResetLimit", false, false),
            ("BatchCheck", false, false),
            ("CheckStream", true, true),
        ]
    );
    let find = |name: &str| -> &DescriptorProto {
        own[0].message_type.iter().find(|message| message.name() == name).unwrap()
    };
    let field = |message: &str, number| {
        find(message).field.iter().find(|field| field.number() == number).unwrap().name().to_owned()
    };
    // The fields of the first version of the protocol, whose numbers never change.
    for (number, name) in
        [(1, "identifier"), (2, "dimension"), (3, "endpoint"), (4, "cost"), (5, "timestamp")]
    {
        assert_eq!(field("CheckRequest", number), name);
    }
    let answer = ["allowed", "current_count", "limit", "remaining", "reset_at", "retry_after"];
    for (number, name) in (1..).zip(answer) {
        assert_eq!(field("CheckResponse", number), name);
    }
    let nothing = reflection_request(MessageRequest::FileContainingSymbol("pacegate.v1.Nothing".into()));
    let mut client = ServerReflectionClient::new(service.channel());
    let answers = client.server_reflection_info(tokio_stream::iter([nothing])).await.unwrap();
    assert_eq!(soon(answers.into_inner().next()).await.unwrap().unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn open_reflection_stream_does_not_delay_shutdown() {
    let service = Service::start("server: {drain_delay: 0s}").await;
    let (sender, receiver) = mpsc::channel(1);
    sender.send(reflection_request(MessageRequest::ListServices(String::new()))).await.unwrap();
    let mut client = ServerReflectionClient::new(service.channel());
    let mut answers =
        client.server_reflection_info(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert!(soon(answers.next()).await.unwrap().is_ok());
    let (_, running) = service.stop();
    soon(running).await.unwrap();
    drop(sender);
}
