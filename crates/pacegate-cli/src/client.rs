//! Connections to a running service: with or without TLS, over HTTP/1.1 or HTTP/2.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Failure;

/// Time after which connecting fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of a response body.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The arguments that select a service and the API key to send to it.
#[derive(Debug, Args)]
pub(crate) struct ServiceArguments {
    /// The address of the service.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// The API key to send, if the service requires one.
    #[arg(long, value_name = "KEY", env = "PACEGATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Trusts only the certificate authorities in this PEM file.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl ServiceArguments {
    /// Returns the service that they select.
    ///
    /// # Errors
    /// [`Failure::Misused`] that names the invalid argument.
    pub(crate) fn service(&self) -> Result<Service, Failure> {
        let address = Address::parse(&self.server, self.ca.as_deref());
        let address = address.map_err(|error| Failure::Misused(error.context("--server")))?;
        let api_key = self.api_key.as_deref().filter(|secret| !secret.is_empty());
        let api_key = api_key.map(HeaderValue::from_str).transpose().map_err(|_| {
            Failure::Misused(anyhow!("--api-key: contains characters that are not allowed in a header"))
        })?;
        Ok(Service { address: Arc::new(address), api_key })
    }
}

/// A service, and the API key to send to it.
#[derive(Clone)]
pub(crate) struct Service {
    address: Arc<Address>,
    api_key: Option<HeaderValue>,
}

impl Service {
    /// The address of the service.
    pub(crate) fn url(&self) -> String {
        self.address.url()
    }

    /// Sends `request` over a new connection. Its URI is a path of the service.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
        let url = self.url();
        *request.uri_mut() = self.address.path(request.uri().path())?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(self.address.authority().as_str())?);
        if let Some(secret) = &self.api_key {
            headers.insert("x-api-key", secret.clone());
        }
        let connected = self.address.http1().await;
        let mut sender = connected.with_context(|| format!("could not reach {url}"))?;
        sender
            .send_request(request)
            .await
            .with_context(|| format!("{url} closed the connection before the end of its response"))
    }

    /// Sends `request` and returns the status and the JSON body of the response.
    pub(crate) async fn json(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Value)> {
        let response = self.send(request).await?;
        let status = response.status();
        let body = self.read(response.into_body()).await?;
        let body = serde_json::from_slice(&body)
            .with_context(|| format!("{} is not a Pacegate service: its response is not JSON", self.url()))?;
        Ok((status, body))
    }

    /// The failure for an error response.
    pub(crate) fn rejected(&self, status: StatusCode, body: &Value) -> Failure {
        let message = body["error"]["message"].as_str().unwrap_or("no reason given");
        let hint = match (status, &self.api_key) {
            (StatusCode::UNAUTHORIZED, None) => "; pass --api-key or set PACEGATE_API_KEY",
            _ => "",
        };
        let failure = anyhow!("{} returned {status}: {message}{hint}", self.url());
        if status.is_client_error() { Failure::Misused(failure) } else { Failure::Failed(failure) }
    }

    /// Reads the body of a response.
    pub(crate) async fn read(&self, body: Incoming) -> anyhow::Result<Bytes> {
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| anyhow!(error));
        Ok(body
            .with_context(|| format!("{} closed the connection before the end of its response", self.url()))?
            .to_bytes())
    }
}

/// The address of a service, and how to connect to it.
#[derive(Clone)]
pub(crate) struct Address {
    scheme: Scheme,
    authority: Authority,
    /// The prefix of every path, without a trailing slash.
    prefix: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Address {
    /// Parses `url`. Its certificate must be signed by an authority in the file `ca`, or by one
    /// that the operating system trusts if there is no file.
    ///
    /// # Errors
    /// An invalid URL, or a file that cannot be read.
    pub(crate) fn parse(url: &str, ca: Option<&Path>) -> anyhow::Result<Self> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let reject = |reason: &str| anyhow!("`{url}` {reason}");
        let uri: Uri = with_scheme.parse().map_err(|_| reject("is not a URL"))?;
        let scheme = uri.scheme().cloned().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| reject("must start with http:// or https://"))?;
        let authority = uri.authority().cloned().ok_or_else(|| reject("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(reject("must not contain a user or a password"));
        }
        if uri.query().is_some() {
            return Err(reject("must not have a query"));
        }
        let tls = if scheme == Scheme::HTTPS {
            let name = ServerName::try_from(bare_host(&authority).to_owned());
            Some((
                client_config(ca)?,
                name.map_err(|_| reject("has a host that is not valid in a certificate"))?,
            ))
        } else if ca.is_some() {
            return Err(anyhow!("--ca requires an https:// address, got `{url}`"));
        } else {
            None
        };
        Ok(Self { scheme, authority, prefix: uri.path().trim_end_matches('/').to_owned(), tls })
    }

    /// The address as a URL.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.prefix)
    }

    /// Whether the address has a path.
    pub(crate) fn has_path(&self) -> bool {
        !self.prefix.is_empty()
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The target of a request for `path` over HTTP/1.1.
    pub(crate) fn path(&self, path: &str) -> anyhow::Result<Uri> {
        format!("{}{path}", self.prefix).parse().context("the path")
    }

    /// The target of a request for `path` over HTTP/2.
    pub(crate) fn whole(&self, path: &str) -> anyhow::Result<Uri> {
        format!("{}{path}", self.url()).parse().context("the URL")
    }

    /// Opens an HTTP/1.1 connection. It closes when its sender is dropped.
    pub(crate) async fn http1<B>(&self) -> anyhow::Result<http1::SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(self.open(b"http/1.1").await?)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Opens an HTTP/2 connection with prior knowledge.
    pub(crate) async fn http2<B>(&self) -> anyhow::Result<http2::SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let stream = TokioIo::new(self.open(b"h2").await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn open(&self, protocol: &[u8]) -> anyhow::Result<Box<dyn Wire>> {
        let connecting = self.connect(protocol);
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        opened.map_err(|_| anyhow!("no connection within {CONNECT_TIMEOUT:?}"))?
    }

    async fn connect(&self, protocol: &[u8]) -> anyhow::Result<Box<dyn Wire>> {
        let port = self.authority.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((bare_host(&self.authority), port)).await?;
        // Send small requests immediately.
        stream.set_nodelay(true)?;
        let Some((config, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?))
    }
}

/// The host, without brackets around an IPv6 address.
fn bare_host(authority: &Authority) -> &str {
    authority.host().trim_start_matches('[').trim_end_matches(']')
}

fn client_config(ca: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ca {
        let file = || format!("--ca: {}", path.display());
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| anyhow!("{}: {error}", file()))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| anyhow!("{}: {error}", file()))?;
            roots.add(certificate).with_context(file)?;
        }
        if roots.is_empty() {
            return Err(anyhow!("{}: contains no certificate", file()));
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn address_is_parsed_or_rejected_with_the_reason() {
        for (url, read) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://localhost:1/", "http://localhost:1"),
            ("http://[::1]:8080/pacegate/", "http://[::1]:8080/pacegate"),
        ] {
            assert_eq!(Address::parse(url, None).unwrap().url(), read);
        }
        for (url, reason) in [
            ("ftp://x", "must start with http:// or https://"),
            ("http://", "is not a URL"),
            ("http://me:secret@x", "must not contain a user or a password"),
            ("http://x/?a=1", "must not have a query"),
        ] {
            let error = Address::parse(url, None).err().unwrap().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
