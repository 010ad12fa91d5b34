//! What a listener is configured with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;

/// How many connections a listener serves, and how long a client may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many connections are served at once; more wait in the operating system's queue.
    pub max_connections: usize,
    /// How many of them one client address can have; see
    /// [`connections_per_address`](Self::connections_per_address).
    pub max_connections_per_address: Option<usize>,
    /// Networks without a bound per address: proxies that stand for many clients.
    pub trusted_proxies: Vec<IpNet>,
    /// How many requests one HTTP/2 connection can have under way at once.
    pub max_streams: usize,
    /// How long a client may take to send a request's head, or stay idle.
    pub idle_timeout: Duration,
    /// How long a client may take to send a body or to read its answer.
    pub request_timeout: Duration,
}

impl Bounds {
    /// Returns how many connections one address can have where there can be `max`: what is
    /// configured, or a tenth, at least 256 and at most half.
    pub fn connections_per_address(&self, max: usize) -> usize {
        self.max_connections_per_address.unwrap_or((max / 10).max(256).min(max / 2)).max(1)
    }
}

/// The files of encrypted connections, in PEM.
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
    /// Lists the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let optional = self.client_ca.iter().chain(&self.client_crl);
        [&self.cert, &self.key].into_iter().chain(optional).map(AsRef::as_ref)
    }
}
