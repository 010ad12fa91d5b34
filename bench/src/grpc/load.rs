//! The load: four connections with 32 requests in flight each, replaced as soon as they are
//! answered.

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

/// How many connections there are.
pub const CONNECTIONS: usize = 4;
/// How many requests each has in flight.
pub const STREAMS: usize = 32;
/// How many checks of one stream of checks are under way at once.
const PIPELINED: usize = 32;
/// How many identities the requests are spread over.
const IDENTITIES: usize = 10_000;
const STEP: usize = 7_919;
/// How long a stuck server is waited for.
const GRACE: Duration = Duration::from_secs(10);
/// How long a counted load may take, on a server that a profiler slows down.
const COUNTED_AT_MOST: Duration = Duration::from_secs(300);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Question {
    /// `CheckRateLimit`, one call a check.
    Check,
    /// `ShouldRateLimit`, one call a check.
    Envoy,
    /// `CheckStream`, one call for all checks.
    Stream,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// So long after its start.
    Passed(Duration),
    /// When each of the requests in flight was asked so often.
    Asked(u64),
}

impl Until {
    fn is_reached(self, start: Instant, answered: u64) -> bool {
        match self {
            Self::Passed(duration) => now() - start >= duration,
            Self::Asked(times) => answered >= times,
        }
    }

    /// How long all of it may take.
    fn at_most(self) -> Duration {
        match self {
            Self::Passed(duration) => duration + GRACE,
            Self::Asked(_) => COUNTED_AT_MOST,
        }
    }
}

/// Asks as often as the server on `port` answers; says how many answers came and how long it took.
///
/// # Errors
/// When the server answers with an error or gets stuck.
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
    ensure!(total > 0, "nothing was answered");
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
