//! Rolling restarts: two nodes are restarted in turn under load, and no request is lost.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

mod balancer;
mod process;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use balancer::{
    Balancer, Channel, Connection, Counts, Http2, Lost, Node, StreamChannel, open_http1, outcome,
};
use hyper::{Request, Version};
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{CheckRequest, check_result};
use pacegate_testkit::effort;
use pacegate_testkit::server::{RedisServer, free_port};
use process::{file, pacegate, signal};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

/// Time between two requests of a worker, because all processes share a few cores.
const PAUSE: Duration = Duration::from_millis(2);
const SOON: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Number of workers of each kind.
const WORKERS: usize = 3;
/// Minimum number of responses between restarts.
const RESPONSES: u64 = 200;

const CONFIG: &str = "default_limit: {algorithm: gcra, limit: 1000000000, window: 1s}
descriptors:
  - {domain: edge, entries: [{key: user}], algorithm: fixed_window, limit: 1000000000, window: 1s}
";

/// Starts a node that logs to `log`.
fn start(node: &Node, config: &str, store: &str, log: &Path) -> Child {
    pacegate()
        .args(["serve", "--config", config, "--store", store])
        .args(["--http", &node.http.to_string(), "--grpc", &node.grpc.to_string()])
        .env("PACEGATE_SERVER__DRAIN_DELAY", "600ms")
        .stdout(Stdio::null())
        .stderr(fs::File::create(log).unwrap())
        .spawn()
        .unwrap()
}

/// Waits until a node is ready. Fails with its log otherwise.
async fn is_ready(node: &Node, log: &Path) {
    if timeout(SOON, async {
        while !node.is_ready() {
            sleep(LOOK_EVERY).await
        }
    })
    .await
    .is_err()
    {
        panic!("a node is not ready: {}", fs::read_to_string(log).unwrap());
    }
}

/// Waits until `happened` holds, for at most half a minute.
async fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let waiting = async {
        while !happened() {
            sleep(LOOK_EVERY).await;
        }
    };
    timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("timed out: {what}"));
}

fn check(worker: usize) -> CheckRequest {
    CheckRequest { identifier: format!("u{worker}"), endpoint: "/x".into(), ..CheckRequest::default() }
}

/// Checks over REST, with separate connections for each worker.
async fn rest(balancer: Balancer, worker: usize, version: Version) {
    let counts = balancer.counts.clone();
    let mut connections = [None, None];
    for turn in worker.. {
        let Some(chosen) = balancer.next(turn).await else { return };
        let node = &balancer.nodes[chosen];
        // Poll both, so that a GOAWAY of the other node is read too.
        for slot in &mut connections {
            if let Some(connection) = slot
                && !Connection::is_usable(connection).await
            {
                *slot = None;
            }
        }
        if connections[chosen].is_none() {
            connections[chosen] = match version {
                Version::HTTP_2 => Http2::open(node.http).await.map(Connection::Http2),
                _ => open_http1(node.http).await.map(Connection::Http1),
            };
        }
        let Some(connection) = &mut connections[chosen] else {
            Counts::add(&counts.refused);
            continue;
        };
        let request = Request::post(format!("http://{}/v1/rate-limit/check", node.http))
            .version(version)
            .header("host", "x")
            .header("content-type", "application/json")
            .body(format!(r#"{{"user_id":"u{worker}","endpoint":"/x"}}"#))
            .unwrap();
        let response = connection.ask(request).await.and_then(|response| {
            if response.headers().get("connection").is_some_and(|value| value == "close") {
                Counts::add(&counts.asked_to_leave);
            }
            let text = String::from_utf8_lossy(response.body());
            let right = response.status() == 200 && text.contains("\"allowed\":true");
            if right { Ok(()) } else { Err(Lost::NoResponse(format!("{} {text}", response.status()))) }
        });
        counts.note(&format!("{version:?}"), response);
        sleep(PAUSE).await;
    }
}

/// The connection to a node, opened if there is none that can be used.
async fn channel(own: &mut [Option<Channel>; 2], balancer: &Balancer, chosen: usize) -> Option<Channel> {
    // Poll both, so that a GOAWAY of the other node is read too.
    for slot in &mut *own {
        if let Some(channel) = slot
            && !channel.is_usable().await
        {
            *slot = None;
        }
    }
    let slot = &mut own[chosen];
    if slot.is_none() {
        *slot = Channel::open(balancer.nodes[chosen].grpc).await;
    }
    if slot.is_none() {
        Counts::add(&balancer.counts.refused);
    }
    slot.clone()
}

async fn unary(balancer: Balancer, worker: usize) {
    let mut own = [None, None];
    for turn in worker.. {
        let Some(chosen) = balancer.next(turn).await else { return };
        let Some(channel) = channel(&mut own, &balancer, chosen).await else { continue };
        let mut client = RateLimiterClient::with_origin(channel, "http://x".parse().unwrap());
        let response = outcome(client.check_rate_limit(check(worker))).await;
        balancer.counts.note("unary", response.and_then(|response| allowed(response.into_inner().allowed)));
        sleep(PAUSE).await;
    }
}

async fn envoy(balancer: Balancer, worker: usize) {
    let entries = vec![Entry { key: "user".into(), value: format!("u{worker}") }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 1 };
    let mut own = [None, None];
    for turn in worker.. {
        let Some(chosen) = balancer.next(turn).await else { return };
        let Some(channel) = channel(&mut own, &balancer, chosen).await else { continue };
        let mut client = RateLimitServiceClient::with_origin(channel, "http://x".parse().unwrap());
        let response = outcome(client.should_rate_limit(request.clone())).await;
        balancer
            .counts
            .note("envoy", response.and_then(|response| allowed(response.into_inner().overall_code == 1)));
        sleep(PAUSE).await;
    }
}

/// The connections to the nodes, shared by all streams.
type Shared = Arc<[Mutex<Option<StreamChannel>>; 2]>;

fn allowed(allowed: bool) -> Result<(), Lost> {
    if allowed { Ok(()) } else { Err(Lost::NoResponse("denied".to_owned())) }
}

/// Streams with several checks in flight. A stream ends when its node drains, or after a while.
async fn stream(balancer: Balancer, worker: usize, shared: Shared) {
    for turn in worker.. {
        let Some(chosen) = balancer.next(turn).await else { return };
        let mut slot = shared[chosen].lock().await;
        if !slot.as_ref().is_some_and(StreamChannel::is_usable) {
            *slot = StreamChannel::open(balancer.nodes[chosen].grpc).await;
        }
        let Some(channel) = slot.clone() else { continue };
        drop(slot);
        let mut client = RateLimiterClient::with_origin(channel, "http://x".parse().unwrap());
        let (messages, receiver) = mpsc::channel(8);
        let mut responses = match outcome(client.check_stream(ReceiverStream::new(receiver))).await {
            Ok(responses) => responses.into_inner(),
            // No check was sent yet.
            Err(_) => continue,
        };
        let mut whole = true;
        for _ in 0..100 {
            if !balancer.nodes[chosen].is_ready() || balancer.stop.load(Ordering::Relaxed) {
                break;
            }
            for _ in 0..3 {
                messages.send(check(worker)).await.unwrap_or_default();
            }
            for _ in 0..3 {
                let response = outcome(responses.message()).await.and_then(|response| {
                    let result = response.and_then(|response| response.result);
                    let right =
                        matches!(&result, Some(check_result::Result::Response(response)) if response.allowed);
                    if right { Ok(()) } else { Err(Lost::NoResponse(format!("in a stream: {result:?}"))) }
                });
                whole &= response.is_ok();
                balancer.counts.note("stream", response);
            }
            if !whole {
                break;
            }
            sleep(PAUSE).await;
        }
        drop(messages);
        if whole && let Err(lost) = outcome(responses.message()).await {
            panic!("a stream did not end in peace: {lost}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_lose_no_request() {
    let restarts: u64 = effort(10, 100);
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), CONFIG);
    let logs = ["a.log", "b.log"].map(|name| directory.path().join(name));
    let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
    let nodes = [(); 2].map(|()| Node::new(address(), address()));
    let counts = Arc::new(Counts::default());
    let balancer = Balancer { nodes: nodes.clone(), counts: counts.clone(), stop: Arc::default() };
    let mut processes = [0, 1].map(|node| Process(start(&nodes[node], &config, &redis.url(), &logs[node])));
    let mut looking = JoinSet::new();
    for (node, log) in nodes.iter().zip(&logs) {
        looking.spawn(node.clone().follow());
        is_ready(node, log).await;
    }
    let mut workers = JoinSet::new();
    let channels = Shared::default();
    for worker in 0..WORKERS {
        workers.spawn(rest(balancer.clone(), worker, Version::HTTP_11));
        workers.spawn(rest(balancer.clone(), worker, Version::HTTP_2));
        workers.spawn(unary(balancer.clone(), worker));
        workers.spawn(envoy(balancer.clone(), worker));
        workers.spawn(stream(balancer.clone(), worker, channels.clone()));
    }
    for restart in 0..restarts {
        let before = counts.completed();
        wait_for("the load continues", || counts.completed() >= before + RESPONSES).await;
        let index = usize::try_from(restart % 2).unwrap();
        let (Process(process), node, log) = (&mut processes[index], &nodes[index], &logs[index]);
        signal(process, "TERM");
        let mut ended = None;
        wait_for("a node ends", || {
            ended = process.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        assert_eq!(ended.unwrap().code(), Some(0));
        wait_for("it is known to be gone", || !node.is_ready()).await;
        let lost = counts.reasons.lock().unwrap().join("\n");
        assert!(lost.is_empty(), "lost in restart {restart}:\n{lost}\n{}", fs::read_to_string(log).unwrap());
        *process = start(node, &config, &redis.url(), log);
        is_ready(node, log).await;
    }
    balancer.stop.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let [requests, lost, unprocessed, unsent, asked] =
        [&counts.completed, &counts.lost, &counts.unprocessed, &counts.unsent, &counts.asked_to_leave]
            .map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(lost, 0, "{:#?}", counts.reasons.lock().unwrap());
    assert!(asked > 0, "no response had `Connection: close`, so nothing was tested");
    println!(
        "PASS rolling-restarts restarts={restarts} requests={requests} lost={lost} unprocessed={unprocessed} unsent={unsent} asked_to_leave={asked}"
    );
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
