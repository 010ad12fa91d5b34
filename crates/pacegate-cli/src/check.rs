//! `pacegate check`: checks one request against a running service.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{ArgGroup, Args};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use pacegate::identity;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::client::{Service, ServiceArguments};
use crate::output::say;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Checks one request against a running service and charges its limits if it is allowed.
///
/// Give at least one identity: --user, --ip, --key or --identity. The limits of all of them are
/// charged together or not at all. With --explain nothing is charged, and every rule is listed with
/// the reason why it applies or does not. Exit code 0: allowed, 3: denied.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("identities").args(["user", "ip", "key", "identity"]).required(true).multiple(true),
    after_help = "Examples:\n  pacegate check --user alice --endpoint /api/v1/orders --cost 2\n  pacegate check --ip 203.0.113.7 --method POST --endpoint /login\n  pacegate check --user alice --tier premium --endpoint /api/v1/orders --explain\n  pacegate check --user alice --key k1 --identity tenant=acme --plan gold --endpoint /"
)]
pub(crate) struct Check {
    /// The user who makes the request: dimension `user`.
    #[arg(long, value_name = "ID")]
    user: Option<String>,
    /// The address of the client: dimension `ip`.
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// The API key of the request: dimension `apikey`. Sent as it is.
    ///
    /// `pacegate proxy` and the tower layer count API keys by their SHA-256 in hexadecimal; pass
    /// that to check one of their limits. --api-key is the key for the service itself.
    #[arg(long, value_name = "ID")]
    key: Option<String>,
    /// An identity in any dimension, such as tenant=acme. Can be repeated.
    #[arg(long, value_name = "DIMENSION=ID", value_parser = parse_identity)]
    identity: Vec<(String, String)>,
    /// The path of the request.
    #[arg(long, value_name = "PATH")]
    endpoint: String,
    /// The method of the request, such as GET. Without it, the rules of every method apply.
    #[arg(long)]
    method: Option<String>,
    /// What the request costs.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// A plan that applies in addition to the rules. Can be repeated.
    #[arg(long, value_name = "NAME")]
    plan: Vec<String>,
    /// The tier of the user. Without it, the tier in the catalog applies.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// Explains the decision instead of charging the limits.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    service: ServiceArguments,
}

impl Check {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let identities = self.identities().map_err(Failure::Misused)?;
        let service = self.service.service()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not start the runtime")?;
        let (status, response) = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, self.send(&identities, &service)).await })
            .map_err(|_| anyhow!("{} did not respond within {TIMEOUT:?}", service.url()))??;
        match status {
            StatusCode::OK | StatusCode::TOO_MANY_REQUESTS => {
                let decision = if self.explain { &response["decision"] } else { &response };
                let mut text = self.describe(&identities, decision);
                if self.explain {
                    text.push_str(&describe_rules(&response));
                }
                say(text.trim_end());
                if decision["allowed"] == true { Ok(()) } else { Err(Failure::Denied) }
            }
            _ => Err(service.rejected(status, &response)),
        }
    }

    /// The identities, each with its dimension.
    fn identities(&self) -> anyhow::Result<Vec<(&str, &str)>> {
        let named = [(identity::USER, &self.user), (identity::IP, &self.ip), (identity::API_KEY, &self.key)];
        let named = named.into_iter().filter_map(|(dimension, id)| Some((dimension, id.as_deref()?)));
        let others = self.identity.iter().map(|(dimension, id)| (dimension.as_str(), id.as_str()));
        let mut identities: Vec<(&str, &str)> = Vec::new();
        for (dimension, id) in named.chain(others) {
            if identities.iter().any(|(other, _)| *other == dimension) {
                return Err(anyhow!("--identity: duplicate dimension `{dimension}`"));
            }
            identities.push((dimension, id));
        }
        Ok(identities)
    }

    async fn send(
        &self,
        identities: &[(&str, &str)],
        service: &Service,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let keys: Map<String, Value> =
            identities.iter().map(|(dimension, id)| ((*dimension).to_owned(), (*id).into())).collect();
        let mut body = json!({"keys": keys, "endpoint": self.endpoint, "cost": self.cost});
        if let Some(method) = &self.method {
            body["method"] = method.as_str().into();
        }
        if !self.plan.is_empty() {
            body["plans"] = self.plan.clone().into();
        }
        if let Some(tier) = &self.tier {
            body["tier"] = tier.as_str().into();
        }
        let path = if self.explain { "/api/v1/explain" } else { "/v1/rate-limit/check" };
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        service.json(request).await
    }

    fn describe(&self, identities: &[(&str, &str)], response: &Value) -> String {
        let verdict = if response["allowed"] == true { "allowed" } else { "denied" };
        let shown: Vec<String> =
            identities.iter().map(|(dimension, id)| format!("{dimension} {id}")).collect();
        let shown = shown.join(", ");
        let method = self.method.as_ref().map(|method| format!("{method} ")).unwrap_or_default();
        let mut text = format!("{verdict}: {shown}, {method}{}, cost {}\n", self.endpoint, self.cost);
        let Some(limits) = response["limits"].as_array().filter(|limits| !limits.is_empty()) else {
            text.push_str("  no limit applies\n");
            return text;
        };
        for limit in limits {
            let word = |name: &str| limit[name].as_str().unwrap_or("?").to_owned();
            let dimension =
                if identities.len() > 1 { format!(" by {}", word("dimension")) } else { String::new() };
            text.push_str(&format!(
                "  {}{dimension} ({}): {} of {} remaining, state {}{}\n",
                word("rule"),
                word("strategy"),
                limit["remaining"],
                limit["limit"],
                word("state"),
                shadow(limit),
            ));
        }
        match (response["retry_after_ms"].as_u64(), response["reason"].as_str()) {
            (Some(millis), _) => {
                text.push_str(&format!("  retry in {}.{:03} s\n", millis / 1_000, millis % 1_000));
            }
            (None, Some("COST_EXCEEDS_LIMIT")) => {
                text.push_str("  the cost exceeds the limit; retrying does not help\n")
            }
            _ => {}
        }
        text
    }
}

fn parse_identity(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((dimension, id)) if !dimension.is_empty() && !id.is_empty() => {
            Ok((dimension.to_owned(), id.to_owned()))
        }
        _ => Err("expected DIMENSION=ID, such as tenant=acme".to_owned()),
    }
}

/// Every rule of an explanation, and why it applies or does not.
fn describe_rules(explained: &Value) -> String {
    let rules = explained["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |rule: &Value| {
        let word = |name: &str| rule[name].as_str().unwrap_or("?").to_owned();
        format!("  {} on {}: {}\n", word("rule"), word("endpoint_pattern"), word("explanation"))
    };
    let tier = explained["tier"].as_str().map(|tier| format!(", tier {tier}")).unwrap_or_default();
    let mut text = format!("rules{tier}; nothing was charged:\n");
    text.extend(rules.iter().map(line));
    let total = explained["rules_total"].as_u64().unwrap_or_default();
    if let Some(more) = total.checked_sub(rules.len() as u64).filter(|more| *more > 0) {
        text.push_str(&format!("  {more} more do not apply\n"));
    }
    text
}

/// What a rule in shadow mode would have done, which does not show in the verdict.
fn shadow(limit: &Value) -> &'static str {
    match (limit["shadow"] == true, limit["allowed"] == false) {
        (false, _) => "",
        (true, false) => ", shadow",
        (true, true) => ", shadow: would be denied",
    }
}
