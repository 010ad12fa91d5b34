//! Makes connections: TCP or TLS, credentials, database, and the script loaded.

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

/// How long it may take to connect, authenticate and load the script.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection on which nothing comes for so long is replaced; for longer if callers wait longer.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// A reply that takes longer than this never comes; or than callers wait, if they wait longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many requests wait for a connection's writer; more callers wait for a place.
const QUEUE_LENGTH: usize = 1_024;

/// Files for TLS, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to trust instead of the authorities of the operating system.
    pub authority: Option<PathBuf>,
    /// The certificate to show to the server, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// How to use a Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisOptions {
    /// Where it is.
    pub url: RedisUrl,
    /// For `rediss://` and `tls=true`.
    pub tls: TlsFiles,
    /// How many connections there are to each server; commands of one identity always take the same one.
    pub connections: usize,
    /// How long the most patient caller waits for an answer. A connection is not replaced for silence
    /// before that.
    pub patience: Duration,
    /// How many keys that stay for ten seconds or more are made a second; as many as it takes unless it is set.
    pub new_keys_per_second: Option<u64>,
}

impl RedisOptions {
    /// The most connections to one server.
    pub const CONNECTIONS_MAX: usize = 16;

    /// The usual options for `url`.
    pub fn new(url: RedisUrl) -> Self {
        Self {
            url,
            tls: TlsFiles::default(),
            connections: 2,
            patience: GuardedStore::DEADLINE,
            new_keys_per_second: None,
        }
    }
}

/// Knows how to connect to any server of one Redis.
pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    credentials: Credentials,
    sentinel_credentials: Credentials,
    database: i64,
    pub(crate) connections: usize,
    patience: Duration,
    /// Set after the start, whose own keys do not count.
    pub(crate) new_keys: OnceLock<NewKeys>,
    /// Whether replicas are refused. A Cluster's replicas describe it as well as its primaries do, and
    /// never decide.
    primaries_only: bool,
    /// The script's hash, as the first server that loaded it named it.
    hash: OnceLock<String>,
    pub(crate) figures: Figures,
    /// Something is wrong with a server: whoever knows the servers had better look again.
    pub(crate) trouble: Notify,
}

/// What is counted for operators.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) connects: AtomicU64,
    pub(crate) script_loads: AtomicU64,
    pub(crate) primary_changes: AtomicU64,
    pub(crate) resends: AtomicU64,
    /// Round trips, and the commands that went with them.
    pub(crate) batches: AtomicU64,
    pub(crate) batched: AtomicU64,
    pub(crate) connections: Gauge,
    pub(crate) waiting: Gauge,
}

impl Figures {
    /// Counts a round trip with so many commands; it waits for its answer until the result is dropped.
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
            patience: options.patience,
            new_keys: OnceLock::new(),
            primaries_only: !matches!(options.url.topology, Topology::Cluster { .. }),
            hash: OnceLock::new(),
            figures: Figures::default(),
            trouble: Notify::new(),
        })
    }

    /// A connection to a server that keeps data, with the script loaded.
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

    /// A connection to a sentinel.
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
        SILENCE_MAX.max(self.patience)
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
            .set_response_timeout(Some(RESPONSE_TIMEOUT.max(self.patience)))
            .set_pipeline_buffer_size(QUEUE_LENGTH);
        let Some(tls) = &self.tls else {
            let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
            return Ok(self.drive(connection, driver));
        };
        let name = ServerName::try_from(address.host.clone()).map_err(|_| {
            RedisError::from((ErrorKind::InvalidClientConfig, "the host is not a name for TLS"))
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
            Err(StoreError::unavailable(format!("{address} does not answer within {CONNECT_TIMEOUT:?}")))
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
                return Err(unreadable(path, &"there is no certificate in it"));
            }
        }
        None => {
            // A machine has odd ones among hundreds; those are left out.
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
