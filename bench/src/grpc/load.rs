//! The load: four connections with 32 requests in flight each, in a closed loop.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pacegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use pacegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use pacegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use pacegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use pacegate_proto::v1::CheckRequest;
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::stopwatch::now;

/// Number of connections.
pub const CONNECTIONS: usize = 4;
/// Number of requests in flight per connection.
pub const STREAMS: usize = 32;
/// Number of checks in flight in one stream of checks.
const PIPELINED: usize = 32;
/// Number of identities of the requests.
const IDENTITIES: usize = 10_000;
const STEP: usize = 7_919;
/// Time after which a server counts as stuck.
const GRACE: Duration = Duration::from_secs(10);
/// Time after which a counted load times out, on a server that a profiler slows down.
const COUNTED_AT_MOST: Duration = Duration::from_secs(300);

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Question {
    /// `CheckRateLimit`, one call per check.
    Check,
    /// `ShouldRateLimit`, one call per check.
    Envoy,
    /// `CheckStream`, one call for all checks.
    Stream,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Passed(Duration),
    /// After this number of calls per request in flight.
    Asked(u64),
}

impl Until {
    fn is_reached(self, start: Instant, answered: u64) -> bool {
        match self {
            Self::Passed(duration) => now() - start >= duration,
            Self::Asked(times) => answered >= times,
        }
    }

    /// Returns the time after which the load times out.
    fn at_most(self) -> Duration {
        match self {
            Self::Passed(duration) => duration + GRACE,
            Self::Asked(_) => COUNTED_AT_MOST,
        }
    }
}

/// Loads the server on `port` in a closed loop. Returns the number of responses and the duration.
///
/// # Errors
/// If the server returns an error or is stuck.
pub async fn run(port: u16, question: Question, until: Until) -> Result<(u64, Duration)> {
    let start = now();
    let mut tasks = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let address = format!("http://127.0.0.1:{port}");
        let channel =
            Endpoint::from_shared(address)?.tcp_nodelay(true).connect().await.context("connecting")?;
        for stream in 0..STREAMS {
            let first = IDENTITIES * (connection * STREAMS + stream) / (CONNECTIONS * STREAMS);
            let channel = channel.clone();
            let is_enough = move |answered| until.is_reached(start, answered);
            tasks.spawn(async move {
                match question {
                    Question::Check => check(channel, first, is_enough).await,
                    Question::Envoy => envoy(channel, first, is_enough).await,
                    Question::Stream => self::stream(channel, first, is_enough).await,
                }
            });
        }
    }
    let mut total = 0;
    let all = async {
        while let Some(answered) = tasks.join_next().await {
            total += answered.context("a task died")??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(until.at_most(), all).await.context("the server is stuck")??;
    ensure!(total > 0, "no responses");
    Ok((total, now() - start))
}

fn request(identity: usize) -> CheckRequest {
    CheckRequest {
        identifier: format!("user-{identity}"),
        endpoint: "/api/v1/orders".into(),
        ..CheckRequest::default()
    }
}

async fn check(channel: Channel, first: usize, is_enough: impl Fn(u64) -> bool) -> Result<u64> {
    let mut client = RateLimiterClient::new(channel);
    let (mut answered, mut identity) = (0, first);
    while !is_enough(answered) {
        client.check_rate_limit(request(identity)).await?;
        answered += 1;
        identity = (identity + STEP) % IDENTITIES;
    }
    Ok(answered)
}

async fn envoy(channel: Channel, first: usize, is_enough: impl Fn(u64) -> bool) -> Result<u64> {
    let mut client = RateLimitServiceClient::new(channel);
    let (mut answered, mut identity) = (0, first);
    while !is_enough(answered) {
        let value = format!("10.{}.{}.{}", identity >> 16, identity >> 8 & 255, identity & 255);
        let entries = vec![Entry { key: "remote_address".into(), value }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 };
        client.should_rate_limit(request).await?;
        answered += 1;
        identity = (identity + STEP) % IDENTITIES;
    }
    Ok(answered)
}

async fn stream(channel: Channel, first: usize, is_enough: impl Fn(u64) -> bool) -> Result<u64> {
    let mut client = RateLimiterClient::new(channel);
    let (sender, receiver) = tokio::sync::mpsc::channel(PIPELINED);
    let mut identity = first;
    for _ in 0..PIPELINED {
        sender.send(request(identity)).await?;
        identity = (identity + STEP) % IDENTITIES;
    }
    let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut answers = client.check_stream(receiver).await?.into_inner();
    let mut answered = 0;
    while answers.message().await?.is_some() {
        answered += 1;
        if is_enough(answered) {
            break;
        }
        sender.send(request(identity)).await?;
        identity = (identity + STEP) % IDENTITIES;
    }
    Ok(answered)
}
