//! One program for both modes: `mode: embedded` in its configuration counts in the process, `mode:
//! service` calls a Pacegate service.
//!
//! ```text
//! cargo run -p pacegate-examples --bin service_mode -- examples/service_mode.yaml
//!
//! cargo run -- serve --config examples/service_mode.yaml &
//! PACEGATE_MODE=service cargo run -p pacegate-examples --bin service_mode -- examples/service_mode.yaml 127.0.0.1:3001
//! PACEGATE_MODE=service cargo run -p pacegate-examples --bin service_mode -- examples/service_mode.yaml 127.0.0.1:3002
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use pacegate_tower::PacegateLayer;
use pacegate_tower::resolve::address;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().context("missing argument: the configuration file")?;

    // Only the configuration selects the mode; the program is the same.
    let limiter = pacegate_connect::from_config(file).await?;
    let limits = PacegateLayer::builder(limiter).by(address()).plan("public").build()?;
    let app = Router::new().route("/", get("hello\n")).layer(limits);

    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
