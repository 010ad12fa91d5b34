//! `server` and `management`: where the service listens, which clients it serves, and its bounds.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use pacegate::Limit;
use pacegate::identity::IPV6_PREFIX;
use pacegate_core::named;
use pacegate_http::{Bounds, CertificateName, TlsFiles};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::cursor::Cursor;
use crate::value::{As, Between, Form, HOUR, OrNone, Size, Span, Table, Text, Word};

/// How the service listens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The address of the REST API and the dashboard.
    #[serde(with = "As::<Text<SocketAddr>>")]
    pub http: SocketAddr,
    /// The address of the gRPC services, or none.
    #[serde(with = "As::<OrNone<Text<SocketAddr>>>")]
    pub grpc: Option<SocketAddr>,
    /// A second address of the REST API, for health checks and operators, or none. Its connections
    /// have a bound of their own.
    #[serde(with = "As::<OrNone<Text<SocketAddr>>>")]
    pub admin: Option<SocketAddr>,
    /// Certificates for encrypted connections to all addresses, in PEM; changes of the files are
    /// followed.
    #[serde(with = "As::<Option<TlsSection>>")]
    pub tls: Option<TlsConfig>,
    /// The networks that may use admin operations; all when it is empty.
    #[serde(with = "As::<Vec<Text<IpNet>>>")]
    pub admin_allow: Vec<IpNet>,
    /// The networks whose X-Forwarded-For is believed; none when it is empty.
    #[serde(with = "As::<Vec<Text<IpNet>>>")]
    pub trusted_proxies: Vec<IpNet>,
    /// By how many bits IPv6 addresses are counted in the dimension ip.
    #[serde(with = "As::<Between<1, 128>>")]
    pub ipv6_prefix: u8,
    /// Whether checks need an API key too.
    pub require_key: bool,
    /// How many connections are served at once; further ones wait in the operating system's queue,
    /// and those without a request are closed first.
    #[serde(with = "As::<Between<1, 1_000_000>>")]
    pub max_connections: usize,
    /// How many connections one client address, or IPv6 network of 64 bits, can have; further ones
    /// are refused. Those of trusted_proxies are not counted. By default a tenth of
    /// max_connections, at least 256 and at most half.
    #[serde(with = "As::<Option<Between<1, 1_000_000>>>")]
    pub max_connections_per_address: Option<usize>,
    /// How many requests one connection can have under way at once.
    #[serde(with = "As::<Between<1, 10_000>>")]
    pub max_streams: usize,
    /// How many checks this node decides a second, or none for no bound; further ones are answered
    /// 503 OVERLOADED at once. A batch counts the identities of its checks.
    #[serde(with = "As::<OrNone<Between<1, 1_000_000_000>>>")]
    pub max_checks_per_second: Option<u64>,
    /// The memory that the bodies of requests under way take together, 1MiB to 1024GiB; further
    /// ones are answered 503 OVERLOADED.
    #[serde(with = "As::<Text<Size<{ 1 << 20 }, { 1 << 40 }>>>")]
    pub max_request_memory: usize,
    /// How long a client may take to send a request's head, or stay idle.
    #[serde(with = "As::<Text<Span<100, HOUR>>>")]
    pub idle_timeout: Duration,
    /// How long a client may take to send a body, and the service to answer.
    #[serde(with = "As::<Text<Span<100, HOUR>>>")]
    pub request_timeout: Duration,
    /// How long a stopping service reports that it is not ready and serves on, so that load
    /// balancers turn away.
    #[serde(with = "As::<Text<Span<0, HOUR>>>")]
    pub drain_delay: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8080)),
            grpc: Some(SocketAddr::from(([127, 0, 0, 1], 8081))),
            admin: None,
            tls: None,
            admin_allow: Vec::new(),
            trusted_proxies: Vec::new(),
            ipv6_prefix: IPV6_PREFIX,
            require_key: false,
            max_connections: 10_000,
            max_connections_per_address: None,
            max_streams: 128,
            max_checks_per_second: None,
            max_request_memory: 64 * 1024 * 1024,
            idle_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(10),
            drain_delay: Duration::from_secs(1),
        }
    }
}

impl ServerConfig {
    /// Returns what bounds the connections of its listeners.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
            trusted_proxies: self.trusted_proxies.clone(),
            max_streams: self.max_streams,
            idle_timeout: self.idle_timeout,
            request_timeout: self.request_timeout,
        }
    }

    /// Reports settings that need others.
    pub(crate) fn check(&self, root: &Cursor<'_>) {
        let Some(tls) = &self.tls else { return };
        if tls.files.client_ca.is_none() && tls.files.client_crl.is_some() {
            root.refuse("server.tls", "client_crl needs client_ca: without it clients show no certificates");
        }
        if tls.files.client_ca.is_none() && !tls.identities.is_empty() {
            root.refuse("server.tls", "identities need client_ca: without it clients show no certificates");
        }
        if tls.identities.len() > IDENTITIES_MAX {
            let count = tls.identities.len();
            root.refuse("server.tls.identities", format!("expected at most {IDENTITIES_MAX}, got {count}"));
        }
    }
}

const IDENTITIES_MAX: usize = 10_000;

/// How connections of clients are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate, its key, and what clients' certificates are checked with.
    pub files: TlsFiles,
    /// What clients may do without an API key, by a name in their certificate.
    pub identities: Vec<(CertificateName, Role)>,
}

/// Files for encrypted connections of clients, in PEM.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    /// The certificate of the service, followed by its intermediates.
    cert: PathBuf,
    /// The private key of that certificate.
    key: PathBuf,
    /// The authorities that sign clients' certificates; if it is set, clients must show one (mTLS).
    client_ca: Option<PathBuf>,
    /// Revocation lists of these authorities; clients with a revoked certificate are rejected.
    client_crl: Option<PathBuf>,
    /// Roles of clients without an API key, by a subject alternative name of their certificate:
    /// dns:, uri:, email: or ip: and the name.
    #[serde(default, with = "As::<Table<Text<CertificateName>, Word<Role>>>")]
    identities: Vec<(CertificateName, Role)>,
}

impl Form<TlsConfig> for TlsSection {
    fn value(self) -> TlsConfig {
        let Self { cert, key, client_ca, client_crl, identities } = self;
        TlsConfig { files: TlsFiles { cert, key, client_ca, client_crl }, identities }
    }

    /// By default there is none.
    fn show(_: &TlsConfig) -> Value {
        Value::Null
    }
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Read limits, rules, users, keys and logs.
    Reader,
    /// Check requests and read the state of limits.
    Checker,
}

named!(Role { Admin => "admin", Reader => "reader", Checker => "checker" });

/// How often each key may use the management API; the service limits itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ManagementConfig {
    /// Requests that change nothing, in any minute.
    #[serde(with = "As::<Between<1, { Limit::SLIDING_LOG_QUOTA_MAX }>>")]
    pub reads_per_minute: u64,
    /// Requests that change something, in any minute.
    #[serde(with = "As::<Between<1, { Limit::SLIDING_LOG_QUOTA_MAX }>>")]
    pub writes_per_minute: u64,
}

impl Default for ManagementConfig {
    fn default() -> Self {
        Self { reads_per_minute: 1_000, writes_per_minute: 100 }
    }
}
