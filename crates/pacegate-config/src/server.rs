//! `server` and `management`: where the service listens, and the bounds of its clients.

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
use crate::node::Value as Node;
use crate::value::{As, Between, Form, HOUR, OrNone, Size, Span, Table, Text, Word};

/// Addresses, TLS and bounds of the service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address of the REST API and the dashboard.
    #[serde(with = "As::<Text<SocketAddr>>")]
    pub http: SocketAddr,
    /// Address of the gRPC services, or `none`.
    #[serde(with = "As::<OrNone<Text<SocketAddr>>>")]
    pub grpc: Option<SocketAddr>,
    /// Second address of the REST API for health checks and operators, or `none`. Its connections
    /// do not count towards `max_connections`.
    #[serde(with = "As::<OrNone<Text<SocketAddr>>>")]
    pub admin: Option<SocketAddr>,
    /// Certificates for TLS on all addresses, in PEM format. The files are reloaded when they
    /// change.
    #[serde(with = "As::<Option<TlsSection>>")]
    pub tls: Option<TlsConfig>,
    /// Networks that can use admin operations. An empty list allows all networks.
    #[serde(with = "As::<Vec<Text<IpNet>>>")]
    pub admin_allow: Vec<IpNet>,
    /// Networks of proxies whose `X-Forwarded-For` header is trusted. An empty list trusts none.
    #[serde(with = "As::<Vec<Text<IpNet>>>")]
    pub trusted_proxies: Vec<IpNet>,
    /// Number of leading bits by which IPv6 addresses are counted in the dimension `ip`.
    #[serde(with = "As::<Between<1, 128>>")]
    pub ipv6_prefix: u8,
    /// Whether checks require an API key. The management API always does.
    pub require_key: bool,
    /// Maximum number of open connections. Further connections wait in the queue of the operating
    /// system, and idle connections are closed first.
    #[serde(with = "As::<Between<1, 1_000_000>>")]
    pub max_connections: usize,
    /// Maximum number of connections of one client address or IPv6 /64 network. Further connections
    /// are closed. Connections of `trusted_proxies` do not count. Defaults to a tenth of
    /// `max_connections`, at least 256 and at most half of it.
    #[serde(with = "As::<Option<Between<1, 1_000_000>>>")]
    pub max_connections_per_address: Option<usize>,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    #[serde(with = "As::<Between<1, 10_000>>")]
    pub max_streams: usize,
    /// Maximum number of checks this node decides per second, or `none` for no bound. Further
    /// checks are rejected with 503 `OVERLOADED`. A batch counts as the number of its identities.
    #[serde(with = "As::<OrNone<Between<1, 1_000_000_000>>>")]
    pub max_checks_per_second: Option<u64>,
    /// Maximum memory of all request bodies in progress. Further requests are rejected with 503
    /// `OVERLOADED`.
    #[serde(with = "As::<Text<Size<{ 1 << 20 }, { 1 << 40 }>>>")]
    pub max_request_memory: usize,
    /// Time after which an idle connection, or one that has not sent a complete request head, is
    /// closed.
    #[serde(with = "As::<Text<Span<100, HOUR>>>")]
    pub idle_timeout: Duration,
    /// Time after which a request times out: for the client to send the body, and for the service
    /// to respond.
    #[serde(with = "As::<Text<Span<100, HOUR>>>")]
    pub request_timeout: Duration,
    /// Time for which a service that is shutting down reports that it is not ready and still serves
    /// requests, so that load balancers stop using it.
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
    /// Returns the bounds of the connections of its listeners.
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

    /// Reports settings that require others.
    pub(crate) fn check(server: Option<Cursor<'_>>) {
        let tls = server.and_then(|server| server.get("tls"));
        let Some(tls) = tls.filter(|tls| matches!(tls.node.value, Node::Map(_))) else { return };
        let is_set = |field: &str| tls.get(field).is_some_and(|value| !value.is_empty());
        // Deserialization stops at the first missing field.
        if !is_set("cert") && !is_set("key") {
            tls.require::<()>("key", None);
        }
        for field in ["client_crl", "identities"] {
            if is_set(field) && !is_set("client_ca") && !tls.is_wrong(field) {
                tls.reject(field, format!("`{field}` requires `client_ca`"));
            }
        }
        if let Some(Node::Map(identities)) = tls.get("identities").map(|cursor| &cursor.node.value)
            && identities.len() > IDENTITIES_MAX
        {
            let count = identities.len();
            tls.reject("identities", format!("must be at most {IDENTITIES_MAX} names, got {count}"));
        }
    }
}

const IDENTITIES_MAX: usize = 10_000;

/// TLS for connections of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate, its private key, and the authorities of client certificates.
    pub files: TlsFiles,
    /// Roles of clients without an API key, by a name in their certificate.
    pub identities: Vec<(CertificateName, Role)>,
}

/// Files for TLS connections of clients, in PEM format.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    /// Certificate of the service, followed by its intermediate certificates.
    cert: PathBuf,
    /// Private key of the certificate.
    key: PathBuf,
    /// Certificate authorities of client certificates. If set, clients must send a certificate
    /// (mTLS).
    client_ca: Option<PathBuf>,
    /// Revocation lists of these authorities. Clients with a revoked certificate are rejected.
    /// Requires `client_ca`.
    client_crl: Option<PathBuf>,
    /// Roles of clients without an API key, by a subject alternative name of their certificate:
    /// `dns:`, `uri:`, `email:` or `ip:` and the name. Requires `client_ca`.
    #[serde(default, with = "As::<Table<Text<CertificateName>, Word<Role>>>")]
    identities: Vec<(CertificateName, Role)>,
}

impl Form<TlsConfig> for TlsSection {
    fn value(self) -> TlsConfig {
        let Self { cert, key, client_ca, client_crl, identities } = self;
        TlsConfig { files: TlsFiles { cert, key, client_ca, client_crl }, identities }
    }

    /// There is no default.
    fn show(_: &TlsConfig) -> Value {
        Value::Null
    }
}

/// What a caller is allowed to do.
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

/// Rate limits of each API key on the management API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ManagementConfig {
    /// Maximum number of requests per minute that change nothing.
    #[serde(with = "As::<Between<1, { Limit::SLIDING_LOG_QUOTA_MAX }>>")]
    pub reads_per_minute: u64,
    /// Maximum number of requests per minute that change something.
    #[serde(with = "As::<Between<1, { Limit::SLIDING_LOG_QUOTA_MAX }>>")]
    pub writes_per_minute: u64,
}

impl Default for ManagementConfig {
    fn default() -> Self {
        Self { reads_per_minute: 1_000, writes_per_minute: 100 }
    }
}
