//! A TLS client for HTTP/1.1, HTTP/2 and gRPC.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_proto::v1::rate_limiter_client::RateLimiterClient;
use pacegate_proto::v1::{CheckRequest, CheckResult, ResetRequest};
use pacegate_testkit::server::{Authority, Signed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::{Code, Streaming};
use tower::util::BoxCloneSyncService;

use crate::sockets::{Service, soon};

/// The protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Http1,
    Http2,
    Grpc,
}

pub const WIRES: [Wire; 3] = [Wire::Http1, Wire::Http2, Wire::Grpc];

impl Wire {
    pub fn address(self, service: &Service) -> SocketAddr {
        if self == Self::Grpc { service.grpc } else { service.http }
    }
}

/// The authorities that a client trusts, and the certificate it presents.
#[derive(Clone)]
pub struct Caller {
    authorities: Arc<RootCertStore>,
    certificate: Option<Signed>,
}

impl Caller {
    pub fn trusting(authority: &Authority) -> Self {
        let mut authorities = RootCertStore::empty();
        authorities.add(certificate(&authority.certificate())).unwrap();
        Self { authorities: Arc::new(authorities), certificate: None }
    }

    pub fn showing(self, certificate: Signed) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// Opens a TLS connection to `localhost` that offers these protocols.
    pub async fn stream(&self, to: SocketAddr, protocols: &[&str]) -> Result<TlsStream<TcpStream>, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(self.authorities.clone());
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(Signed { certificate: own, key, .. }) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate(own)], key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(to).await.map_err(reason)?;
        let connect =
            TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream);
        soon(connect).await.map_err(reason)
    }

    pub async fn open(&self, service: &Service, wire: Wire) -> Result<Connection, String> {
        let protocol = if wire == Wire::Http1 { "http/1.1" } else { "h2" };
        let stream = self.stream(wire.address(service), &[protocol]).await?;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let connection = Connection::over(stream, wire).await?;
        Ok(Connection { shown, ..connection })
    }

    /// Returns the status of a check on a new connection, or the error.
    pub async fn check(&self, service: &Service, wire: Wire) -> Result<u16, String> {
        self.open(service, wire).await?.check(None).await
    }
}

/// A reusable connection.
pub struct Connection {
    /// The certificate of the service.
    pub shown: Vec<u8>,
    sender: Sender,
}

type Channel = BoxCloneSyncService<Request<tonic::body::Body>, Response<Incoming>, hyper::Error>;

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
    Grpc(RateLimiterClient<Channel>),
}

impl Connection {
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        wire: Wire,
    ) -> Result<Self, String> {
        let (io, executor) = (TokioIo::new(stream), TokioExecutor::new());
        let sender = match wire {
            Wire::Http1 => {
                let (sender, connection) = http1::handshake(io).await.map_err(reason)?;
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Wire::Http2 => {
                let (sender, connection) = http2::handshake(executor, io).await.map_err(reason)?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
            Wire::Grpc => {
                let (sender, connection) = http2::handshake(executor, io).await.map_err(reason)?;
                tokio::spawn(connection);
                let channel = Channel::new(tower::service_fn(move |request| {
                    let mut sender = sender.clone();
                    async move { sender.send_request(request).await }
                }));
                let origin = "http://localhost".parse().unwrap();
                Sender::Grpc(RateLimiterClient::with_origin(channel, origin))
            }
        };
        Ok(Self { shown: Vec::new(), sender })
    }

    /// Returns the status of a check with this API key.
    pub async fn check(&mut self, key: Option<&str>) -> Result<u16, String> {
        self.ask("/v1/rate-limit/check", key).await
    }

    /// Opens a gRPC stream of checks without sending one.
    pub async fn check_stream(self) -> Streaming<CheckResult> {
        let Sender::Grpc(mut client) = self.sender else { panic!("only gRPC has streams") };
        soon(client.check_stream(tokio_stream::pending())).await.unwrap().into_inner()
    }

    /// Returns the status of a reset, an admin operation.
    pub async fn reset(&mut self, key: Option<&str>) -> Result<u16, String> {
        self.ask("/v1/rate-limit/reset", key).await
    }

    async fn ask(&mut self, path: &str, key: Option<&str>) -> Result<u16, String> {
        let Sender::Grpc(client) = &mut self.sender else {
            let body = r#"{"user_id":"u","endpoint":"/x"}"#;
            return self.request("POST", path, key, body).await.map(|(status, _)| status);
        };
        let (identifier, endpoint) = ("u".to_owned(), "/x".to_owned());
        let answer = if path.ends_with("reset") {
            let message = ResetRequest { identifier, endpoint, ..ResetRequest::default() };
            soon(client.reset_limit(with(message, key))).await.map(drop)
        } else {
            let message = CheckRequest { identifier, endpoint, ..CheckRequest::default() };
            soon(client.check_rate_limit(with(message, key))).await.map(drop)
        };
        match answer {
            Ok(()) => Ok(200),
            Err(status) => match status.code() {
                Code::Unauthenticated => Ok(401),
                Code::PermissionDenied => Ok(403),
                _ => Err(reason(status)),
            },
        }
    }

    /// Sends an HTTP request and returns its response.
    pub async fn request(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &'static str,
    ) -> Result<(u16, String), String> {
        self.request_as(Some("application/json"), method, path, key, body).await
    }

    /// Sends an HTTP request with another content type, or none.
    pub async fn request_as(
        &mut self,
        content_type: Option<&str>,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &'static str,
    ) -> Result<(u16, String), String> {
        let mut request = Request::builder().method(method);
        for (name, value) in [("content-type", content_type), ("x-api-key", key)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let body = Full::from(body);
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                soon(sender.send_request(request.uri(path).header("host", "x").body(body).unwrap())).await
            }
            Sender::Http2(sender) => {
                let uri = format!("http://x{path}");
                soon(sender.send_request(request.uri(uri).body(body).unwrap())).await
            }
            Sender::Grpc(_) => panic!("not an HTTP connection"),
        };
        let response = response.map_err(reason)?;
        let status = response.status().as_u16();
        let body = soon(response.into_body().collect()).await.map_err(reason)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

fn with<T>(message: T, key: Option<&str>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(key) = key {
        request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    }
    request
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn reason(error: impl Debug) -> String {
    format!("{error:?}")
}
