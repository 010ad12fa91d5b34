//! Functions with `#[rate_limit]`: the limit is checked before the function runs, and a denied call
//! returns an error.
//!
//! ```text
//! cargo run -p pacegate-examples --bin attribute
//! curl -i http://127.0.0.1:3000/greetings/alice
//! curl -i 'http://127.0.0.1:3000/exports/alice?rows=2500'
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use anyhow::anyhow;
use axum::Router;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::get;
use pacegate::{CheckError, Limit, Limiter, RateLimited, rate_limit};
use serde::Deserialize;

/// Counted per user. Both plans are charged, or none is.
#[rate_limit(key = "user:{user}", plan = "gold", plan = "daily")]
async fn greet(user: &str) -> Result<String, AppError> {
    Ok(format!("hello {user}\n"))
}

/// A handler with the attribute. An export costs 1 per started thousand rows.
#[rate_limit(key = format!("export:{}", user.0), plan = "exports", cost = export.rows.div_ceil(1_000).max(1))]
async fn export(user: Path<String>, export: Query<Export>) -> Result<String, AppError> {
    Ok(format!("{} rows for {}\n", export.rows, *user))
}

#[derive(Deserialize)]
struct Export {
    rows: u32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::builder()
        .plan("gold", [Limit::per_minute(1).burst(2)])
        .plan("daily", [Limit::per_hour(10)])
        .plan("exports", [Limit::per_hour(5)])
        .build()?;
    limiter.install().map_err(|_| anyhow!("a limiter is already installed"))?;
    let app = Router::new()
        .route("/greetings/{user}", get(async |user: Path<String>| greet(&user).await))
        .route("/exports/{user}", get(export));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// The error type of the functions.
struct AppError(RateLimited);

impl From<RateLimited> for AppError {
    fn from(limited: RateLimited) -> Self {
        Self(limited)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let status = match &self.0 {
            RateLimited::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            RateLimited::Failed(CheckError::InvalidIdentifier { .. }) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        // There is none if the cost exceeds the capacity.
        let retry_after =
            self.0.retry_after().map(|wait| [(RETRY_AFTER, wait.as_millis().div_ceil(1_000).to_string())]);
        (status, retry_after.map(AppendHeaders), format!("{}\n", self.0)).into_response()
    }
}
