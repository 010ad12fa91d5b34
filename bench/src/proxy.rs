//! A minimal reverse proxy: the same server and client pool as `pacegate proxy`, without limits and
//! with unchanged headers.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{Either, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::http::uri::{Authority, Scheme};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

/// Time after which the server exits, in case the program that started it has died.
const LIFETIME: Duration = Duration::from_secs(600);

type Answer = Response<Either<Incoming, Empty<Bytes>>>;

/// Proxies `port` of the loopback address to its port `upstream`.
///
/// # Errors
/// If the port is in use.
pub fn serve(port: u16, upstream: u16) -> Result<()> {
    let upstream: Authority = format!("127.0.0.1:{upstream}").parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.context("binding the port")?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let serve = async {
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (client, upstream) = (client.clone(), upstream.clone());
                tokio::spawn(async move {
                    let service =
                        service_fn(move |request| forward(client.clone(), upstream.clone(), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // The load closes its connections at the end.
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        };
        match tokio::time::timeout(LIFETIME, serve).await {
            Ok(served) => served,
            Err(_) => Ok(()),
        }
    })
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    upstream: Authority,
    mut request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    target.scheme = Some(Scheme::HTTP);
    target.authority = Some(upstream);
    *request.uri_mut() = Uri::from_parts(target).unwrap_or_default();
    Ok(match client.request(request).await {
        Ok(response) => response.map(Either::Left),
        Err(_) => {
            let mut response = Response::new(Either::Right(Empty::new()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    })
}
