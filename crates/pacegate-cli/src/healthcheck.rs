//! `pacegate healthcheck`: the health of a running service as an exit code.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http_body_util::Full;
use hyper::Request;
use serde_json::Value;

use crate::Failure;
use crate::client::{Service, ServiceArguments};
use crate::output::say;

/// Shorter than the timeout of the container runtime, so that the reason is printed.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the health of a running service, for container health checks.
///
/// Exit code 0: healthy, 1: not healthy. It charges no limit and needs no API key.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  pacegate healthcheck\n  pacegate healthcheck --live --server http://127.0.0.1:8080\n  pacegate healthcheck --server https://localhost:8080 --ca ca.pem"
)]
pub(crate) struct Healthcheck {
    /// Checks that the process is alive (/healthz) instead of ready for traffic (/readyz).
    ///
    /// A service without its store is alive, but not ready.
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    service: ServiceArguments,
}

impl Healthcheck {
    pub(crate) fn run(self) -> Result<(), Failure> {
        // A container runtime knows two results: healthy is 0 and everything else is 1.
        let service = self.service.service().map_err(|failure| match failure {
            Failure::Misused(error) => Failure::Failed(error),
            failure => failure,
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let (path, healthy) = if self.live { ("/healthz", "alive") } else { ("/readyz", "ready") };
        runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, probe(&service, path, healthy)).await })
            .map_err(|_| anyhow!("{} did not respond within {TIMEOUT:?}", service.url()))??;
        say(&format!("{} is {healthy}", service.url()));
        Ok(())
    }
}

async fn probe(service: &Service, path: &str, healthy: &str) -> anyhow::Result<()> {
    let response = service.send(Request::get(path).body(Full::default())?).await?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let body = service.read(response.into_body()).await?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reason = body["error"]["message"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    Err(anyhow!("{} is not {healthy}: {path} returned {status}{reason}", service.url()))
}
