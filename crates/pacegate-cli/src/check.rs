//! `pacegate check`: asks a running service whether one request may pass.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::say;

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

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
    /// The service.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// The API key, for a service that wants one.
    #[arg(long, value_name = "KEY", env = "PACEGATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if !self.server.starts_with("http://") {
            return Err(Failure::Misused(anyhow!(
                "--server must be an http:// address, not {}",
                self.server
            )));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let (status, answer) = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, self.ask()).await })
            .map_err(|_| anyhow!("{} did not answer within {TIMEOUT:?}", self.server))??;
        match status {
            StatusCode::OK | StatusCode::TOO_MANY_REQUESTS => {
                say(describe(&self, &answer).trim_end());
                if status == StatusCode::OK { Ok(()) } else { Err(Failure::Denied) }
            }
            _ => {
                let message = answer["error"]["message"].as_str().unwrap_or("no reason given");
                let failure = anyhow!("{} answered {status}: {message}", self.server);
                Err(if status.is_client_error() {
                    Failure::Misused(failure)
                } else {
                    Failure::Failed(failure)
                })
            }
        }
    }

    async fn ask(&self) -> anyhow::Result<(StatusCode, Value)> {
        let url = format!("{}/v1/rate-limit/check", self.server.trim_end_matches('/'));
        let body = json!({"user_id": self.user, "endpoint": self.endpoint, "cost": self.cost});
        let mut request = Request::post(&url)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .with_context(|| format!("{} is not an address", self.server))?;
        if let Some(key) = self.api_key.as_deref().filter(|key| !key.is_empty()) {
            let key =
                HeaderValue::from_str(key).context("--api-key: has characters that no header can have")?;
            request.headers_mut().insert("x-api-key", key);
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response =
            client.request(request).await.with_context(|| format!("could not reach {}", self.server))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body
            .map_err(|error| anyhow!(error))
            .with_context(|| format!("{} broke off its answer", self.server))?;
        let answer = serde_json::from_slice(&body.to_bytes())
            .with_context(|| format!("{} is not a Pacegate service: its answer is not JSON", self.server))?;
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
