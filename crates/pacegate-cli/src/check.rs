//! `pacegate check`: asks a running service whether one request may pass.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

use crate::Failure;
use crate::client::{Service, ServiceArguments};
use crate::output::say;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a running service whether one request may pass, and charges it if so. Exit code 0: allowed, 3: denied.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  pacegate check --user alice --endpoint /api/v1/orders --cost 2")]
pub(crate) struct Check {
    /// Who makes the request.
    #[arg(long)]
    user: String,
    /// Where it goes.
    #[arg(long)]
    endpoint: String,
    /// How much it takes.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    #[command(flatten)]
    service: ServiceArguments,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let service = self.service.service()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let (status, answer) = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, self.ask(&service)).await })
            .map_err(|_| anyhow!("{} did not answer within {TIMEOUT:?}", service.url()))??;
        match status {
            StatusCode::OK | StatusCode::TOO_MANY_REQUESTS => {
                say(describe(&self, &answer).trim_end());
                if status == StatusCode::OK { Ok(()) } else { Err(Failure::Denied) }
            }
            _ => {
                let message = answer["error"]["message"].as_str().unwrap_or("no reason given");
                let failure = anyhow!("{} answered {status}: {message}", service.url());
                Err(if status.is_client_error() {
                    Failure::Misused(failure)
                } else {
                    Failure::Failed(failure)
                })
            }
        }
    }

    async fn ask(&self, service: &Service) -> anyhow::Result<(StatusCode, Value)> {
        let body = json!({"user_id": self.user, "endpoint": self.endpoint, "cost": self.cost});
        let request = Request::post("/v1/rate-limit/check")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = service.send(request).await?;
        let status = response.status();
        let body = service.read(response.into_body()).await?;
        let answer = serde_json::from_slice(&body).with_context(|| {
            format!("{} is not a Pacegate service: its answer is not JSON", service.url())
        })?;
        Ok((status, answer))
    }
}

fn describe(check: &Check, answer: &Value) -> String {
    let allowed = answer["allowed"] == true;
    let verdict = if allowed { "allowed" } else { "denied" };
    let mut text = format!("{verdict}: {} at {}, cost {}\n", check.user, check.endpoint, check.cost);
    let Some(limits) = answer["limits"].as_array().filter(|limits| !limits.is_empty()) else {
        text.push_str("  no limit applies\n");
        return text;
    };
    for limit in limits {
        let word = |name: &str| limit[name].as_str().unwrap_or("?").to_owned();
        text.push_str(&format!(
            "  {} ({}): {} of {} left, state {}\n",
            word("rule"),
            word("strategy"),
            limit["remaining"],
            limit["limit"],
            word("state"),
        ));
    }
    match (answer["retry_after_ms"].as_u64(), answer["reason"].as_str()) {
        (Some(millis), _) => {
            text.push_str(&format!("  try again in {}.{:03} s\n", millis / 1_000, millis % 1_000));
        }
        (None, Some("COST_EXCEEDS_LIMIT")) => {
            text.push_str("  the cost is above the limit; waiting does not help\n")
        }
        _ => {}
    }
    text
}
