//! A client that limits its own calls to a partner API, to 20 per second with a burst of 5, and
//! waits for its decision.
//!
//! ```text
//! python3 -m http.server 8000 --bind 127.0.0.1 &
//! cargo run -p pacegate-examples --bin outgoing_calls -- http://127.0.0.1:8000/ 15
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::http::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pacegate::{Check, Limit, Limiter};
use tokio::time::Instant;

/// Maximum wait. A call that would have to wait longer is denied immediately.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url: Uri =
        arguments.next().context("missing argument: the URL to call")?.parse().context("invalid URL")?;
    let calls: u32 = arguments
        .next()
        .context("missing argument: the number of calls")?
        .parse()
        .context("invalid number of calls")?;

    let limiter = Limiter::builder().plan("partner-api", [Limit::per_second(20).burst(5)]).build()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let start = Instant::now();
    for call in 1..=calls {
        let decision = limiter.wait(&Check::key("partner").plan("partner-api"), WAIT_MAX).await?;
        anyhow::ensure!(
            decision.allowed(),
            "the wait would exceed {WAIT_MAX:?}; retry in {:?}",
            decision.retry_after()
        );
        let response = client.get(url.clone()).await?;
        println!("{:>4} ms  call {call}: {}", start.elapsed().as_millis(), response.status());
    }
    Ok(())
}
