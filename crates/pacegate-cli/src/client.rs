//! Connections to a running service, for the tools that talk to one: plain or encrypted, HTTP/1.1 or HTTP/2.

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
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::Failure;

/// How long a new connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest body that is read as a whole.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The arguments that name a service and the API key to show to it.
#[derive(Debug, Args)]
pub(crate) struct ServiceArguments {
    /// The service.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// The API key, for a service that wants one.
    #[arg(long, value_name = "KEY", env = "PACEGATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Trusts the certificates that an authority in this file signed, and no others.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl ServiceArguments {
    /// The service that they name.
    ///
    /// # Errors
    /// [`Failure::Misused`] with the argument that is wrong.
    pub(crate) fn service(&self) -> Result<Service, Failure> {
        let place = Place::parse(&self.server, self.ca.as_deref());
        let place = place.map_err(|error| Failure::Misused(error.context("--server")))?;
        let api_key = self.api_key.as_deref().filter(|secret| !secret.is_empty());
        let api_key = api_key
            .map(HeaderValue::from_str)
            .transpose()
            .map_err(|_| Failure::Misused(anyhow!("--api-key: has characters that no header can have")))?;
        Ok(Service { place: Arc::new(place), api_key })
    }
}

/// A service, and the API key to show to it.
#[derive(Clone)]
pub(crate) struct Service {
    place: Arc<Place>,
    api_key: Option<HeaderValue>,
}

impl Service {
    /// The address as people write it.
    pub(crate) fn url(&self) -> String {
        self.place.url()
    }

    /// Sends `request`, whose URI is a path of the service, over a connection of its own.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
        let url = self.url();
        *request.uri_mut() = self.place.path(request.uri().path())?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(self.place.authority().as_str())?);
        if let Some(secret) = &self.api_key {
            headers.insert("x-api-key", secret.clone());
        }
        let connected = self.place.http1().await;
        let mut sender = connected.with_context(|| format!("could not reach {url}"))?;
        sender.send_request(request).await.with_context(|| format!("{url} broke off its answer"))
    }

    /// The whole body of an answer.
    pub(crate) async fn read(&self, body: Incoming) -> anyhow::Result<Bytes> {
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| anyhow!(error));
        Ok(body.with_context(|| format!("{} broke off its answer", self.url()))?.to_bytes())
    }
}

/// Where a service is, and how to get there.
#[derive(Clone)]
pub(crate) struct Place {
    scheme: Scheme,
    authority: Authority,
    /// What stands before every path, without a slash at its end.
    prefix: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Place {
    /// The service at `url`, whose certificate is signed by an authority in the file `ca`, or by one that this machine trusts.
    ///
    /// # Errors
    /// What is wrong with the URL or the file.
    pub(crate) fn parse(url: &str, ca: Option<&Path>) -> anyhow::Result<Self> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let refuse = |reason: &str| anyhow!("`{url}` {reason}");
        let uri: Uri = with_scheme.parse().map_err(|_| refuse("is not a URL"))?;
        let scheme = uri.scheme().cloned().filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| refuse("must start with http:// or https://"))?;
        let authority = uri.authority().cloned().ok_or_else(|| refuse("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("must not have a user or a password"));
        }
        if uri.query().is_some() {
            return Err(refuse("must not have a query"));
        }
        let tls = if scheme == Scheme::HTTPS {
            let name = ServerName::try_from(bare_host(&authority).to_owned());
            Some((client_config(ca)?, name.map_err(|_| refuse("has no host that a certificate can name"))?))
        } else if ca.is_some() {
            return Err(anyhow!("--ca is for https://, and `{url}` is not encrypted"));
        } else {
            None
        };
        Ok(Self { scheme, authority, prefix: uri.path().trim_end_matches('/').to_owned(), tls })
    }

    /// The address as people write it.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.prefix)
    }

    /// Whether the service is below a path of its host.
    pub(crate) fn has_path(&self) -> bool {
        !self.prefix.is_empty()
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A path of the service as HTTP/1.1 names it.
    pub(crate) fn path(&self, path: &str) -> anyhow::Result<Uri> {
        format!("{}{path}", self.prefix).parse().context("the path")
    }

    /// A path of the service as HTTP/2 names it.
    pub(crate) fn whole(&self, path: &str) -> anyhow::Result<Uri> {
        format!("{}{path}", self.url()).parse().context("the URL")
    }

    /// A new connection over HTTP/1.1. It ends when its sender is dropped.
    pub(crate) async fn http1<B>(&self) -> anyhow::Result<http1::SendRequest<B>>
    where
        B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(self.open(b"http/1.1").await?)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// A new connection over HTTP/2, without asking first whether the service speaks it.
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
        // Small requests are not held back to fill a packet.
        stream.set_nodelay(true)?;
        let Some((config, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?))
    }
}

/// The host without the brackets of an IPv6 address.
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
            return Err(anyhow!("{}: has no certificate", file()));
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
    fn an_address_is_read_or_refused_with_the_reason() {
        for (url, read) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://localhost:1/", "http://localhost:1"),
            ("http://[::1]:8080/pacegate/", "http://[::1]:8080/pacegate"),
        ] {
            assert_eq!(Place::parse(url, None).unwrap().url(), read);
        }
        for (url, reason) in [
            ("ftp://x", "must start with http:// or https://"),
            ("http://", "is not a URL"),
            ("http://me:secret@x", "must not have a user or a password"),
            ("http://x/?a=1", "must not have a query"),
        ] {
            let error = Place::parse(url, None).err().unwrap().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}
