//! The configuration of a listener.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

/// The bounds of a listener: numbers of connections, and timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of concurrent connections; more wait in the operating system's backlog.
    pub max_connections: usize,
    /// Maximum number of connections per client address; see
    /// [`connections_per_address`](Self::connections_per_address).
    pub max_connections_per_address: Option<usize>,
    /// Networks without a bound per address: proxies that carry the requests of many clients.
    pub trusted_proxies: Vec<IpNet>,
    /// Maximum number of concurrent requests of one HTTP/2 connection.
    pub max_streams: usize,
    /// Maximum time for a client to send the head of a request, or to stay idle.
    pub idle_timeout: Duration,
    /// Maximum time for a client to send a body or to read its response.
    pub request_timeout: Duration,
}

impl Bounds {
    /// Returns the maximum number of connections per address for a total of `max`: the configured
    /// number, or a tenth of the total, at least 256 and at most half.
    pub fn connections_per_address(&self, max: usize) -> usize {
        self.max_connections_per_address.unwrap_or((max / 10).max(256).min(max / 2)).max(1)
    }
}

/// The TLS files, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by its intermediates.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The authorities that sign client certificates; if set, clients must present one.
    pub client_ca: Option<PathBuf>,
    /// The revocation lists of these authorities.
    pub client_crl: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let optional = self.client_ca.iter().chain(&self.client_crl);
        [&self.cert, &self.key].into_iter().chain(optional).map(AsRef::as_ref)
    }
}
