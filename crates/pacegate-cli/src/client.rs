//! Connections to a running service, for the tools that talk to one: plain or encrypted, HTTP/1.1 or HTTP/2.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use hyper::Uri;
use hyper::body::Body;
use hyper::client::conn::{http1, http2};
use hyper::http::uri::{Authority, Scheme};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long a new connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
