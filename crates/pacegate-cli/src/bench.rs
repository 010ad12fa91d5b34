//! `pacegate bench`: a load test of a running service.

mod grpc;
mod keys;
mod load;
mod output;
mod progress;
mod record;
mod rest;
mod shared;
mod summary;
mod template;

use std::io::{Write, stderr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, value_parser};
use tokio::signal::unix::{SignalKind, signal};

use crate::Failure;
use crate::client::Address;
use grpc::{Stream, Unary};
use keys::{Distribution, Keys};
use load::{Caller, Ended, Load, Plan};
use output::Output;
use record::Record;
use rest::Rest;
use shared::SharedConnection;
pub(crate) use summary::count;
use summary::{Setting, Summary};
use template::CheckTemplate;

const CONCURRENCY: usize = 64;
const CONNECTIONS_MAX: u64 = 10_000;
/// Maximum number of concurrent requests per HTTP/2 connection. Services accept 256 by default.
const STREAMS_MAX: usize = 250;
/// Default number of callers per HTTP/2 connection.
const STREAMS: usize = 16;
const DURATION: Duration = Duration::from_secs(10);
const DURATION_MAX: Duration = Duration::from_secs(3_600);
const WARMUP: Duration = Duration::from_secs(1);

/// Load-tests a running service and reports rate, latency, allowed and blocked requests.
///
/// With --rate, requests are sent at a constant rate whether or not earlier ones have a response,
/// and latency counts from the time a request was due. Without it, each caller sends its next
/// request after the response to the last one, and latency is corrected for coordinated omission.
/// Checks are charged like any others: use --user-prefix and --endpoint to keep them apart from
/// real users.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate bench --rate 5000 --duration 30s\n  pacegate bench --grpc --stream --concurrency 128\n  pacegate bench https://pacegate.example.com --ca ca.pem --requests 10000 --json -"
)]
pub(crate) struct Bench {
    /// The address of the service [default: http://127.0.0.1:8080, or http://127.0.0.1:8081 with
    /// --grpc].
    url: Option<String>,
    /// Sends checks over gRPC, one CheckRateLimit call each.
    #[arg(long)]
    grpc: bool,
    /// Sends checks over gRPC streams, one for each caller.
    #[arg(long, requires = "grpc")]
    stream: bool,
    /// Sends checks over REST on HTTP/2, so that callers share connections.
    #[arg(long, conflicts_with = "grpc")]
    http2: bool,
    /// Requests per second, at a constant rate.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Number of connections [default: one for each caller with HTTP/1.1, one for every 16 callers
    /// otherwise].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: Option<u64>,
    /// Number of callers. Each has one request in flight at a time [default: 64].
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    concurrency: Option<u64>,
    /// Duration of the test, after the warm-up [default: 10s, or as long as --requests take].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,
    /// Stops after this number of requests, all of which are measured.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=3_600_000_000))]
    requests: Option<u64>,
    /// Duration of the warm-up, which is not measured [default: 1s, or none with --requests].
    #[arg(long, value_name = "DURATION", value_parser = duration_or_none, conflicts_with = "requests")]
    warmup: Option<Duration>,
    /// Time after which a request fails.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Number of keys that requests are distributed over.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// How requests are distributed over the keys.
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Seed of the random order of keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prefix of the keys, before their numbers. Keys of the dimension ip are addresses.
    #[arg(long, value_name = "TEXT", default_value = "bench-")]
    user_prefix: String,
    /// Dimension of the keys.
    #[arg(long, value_name = "NAME", default_value = "user")]
    dimension: String,
    /// Path of the requests.
    #[arg(long, value_name = "PATH", default_value = "/")]
    endpoint: String,
    /// Method of the requests, such as GET. Without it, the rules of every method apply.
    #[arg(long)]
    method: Option<String>,
    /// Cost of each request.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=1_000_000_000))]
    cost: u32,
    /// The API key to send, if the service requires one.
    #[arg(long, value_name = "KEY", env = "PACEGATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Trusts only the certificate authorities in this PEM file.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Writes the figures also as JSON. `-` writes them to the standard output, and everything else
    /// to the standard error output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let default = if self.grpc { "http://127.0.0.1:8081" } else { "http://127.0.0.1:8080" };
        let url = self.url.as_deref().unwrap_or(default);
        let address = Address::parse(url, self.ca.as_deref()).map_err(Failure::Misused)?;
        if self.grpc && address.has_path() {
            return Err(Failure::Misused(anyhow!("`{url}` must not have a path: gRPC does not support one")));
        }
        let setting = self.setting(&address).map_err(Failure::Misused)?;
        let template = CheckTemplate::new(
            &self.dimension,
            &self.user_prefix,
            &self.endpoint,
            self.method.as_deref(),
            self.cost,
            self.api_key.as_deref().filter(|secret| !secret.is_empty()),
        );
        let template = Arc::new(template.map_err(Failure::Misused)?);
        let mut output = Output::new(self.json.as_deref()).map_err(Failure::Misused)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let target = address.url();
        let _ = writeln!(
            stderr(),
            "load-testing {target} ({}) with {} callers; press Ctrl-C to stop",
            setting.protocol,
            setting.concurrency
        );
        let (ended, record) = runtime.block_on(self.load(&setting, Arc::new(address), template))?;
        let rejected = ended.rejected.clone();
        let decided = record.decided();
        let errors: Vec<String> = record.errors.keys().map(ToString::to_string).collect();
        if decided > 0 || rejected.is_none() {
            output.write(&Summary::new(setting, ended, record))?;
        }
        match rejected {
            Some(reason) => Err(Failure::Misused(anyhow!("{target} rejected the checks: {reason}"))),
            None if decided == 0 && !errors.is_empty() => {
                let errors = errors.join(", ");
                Err(anyhow!(
                    "{target} responded to no check ({errors}); REST and gRPC have different addresses"
                )
                .into())
            }
            None => Ok(()),
        }
    }

    fn setting(&self, address: &Address) -> anyhow::Result<Setting> {
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
        let default = if shared { callers.div_ceil(STREAMS) } else { callers };
        let connections = connections.unwrap_or(default);
        if connections > callers {
            return Err(anyhow!(
                "--connections: must not exceed the number of callers ({callers}, --concurrency), got {connections}"
            ));
        }
        if !shared && connections < callers {
            return Err(anyhow!(
                "--connections: {callers} callers need {callers} connections with HTTP/1.1; --http2 and --grpc share connections"
            ));
        }
        if shared && callers > connections.saturating_mul(STREAMS_MAX) {
            return Err(anyhow!(
                "--concurrency: a connection carries at most {STREAMS_MAX} callers; {callers} callers need --connections {}",
                callers.div_ceil(STREAMS_MAX)
            ));
        }
        Ok(Setting {
            target: address.url(),
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

    /// Runs the load. All callers connect first, so that no request waits for a connection.
    async fn load(
        &self,
        setting: &Setting,
        address: Arc<Address>,
        template: Arc<CheckTemplate>,
    ) -> anyhow::Result<(Ended, Record)> {
        let unreachable = || format!("could not reach {}", setting.target);
        let (plan, callers) = (self.plan(), setting.concurrency);
        if !self.grpc && !self.http2 {
            let mut rest = Vec::with_capacity(callers);
            for _ in 0..callers {
                rest.push(Rest::connect(address.clone(), template.clone()).await.with_context(unreachable)?);
            }
            return run(plan, rest).await;
        }
        if self.http2 {
            let connections = connect(&address, setting.connections).await.with_context(unreachable)?;
            let rest = (0..callers).map(|number| {
                let connection = connections[number % connections.len()].clone();
                Rest::sharing(connection, address.clone(), template.clone())
            });
            return run(plan, rest.collect::<anyhow::Result<Vec<_>>>()?).await;
        }
        let connections = connect(&address, setting.connections).await.with_context(unreachable)?;
        let calls = (0..callers).map(|number| Unary {
            connection: connections[number % connections.len()].clone(),
            address: address.clone(),
            template: template.clone(),
        });
        if self.stream {
            let streams: Vec<Stream> = calls.map(|calls| Stream { calls, open: None }).collect();
            return run(plan, streams).await;
        }
        let calls: Vec<Unary> = calls.collect();
        run(plan, calls).await
    }
}

async fn connect<B>(address: &Arc<Address>, count: usize) -> anyhow::Result<Vec<SharedConnection<B>>>
where
    B: hyper::body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static,
{
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(SharedConnection::connect(address.clone()).await?);
    }
    Ok(connections)
}

async fn run<C: Caller>(plan: Plan, callers: Vec<C>) -> anyhow::Result<(Ended, Record)> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let load = Load::start(plan)?;
    load.pace();
    let running = load.run(callers, async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    let ended = tokio::select! {
        ended = running => ended,
        never = progress::show(&load) => match never {},
    };
    progress::clear();
    Ok((ended, load.records.total()?))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|_| "expected a duration such as 10s or 5m")?;
    if duration < Duration::from_millis(1) || duration > DURATION_MAX {
        return Err("must be between 1ms and 1h".to_owned());
    }
    Ok(duration)
}

fn duration_or_none(text: &str) -> Result<Duration, String> {
    if ["0", "0s"].contains(&text) { Ok(Duration::ZERO) } else { duration(text) }
}
