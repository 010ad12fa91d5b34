//! A minimal axum service: it parses the JSON of the request and returns a response of the same
//! size.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::PATH;

/// Time after which the server exits, in case the program that started it has died.
const LIFETIME: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
struct CheckRequest {
    user_id: String,
    endpoint: String,
}

/// The fields of the response of the service.
#[derive(Serialize)]
struct CheckResponse<'a> {
    allowed: bool,
    limit: u32,
    remaining: u32,
    reset_at: u64,
    strategy: &'a str,
    current_count: u32,
    state: &'a str,
    rule: &'a str,
    reason: Option<&'a str>,
    degraded: bool,
    limits: &'a [LimitResponse<'a>],
}

#[derive(Serialize)]
struct LimitResponse<'a> {
    rule: &'a str,
    limit: u32,
    remaining: u32,
    reset_at: u64,
    strategy: &'a str,
}

const LIMIT: LimitResponse<'_> = LimitResponse {
    rule: "default",
    limit: 100,
    remaining: 99,
    reset_at: 1_790_000_000,
    strategy: "token_bucket",
};

/// Padding of the response to the requested size.
#[derive(Debug)]
struct Filling {
    rule: String,
    limits: usize,
}

impl Filling {
    fn new(bytes: usize) -> Result<Self> {
        for limits in [1, 0] {
            let empty = Self { rule: String::new(), limits };
            let length = serde_json::to_vec(&empty.answer())?.len();
            if let Some(missing) = bytes.checked_sub(length) {
                return Ok(Self { rule: "x".repeat(missing), limits });
            }
        }
        bail!("{bytes} bytes are too few for a response")
    }

    fn answer(&self) -> CheckResponse<'_> {
        CheckResponse {
            allowed: true,
            limit: 100,
            remaining: 99,
            reset_at: 1_790_000_000,
            strategy: "token_bucket",
            current_count: 1,
            state: "normal",
            rule: &self.rule,
            reason: None,
            degraded: false,
            limits: &[LIMIT][..self.limits],
        }
    }
}

/// Serves responses of `bytes` bytes on `port` of the loopback address.
///
/// # Errors
/// If the port is in use or the size is too small.
pub fn serve(port: u16, bytes: usize) -> Result<()> {
    let filling = Arc::new(Filling::new(bytes)?);
    // The default number of worker threads, one per available core, as in the service.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.context("binding the port")?;
        let router = Router::new().route(PATH, post(check)).with_state(filling);
        let server = async { axum::serve(listener, router).await };
        match tokio::time::timeout(LIFETIME, server).await {
            Ok(served) => served.context("serving"),
            Err(_) => Ok(()),
        }
    })
}

async fn check(State(filling): State<Arc<Filling>>, Json(request): Json<CheckRequest>) -> Response {
    std::hint::black_box((&request.user_id, &request.endpoint));
    Json(filling.answer()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_size_asked_for() {
        for bytes in [200, 300, 317, 1_000] {
            let filling = Filling::new(bytes).unwrap();
            assert_eq!(serde_json::to_vec(&filling.answer()).unwrap().len(), bytes);
        }
        Filling::new(20).unwrap_err();
    }
}
