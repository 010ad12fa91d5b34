//! A tonic server with a limit per address. Its only service is the standard health check.
//!
//! ```text
//! cargo run -p pacegate-examples --bin tonic_server
//! printf '\0\0\0\0\0' | curl -i --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' \
//!     --data-binary @- http://127.0.0.1:3000/grpc.health.v1.Health/Check -o -
//! ```

#![expect(clippy::print_stdout, reason = "an example prints to its terminal")]

use pacegate::{Limit, Limiter};
use pacegate_tower::PacegateLayer;
use pacegate_tower::resolve::address;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::builder().plan("calls", [Limit::per_minute(1).burst(3)]).build()?;
    // A denied call gets RESOURCE_EXHAUSTED, with `retry-after` in its metadata, and never reaches
    // a service.
    let limits = PacegateLayer::builder(limiter).by(address()).plan("calls").build()?;
    let (_, health) = tonic_health::server::health_reporter();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = Server::builder().layer(limits).add_service(health);
    server.serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}
