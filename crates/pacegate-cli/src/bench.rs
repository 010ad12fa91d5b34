//! `pacegate bench`: a load test of a running service.

mod grpc;
mod keys;
mod load;
mod output;
mod progress;
mod question;
mod record;
mod rest;
mod shared;
mod summary;

use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, value_parser};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::client::Place;
use grpc::{Stream, Unary};
use keys::{Distribution, Keys};
use load::{Caller, Ended, Load, Plan};
use output::Output;
use question::Question;
use record::Record;
use rest::Rest;
use shared::SharedConnection;
pub(crate) use summary::count;
use summary::{Setting, Summary};

const CONCURRENCY: usize = 64;
const CONNECTIONS_MAX: u64 = 10_000;
/// How many requests one connection carries at once over HTTP/2: services take 256 unless they are told otherwise.
const STREAMS_MAX: usize = 250;
/// How many of them one connection is given unless it is said.
const STREAMS: usize = 16;
const DURATION: Duration = Duration::from_secs(10);
const DURATION_MAX: Duration = Duration::from_secs(3_600);
const WARMUP: Duration = Duration::from_secs(1);

/// Puts load on a running service, and says how it answers: rate, latency, allowed and blocked.
///
/// With --rate, requests are sent at a constant rate whether or not earlier ones are answered, and latency counts from when a request was due, so that a
/// service that stands still cannot hide it. Without, each caller asks as fast as it is answered. Checks are charged like any others: use --user-prefix and
/// --endpoint to keep out of the way of real users.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate bench --rate 5000 --duration 30s\n  pacegate bench --grpc --stream --concurrency 128\n  pacegate bench https://pacegate.example.com --ca ca.pem --requests 10000 --json -"
)]
pub(crate) struct Bench {
    /// The service [default: http://127.0.0.1:8080, or http://127.0.0.1:8081 with --grpc].
    url: Option<String>,
    /// Asks over gRPC, one CheckRateLimit for each check.
    #[arg(long)]
    grpc: bool,
    /// Asks over gRPC on streams of checks, one for each caller.
    #[arg(long, requires = "grpc")]
    stream: bool,
    /// Asks over REST on HTTP/2, so that callers share connections.
    #[arg(long, conflicts_with = "grpc")]
    http2: bool,
    /// Requests per second, at a constant rate.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// How many connections there are [default: one for each caller with HTTP/1.1, one for every 16 otherwise].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: Option<u64>,
    /// How many callers there are: each has one request under way at a time [default: 64].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    concurrency: Option<u64>,
    /// How long it takes, after the warm-up [default: 10s, or as long as --requests take].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Stops after so many requests, all of which count.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=3_600_000_000))]
    requests: Option<u64>,
    /// How long requests are sent before any of them counts [default: 1s, or none with --requests].
    #[arg(long, value_name = "DURATION", value_parser = duration_or_none, conflicts_with = "requests")]
    warmup: Option<Duration>,
    /// How long an answer may take.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// How many keys the requests are spread over.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// How they are spread.
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Which keys come in which order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What the keys are called, before their numbers; those of the dimension ip are addresses.
    #[arg(long, value_name = "TEXT", default_value = "bench-")]
    user_prefix: String,
    /// What is counted.
    #[arg(long, value_name = "NAME", default_value = "user")]
    dimension: String,
    /// Where requests go.
    #[arg(long, value_name = "PATH", default_value = "/")]
    endpoint: String,
    /// How much each takes.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1_000_000_000))]
    cost: u32,
    /// The API key, if the service wants one.
    #[arg(long, value_name = "KEY", env = "PACEGATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Trusts the certificates that an authority in this file signed, and no others.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Writes the figures as JSON as well; `-` writes them to the output and everything else to the error output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let default = if self.grpc { "http://127.0.0.1:8081" } else { "http://127.0.0.1:8080" };
        let url = self.url.as_deref().unwrap_or(default);
        let place = Place::parse(url, self.ca.as_deref()).map_err(Failure::Misused)?;
        if self.grpc && place.has_path() {
            return Err(Failure::Misused(anyhow!("`{url}` must not have a path: gRPC knows none")));
        }
        let setting = self.setting(&place).map_err(Failure::Misused)?;
        let question = Question::new(
            &self.dimension,
            &self.user_prefix,
            &self.endpoint,
            self.cost,
            self.api_key.as_deref().filter(|secret| !secret.is_empty()),
        );
        let question = Arc::new(question.map_err(Failure::Misused)?);
        let mut output = Output::new(self.json.as_deref()).map_err(Failure::Misused)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let target = place.url();
        let _ = writeln!(
            stderr(),
            "asking {target} ({}) with {} callers; Ctrl-C ends it",
            setting.protocol,
            setting.concurrency
        );
        let (ended, record) = runtime.block_on(self.load(&setting, Arc::new(place), question))?;
        let refused = ended.refused.clone();
        let answered = record.answered();
        let errors: Vec<String> = record.errors.keys().map(ToString::to_string).collect();
        if answered > 0 || refused.is_none() {
            output.write(&Summary::new(setting, ended, record))?;
        }
        match refused {
            Some(reason) => Err(Failure::Misused(anyhow!("{target} refuses the checks: {reason}"))),
            None if answered == 0 && !errors.is_empty() => {
                let errors = errors.join(", ");
                Err(anyhow!("{target} did not answer a single check ({errors}); REST and gRPC have addresses of their own").into())
            }
            None => Ok(()),
        }
    }

    fn setting(&self, place: &Place) -> anyhow::Result<Setting> {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (connections, concurrency) = (self.connections.map(number), self.concurrency.map(number));
        let (protocol, protocol_id) = match (self.grpc, self.stream, self.http2) {
            (true, false, _) => ("gRPC", "grpc"),
            (true, true, _) => ("gRPC streams", "grpc_stream"),
            (false, _, true) => ("REST over HTTP/2", "rest_http2"),
            (false, _, false) => ("REST over HTTP/1.1", "rest"),
        };
        let shared = self.grpc || self.http2;
        let callers = concurrency.or(connections.filter(|_| !shared)).unwrap_or(CONCURRENCY);
        let callers = if concurrency.is_none() { callers.max(connections.unwrap_or(1)) } else { callers };
        let usual = if shared { callers.div_ceil(STREAMS) } else { callers };
        let connections = connections.unwrap_or(usual);
        if connections > callers {
            return Err(anyhow!(
                "--connections: {connections} are more than the {callers} callers (--concurrency)"
            ));
        }
        if !shared && connections < callers {
            return Err(anyhow!(
                "--connections: HTTP/1.1 carries one request at a time, so {callers} callers need {callers} connections; --http2 and --grpc share them"
            ));
        }
        if shared && callers > connections.saturating_mul(STREAMS_MAX) {
            return Err(anyhow!(
                "--concurrency: one connection carries {STREAMS_MAX} callers at most; {callers} need --connections {}",
                callers.div_ceil(STREAMS_MAX)
            ));
        }
        Ok(Setting {
            target: place.url(),
            protocol,
            protocol_id,
            connections,
            concurrency: callers,
            keys: self.keys,
            distribution: self.distribution.name(),
            seed: self.seed,
            rate: self.rate,
        })
    }

    fn plan(&self) -> Plan {
        let (duration, warmup) = match self.requests {
            Some(_) => (DURATION_MAX, Duration::ZERO),
            None => (DURATION, WARMUP),
        };
        Plan {
            rate: self.rate,
            requests: self.requests,
            duration: self.duration.unwrap_or(duration),
            warmup: self.warmup.unwrap_or(warmup),
            timeout: self.timeout,
            keys: Keys::new(self.keys, self.distribution, self.seed),
        }
    }

    /// Connects all callers first, so that no request waits for that.
    async fn load(
        &self,
        setting: &Setting,
        place: Arc<Place>,
        question: Arc<Question>,
    ) -> anyhow::Result<(Ended, Record)> {
        let unreachable = || format!("could not reach {}", setting.target);
        let (plan, callers) = (self.plan(), setting.concurrency);
        if !self.grpc && !self.http2 {
            let mut rest = Vec::with_capacity(callers);
            for _ in 0..callers {
                rest.push(Rest::connect(place.clone(), question.clone()).await.with_context(unreachable)?);
            }
            return run(plan, rest).await;
        }
        if self.http2 {
            let connections = connect(&place, setting.connections).await.with_context(unreachable)?;
            let rest = (0..callers).map(|number| {
                let connection = connections[number % connections.len()].clone();
                Rest::sharing(connection, place.clone(), question.clone())
            });
            return run(plan, rest.collect::<anyhow::Result<Vec<_>>>()?).await;
        }
        let connections = connect(&place, setting.connections).await.with_context(unreachable)?;
        let calls = (0..callers).map(|number| Unary {
            connection: connections[number % connections.len()].clone(),
            place: place.clone(),
            question: question.clone(),
        });
        if self.stream {
            let streams: Vec<Stream> = calls.map(|calls| Stream { calls, open: None }).collect();
            return run(plan, streams).await;
        }
        let calls: Vec<Unary> = calls.collect();
        run(plan, calls).await
    }
}

async fn connect<B>(place: &Arc<Place>, count: usize) -> anyhow::Result<Vec<SharedConnection<B>>>
where
    B: hyper::body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static,
{
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(SharedConnection::connect(place.clone()).await?);
    }
    Ok(connections)
}

async fn run<C: Caller>(plan: Plan, callers: Vec<C>) -> anyhow::Result<(Ended, Record)> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let load = Load::start(plan)?;
    load.pace();
    let asking = load.run(callers, async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    let ended = tokio::select! {
        ended = asking => ended,
        never = progress::show(&load) => match never {},
    };
    progress::clear();
    Ok((ended, load.records.total()?))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|_| "must be a duration like 10s or 5m")?;
    if duration < Duration::from_millis(1) || duration > DURATION_MAX {
        return Err("must be between 1ms and 1h".to_owned());
    }
    Ok(duration)
}

fn duration_or_none(text: &str) -> Result<Duration, String> {
    if ["0", "0s"].contains(&text) { Ok(Duration::ZERO) } else { duration(text) }
}
