//! Traces as a collector receives them: a span for each check with the span of its store, under the
//! trace of the caller.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;
mod upstream;

use std::net::SocketAddr;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{BatchCheckRequest, CheckRequest};
use pacegate_testkit::server::RedisServer;
use process::{Service, file, signal};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use upstream::{Proxy, Upstream};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const RULES: &str = "
default_limit: none
rules: [{name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}]
";

/// A collector that keeps the spans.
struct Collector {
    address: SocketAddr,
    spans: mpsc::UnboundedReceiver<(String, Span)>,
}

struct Receiver(mpsc::UnboundedSender<(String, Span)>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
            let name = text(name.value.clone().unwrap().value.unwrap());
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                self.0.send((name.clone(), span)).unwrap();
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, spans) = mpsc::unbounded_channel();
        let server = Server::builder().add_service(TraceServiceServer::new(Receiver(sender)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, spans }
    }

    /// Returns the next `count` spans, sorted by name.
    async fn spans(&mut self, count: usize) -> Vec<(String, Span)> {
        let mut spans = Vec::new();
        while spans.len() < count {
            let next = timeout(Duration::from_secs(30), self.spans.recv()).await;
            spans.push(next.unwrap_or_else(|_| panic!("only {spans:#?}")).unwrap());
        }
        spans.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        spans
    }

    fn config(&self, rules: &str) -> (TempDir, String) {
        let directory = tempfile::tempdir().unwrap();
        let config = format!("{rules}\ntraces: {{otlp: 'http://{}'}}", self.address);
        let path = file(directory.path(), &config);
        (directory, path)
    }
}

fn text(value: Value) -> String {
    match value {
        Value::StringValue(text) => text,
        Value::BoolValue(flag) => flag.to_string(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    found.map(|attribute| text(attribute.value.clone().unwrap().value.unwrap())).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Asserts that the span of the store lies within that of the check.
fn assert_within(store: &Span, check: &Span) {
    assert_eq!((store.name.as_str(), check.name.as_str()), ("store", "check"));
    assert_eq!((&store.trace_id, &store.parent_span_id), (&check.trace_id, &check.span_id));
    assert!(store.start_time_unix_nano >= check.start_time_unix_nano, "{store:?} {check:?}");
    assert!(store.end_time_unix_nano <= check.end_time_unix_nano, "{store:?} {check:?}");
    assert!(store.end_time_unix_nano > store.start_time_unix_nano);
}

fn check_over_http(service: &Service, headers: &str, user: &str) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(service.url.trim_start_matches("http://")).unwrap();
    let body = format!(r#"{{"user_id": "{user}", "endpoint": "/"}}"#);
    let length = body.len();
    write!(
        stream,
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_span_is_a_child_of_the_caller_and_contains_its_store() {
    let mut collector = Collector::start().await;
    let redis = RedisServer::start();
    for store in ["memory:".to_owned(), format!("redis://{}", redis.address())] {
        let (_directory, config) = collector.config(RULES);
        let service = Service::start(&["--config", &config, "--store", &store], &[]);
        check_over_http(&service, &format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n"), "alice-the-user");
        // Over gRPC, in the metadata.
        let channel = Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap().connect_lazy();
        let check = CheckRequest {
            identifier: "alice-the-user".into(),
            endpoint: "/".into(),
            cost: 2,
            ..Default::default()
        };
        let mut request = Request::new(check);
        request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CALLER}-01").parse().unwrap());
        assert!(
            !RateLimiterClient::new(channel).check_rate_limit(request).await.unwrap().into_inner().allowed
        );
        signal(&service.process, "TERM");
        let spans = collector.spans(4).await;
        for (name, span) in &spans {
            assert_eq!((name.as_str(), hex(&span.trace_id).as_str()), ("pacegate", TRACE));
            let shown = format!("{span:?}");
            assert!(!shown.contains("alice"), "identifiers stay out of traces: {shown}");
        }
        let (checks, stores) = spans.split_at(2);
        for (_, check) in checks {
            assert_eq!(hex(&check.parent_span_id), CALLER);
            assert_eq!(check.kind, SpanKind::Server as i32);
            assert_eq!(attribute(check, "pacegate.rule"), "few");
            assert_eq!(attribute(check, "pacegate.algorithm"), "fixed_window");
            assert_eq!(attribute(check, "pacegate.dimension"), "user");
            let store = stores.iter().find(|(_, store)| store.parent_span_id == check.span_id);
            assert_within(&store.unwrap().1, check);
        }
        let mut responses: Vec<(String, String, String)> = checks
            .iter()
            .map(|(_, check)| {
                let of = |name| attribute(check, name);
                (of("pacegate.allowed"), of("pacegate.remaining"), of("pacegate.reason"))
            })
            .collect();
        responses.sort();
        let expected = [("false", "1", "LIMIT_EXCEEDED"), ("true", "1", "")];
        assert_eq!(responses, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    }
}

/// Batches, streams and Envoy requests have the same spans as single checks.
#[tokio::test(flavor = "multi_thread")]
async fn every_api_has_spans() {
    let mut collector = Collector::start().await;
    let rules = "default_limit: none\nrules: [{name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}]\ndescriptors: [{domain: edge, name: each, entries: [{key: team}], algorithm: fixed_window, limit: 1, window: 1d}]";
    let (_directory, config) = collector.config(rules);
    let service = Service::start(&["--config", &config], &[]);
    let channel = Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap().connect_lazy();
    let of =
        |user: &str| CheckRequest { identifier: user.into(), endpoint: "/".into(), ..Default::default() };
    fn traced<T>(message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CALLER}-01").parse().unwrap());
        request
    }
    let mut limiter = RateLimiterClient::new(channel.clone());
    for all_or_nothing in [false, true] {
        let checks = vec![of("a"), of("b")];
        let batch = BatchCheckRequest { checks, all_or_nothing, ..Default::default() };
        limiter.batch_check(traced(batch)).await.unwrap();
    }
    let stream = tokio_stream::iter([of("c"), of("d"), of("e")]);
    let mut responses = limiter.check_stream(traced(stream)).await.unwrap().into_inner();
    while responses.message().await.unwrap().is_some() {}
    let entry = Entry { key: "team".into(), value: "red".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let envoy =
        RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], ..Default::default() };
    RateLimitServiceClient::new(channel).should_rate_limit(traced(envoy)).await.unwrap();
    signal(&service.process, "TERM");
    // Two batches with a span for each decision and one for the store, three checks of the stream
    // and Envoy's request with their stores.
    let spans = collector.spans(2 + 3 + 4 + 2 + 4).await;
    assert!(spans.iter().all(|(_, span)| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let named = |name: &str| -> Vec<&Span> {
        spans.iter().map(|(_, span)| span).filter(|span| span.name == name).collect()
    };
    let (batches, checks) = (named("batch_check"), named("check"));
    assert_eq!((batches.len(), checks.len()), (2, 7));
    let under = |parent: &Span| checks.iter().filter(|check| check.parent_span_id == parent.span_id).count();
    assert_eq!(
        batches.iter().map(|batch| under(batch)).sum::<usize>(),
        3,
        "two of one, and one decision on both"
    );
    assert_eq!(checks.iter().filter(|check| hex(&check.parent_span_id) == CALLER).count(), 4);
    let rules: Vec<String> = checks.iter().map(|check| attribute(check, "pacegate.rule")).collect();
    assert_eq!(rules.iter().filter(|rule| *rule == "few").count(), 6);
    assert!(rules.contains(&"each".to_owned()), "{rules:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_decides_about_its_traces_and_sampling_about_the_others() {
    let mut collector = Collector::start().await;
    let (_directory, config) = collector.config(RULES);
    let service = Service::start(
        &["--config", &config],
        &[("PACEGATE_TRACES__SAMPLE", "0"), ("PACEGATE_TRACES__SERVICE_NAME", "limits")],
    );
    // Not sampled by the caller, not sampled here, an invalid header, and sampled by the caller.
    check_over_http(&service, &format!("traceparent: 00-{TRACE}-{CALLER}-00\r\n"), "u");
    check_over_http(&service, "", "u");
    check_over_http(&service, "traceparent: 00-zzz-01\r\n", "u");
    check_over_http(&service, &format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n"), "u");
    signal(&service.process, "TERM");
    let spans = collector.spans(2).await;
    assert!(spans.iter().all(|(name, span)| name == "limits" && hex(&span.trace_id) == TRACE), "{spans:#?}");
    assert!(collector.spans.try_recv().is_err());
}

/// One trace covers the client, the proxy, the upstream, and the service that decides.
#[tokio::test(flavor = "multi_thread")]
async fn trace_continues_in_the_upstream_and_the_service() {
    let mut collector = Collector::start().await;
    let (_directory, config) = collector.config(
        "default_limit: none\nrules: [{name: each, dimension: ip, algorithm: gcra, limit: 9, window: 1d}]",
    );
    let service = Service::start(&["--config", &config], &[]);
    let upstream = Upstream::start().await;
    let traced = format!(
        "mode: service\nservice: {{url: 'http://{}'}}\ntraces: {{otlp: 'http://{}', service_name: proxy}}",
        service.grpc, collector.address
    );
    let proxy = Proxy::start(&upstream.url, &traced, &[]);
    let client = upstream::client::<http_body_util::Empty<hyper::body::Bytes>>(false);
    let request = hyper::Request::get(format!("{}/hello", proxy.url))
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .body(http_body_util::Empty::new())
        .unwrap();
    assert_eq!(client.request(request).await.unwrap().status(), 200);
    signal(&proxy.process, "TERM");
    signal(&service.process, "TERM");
    let spans = collector.spans(3).await;
    let of = |name: &str| spans.iter().find(|(_, span)| span.name == name).unwrap();
    let (check, proxied, store) = (of("check"), of("proxy"), of("store"));
    assert_eq!((check.0.as_str(), proxied.0.as_str()), ("pacegate", "proxy"));
    assert!(spans.iter().all(|(_, span)| hex(&span.trace_id) == TRACE));
    assert_eq!(hex(&proxied.1.parent_span_id), CALLER);
    assert_eq!(check.1.parent_span_id, proxied.1.span_id, "the service's span is under the proxy's");
    assert_within(&store.1, &check.1);
    let seen = upstream.seen();
    let passed_on = seen[0].headers.get("traceparent").unwrap().to_str().unwrap().to_owned();
    assert_eq!(passed_on, format!("00-{TRACE}-{}-01", hex(&proxied.1.span_id)), "and so is the upstream's");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_works_without_its_collector() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    // It accepts connections and never responds.
    let traces = format!("{RULES}\ntraces: {{otlp: 'http://{}'}}", silent.local_addr().unwrap());
    let config = file(directory.path(), &traces);
    let service = Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")]);
    for expected in [200, 200, 429, 429] {
        let body = r#"{"user_id": "u", "endpoint": "/"}"#;
        assert_eq!(service.ask("POST", "/v1/rate-limit/check", body).unwrap().0, expected);
    }
    service.terminate();
    let mut service = service;
    let ended = tokio::task::spawn_blocking(move || service.process.wait().unwrap());
    assert!(timeout(Duration::from_secs(15), ended).await.expect("it ends").unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_spans_are_logged() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), &format!("{RULES}\ntraces: {{otlp: 'http://{closed}'}}"));
    let log = std::fs::File::create(directory.path().join("log")).unwrap();
    let (mut process, _output, line) = process::started(
        process::pacegate().args(["serve", "--http", "127.0.0.1:0", "--config", &config]).stderr(log),
    );
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    process::ask(url, "POST", "/v1/rate-limit/check", r#"{"user_id": "u", "endpoint": "/"}"#).unwrap();
    signal(&process, "TERM");
    process.wait().unwrap();
    let log = std::fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(log.contains("spans not exported, and lost"), "{log}");
}

#[test]
fn invalid_settings_are_named() {
    for (settings, message) in [
        ("traces: {}", "traces.otlp: required field is missing"),
        (
            "traces: {otlp: 'localhost:4317'}",
            "traces.otlp: expected a URL that starts with http:// or https://",
        ),
        ("traces: {otlp: 'http://x:1', sample: 2}", "traces.sample: expected a number between 0 and 1"),
        ("traces: {otlp: 'http://x:1', endpoint: x}", "traces.endpoint: unknown"),
        ("log: {keys: secret}", "log.keys: expected hashed or plain, got \"secret\""),
        ("log: {decisions: some}", "log.decisions: expected none, denied or all, got \"some\""),
        ("log: {lines_per_second: -1}", "log.lines_per_second: must be between 0 and 1000000, got -1"),
        ("metrics: sometimes", "metrics: expected true or false"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = file(directory.path(), settings);
        let (code, _, errors) = process::run(&["config", "check", &path]);
        assert_eq!(code, 2, "{settings}");
        assert!(errors.contains(message), "{settings}: {errors}");
    }
}
