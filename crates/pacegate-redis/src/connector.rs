//! Establishes connections: TCP or TLS, authentication, database selection, and loading of the
//! script.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pacegate_store::{Gauge, GuardedStore, Present, StoreError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisConnectionInfo, RedisError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::connection::role;
use crate::error::{is_replica, not_connected};
use crate::new_keys::NewKeys;
use crate::script::SCRIPT;
use crate::url::{Address, Credentials, RedisUrl, Topology};

/// How long connecting, authenticating and loading the script may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without any reply after which a connection is replaced, unless callers wait longer.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Time after which a reply is given up, unless callers wait longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests queued for a connection's writer; further callers wait.
const QUEUE_LENGTH: usize = 1_024;

/// Files for TLS, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate authority to trust instead of those of the operating system.
    pub authority: Option<PathBuf>,
    /// The client certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Options of a [`RedisStore`](crate::RedisStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisOptions {
    /// The URL of the server.
    pub url: RedisUrl,
    /// For `rediss://` and `tls=true`.
    pub tls: TlsFiles,
    /// Number of connections to each server; commands of one identity always use the same one.
    pub connections: usize,
    /// The longest time that a caller waits for a response. A silent connection is not replaced
    /// before that.
    pub caller_timeout: Duration,
    /// Maximum number of keys with a time to live of ten seconds or more that are created per
    /// second; unlimited if unset.
    pub new_keys_per_second: Option<u64>,
}

impl RedisOptions {
    /// Maximum number of connections to one server.
    pub const CONNECTIONS_MAX: usize = 16;

    /// The default options for `url`.
    pub fn new(url: RedisUrl) -> Self {
        Self {
            url,
            tls: TlsFiles::default(),
            connections: 2,
            caller_timeout: GuardedStore::DEADLINE,
            new_keys_per_second: None,
        }
    }
}

/// Connects to any server of one Redis deployment.
pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    credentials: Credentials,
    sentinel_credentials: Credentials,
    database: i64,
    pub(crate) connections: usize,
    caller_timeout: Duration,
    /// Set after the startup verification, whose keys do not count.
    pub(crate) new_keys: OnceLock<NewKeys>,
    /// Whether connections to replicas are rejected. Replicas of a cluster describe it as well as
    /// its primaries, and never decide.
    primaries_only: bool,
    /// The script's hash, as returned by the first server that loaded it.
    hash: OnceLock<String>,
    pub(crate) figures: Figures,
    /// Notified when a server fails, so that the topology is refreshed.
    pub(crate) refresh_needed: Notify,
}

/// Metrics.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) connects: AtomicU64,
    pub(crate) script_loads: AtomicU64,
    pub(crate) primary_changes: AtomicU64,
    pub(crate) resends: AtomicU64,
    /// Round trips, and the commands sent in them.
    pub(crate) batches: AtomicU64,
    pub(crate) batched: AtomicU64,
    pub(crate) connections: Gauge,
    pub(crate) waiting: Gauge,
}

impl Figures {
    /// Counts a round trip with this many commands; it is in flight until the result is dropped.
    pub(crate) fn sent(&self, commands: usize) -> Present {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batched.fetch_add(commands as u64, Ordering::Relaxed);
        self.waiting.enter()
    }
}

/// A connection and the task that drives it.
pub(crate) struct Connected {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: JoinHandle<()>,
}

impl Connector {
    pub(crate) fn new(options: &RedisOptions) -> Result<Self, StoreError> {
        let tls = if options.url.tls { Some(tls_connector(&options.tls)?) } else { None };
        Ok(Self {
            tls,
            credentials: options.url.credentials.clone(),
            sentinel_credentials: options.url.sentinel_credentials.clone(),
            database: options.url.database,
            connections: options.connections.clamp(1, RedisOptions::CONNECTIONS_MAX),
            caller_timeout: options.caller_timeout,
            new_keys: OnceLock::new(),
            primaries_only: !matches!(options.url.topology, Topology::Cluster { .. }),
            hash: OnceLock::new(),
            figures: Figures::default(),
            refresh_needed: Notify::new(),
        })
    }

    /// Connects to a data server and loads the script.
    pub(crate) async fn connect(&self, address: &Address) -> Result<Connected, StoreError> {
        let connecting = async {
            let mut connected = self.open(address, &self.credentials, self.database).await?;
            self.load_script(&mut connected.connection).await?;
            let replica = self.primaries_only && role(&mut connected.connection).await? == Some(false);
            Ok((connected, replica))
        };
        let (connected, replica) = in_time(address, connecting).await?;
        if replica {
            connected.driver.abort();
            return Err(is_replica(address));
        }
        self.figures.connects.fetch_add(1, Ordering::Relaxed);
        Ok(connected)
    }

    /// Connects to a sentinel.
    pub(crate) async fn connect_to_sentinel(&self, address: &Address) -> Result<Connected, StoreError> {
        in_time(address, self.open(address, &self.sentinel_credentials, 0)).await
    }

    pub(crate) async fn load_script(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(connection).await?;
        self.figures.script_loads.fetch_add(1, Ordering::Relaxed);
        self.hash.get_or_init(|| hash);
        Ok(())
    }

    /// How long a connection may be silent before it is replaced.
    pub(crate) fn silence_max(&self) -> Duration {
        SILENCE_MAX.max(self.caller_timeout)
    }

    /// Empty until the first connection, without which nothing is sent.
    pub(crate) fn hash(&self) -> &str {
        self.hash.get().map_or("", String::as_str)
    }

    async fn open(
        &self,
        address: &Address,
        credentials: &Credentials,
        database: i64,
    ) -> Result<Connected, RedisError> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        stream.set_nodelay(true)?;
        let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if let Some(username) = &credentials.username {
            info = info.set_username(username);
        }
        if let Some(password) = &credentials.password {
            info = info.set_password(password);
        }
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(RESPONSE_TIMEOUT.max(self.caller_timeout)))
            .set_pipeline_buffer_size(QUEUE_LENGTH);
        let Some(tls) = &self.tls else {
            let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
            return Ok(self.drive(connection, driver));
        };
        let name = ServerName::try_from(address.host.clone()).map_err(|_| {
            RedisError::from((ErrorKind::InvalidClientConfig, "the host is not a valid TLS server name"))
        })?;
        let stream = tls.connect(name, stream).await?;
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        Ok(self.drive(connection, driver))
    }

    fn drive(
        &self,
        connection: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
    ) -> Connected {
        let present = self.figures.connections.enter();
        let driver = tokio::spawn(async move {
            driver.await;
            drop(present);
        });
        Connected { connection, driver }
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Connector").field("database", &self.database).finish_non_exhaustive()
    }
}

async fn in_time<T>(
    address: &Address,
    connecting: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, StoreError> {
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| not_connected(address, &error)),
        Err(_) => {
            Err(StoreError::unavailable(format!("{address} does not respond within {CONNECT_TIMEOUT:?}")))
        }
    }
}

fn tls_connector(files: &TlsFiles) -> Result<TlsConnector, StoreError> {
    let unreadable = |path: &PathBuf, error: &dyn std::fmt::Display| {
        StoreError::rejected(format!("could not read {}: {error}", path.display()))
    };
    let mut roots = RootCertStore::empty();
    match &files.authority {
        Some(path) => {
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(path, &error))?;
                roots.add(certificate).map_err(|error| unreadable(path, &error))?;
            }
            if roots.is_empty() {
                return Err(unreadable(path, &"no certificate found"));
            }
        }
        None => {
            // Operating systems ship some unusual certificates; those that cannot be parsed are
            // skipped.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let unusable = |error: rustls::Error| StoreError::rejected(format!("TLS: {error}"));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    let config = match &files.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
                .map_err(|error| unreadable(certificate, &error))?
                .collect();
            let chain = chain.map_err(|error| unreadable(certificate, &error))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, key).map_err(unusable)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}
