//! A client that limits itself: it may call a partner's API 20 times a second, five times at once,
//! and waits for its turn.
//!
//! ```text
//! python3 -m http.server 8000 --bind 127.0.0.1 &
//! cargo run -p pacegate-examples --bin outgoing_calls -- http://127.0.0.1:8000/ 15
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its terminal")]

use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::http::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pacegate::{Check, Limit, Limiter};
use tokio::time::Instant;

/// A call that cannot have its turn by then fails at once instead of waiting.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url: Uri = arguments.next().context("say which URL to call")?.parse().context("is not a URL")?;
    let calls: u32 = arguments.next().context("say how often")?.parse().context("is not a number")?;

    let limiter = Limiter::builder().plan("partner-api", [Limit::per_second(20).burst(5)]).build()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let start = Instant::now();
    for call in 1..=calls {
        let turn = limiter.wait(&Check::key("partner").plan("partner-api"), WAIT_MAX).await?;
        anyhow::ensure!(turn.allowed(), "no turn within {WAIT_MAX:?}; retry in {:?}", turn.retry_after());
        let response = client.get(url.clone()).await?;
        println!("{:>4} ms  call {call}: {}", start.elapsed().as_millis(), response.status());
    }
    Ok(())
}
