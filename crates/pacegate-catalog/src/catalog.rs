//! The catalog: its connection pools, its clock, and the lock that serializes this node's changes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use pacegate::store::{Clock, WallClock};
use sqlx::any::{Any, AnyRow};
use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool, Connection, raw_sql};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::audit_key::{AuditKey, AuditKeySource};
use crate::database::{Kind, Location};
use crate::digest::random_hexadecimal;
use crate::error::CatalogError;
use crate::record::{AuditHead, Revision};
use crate::schema;
use crate::statement::{STATEMENT_TIMEOUT, Statement, bounded, column};

/// Maximum number of attempts to open a file that another process is turning into a database.
const OPEN_ATTEMPTS_MAX: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// Options for [`Catalog::open_with`].
#[derive(Clone)]
pub struct CatalogOptions {
    /// The clock that timestamps changes.
    pub clock: Arc<dyn Clock>,
    /// The secret that keys the audit trail, at least 32 bytes. Without one, a random secret is
    /// stored in a file next to a SQLite database (`….audit-key`), or in the catalog itself.
    pub audit_key: Option<String>,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        Self { clock: Arc::new(WallClock::new()), audit_key: None }
    }
}

impl fmt::Debug for CatalogOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_audit_key = self.audit_key.is_some();
        formatter
            .debug_struct("CatalogOptions")
            .field("has_audit_key", &has_audit_key)
            .finish_non_exhaustive()
    }
}

/// Configuration, users, keys and the audit trail in a database.
///
/// See the crate documentation. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub(crate) kind: Kind,
    /// Whether all data is lost with the only connection.
    is_memory: bool,
    pub(crate) pool: AnyPool,
    /// Connections for lists, which can take seconds, so that they do not block other statements.
    pub(crate) readers: AnyPool,
    pub(crate) clock: Arc<dyn Clock>,
    /// The key of the hashes of secrets.
    pub(crate) pepper: Arc<str>,
    /// The key of the audit trail.
    pub(crate) audit_key: Arc<AuditKeySource>,
    /// Number of rules in the configuration file; they count against the same maximum.
    pub(crate) file_rules: Arc<AtomicUsize>,
    /// The history that this node has seen. The lock serializes reads of it.
    lineage: Arc<Mutex<Lineage>>,
    /// Serializes this node's changes, so that waiting ones do not each hold a connection.
    pub(crate) turn: Arc<Mutex<()>>,
}

impl Catalog {
    /// The file that a `sqlite://` URL names; `None` for other databases and for one in memory.
    ///
    /// # Errors
    /// [`CatalogError`] when the URL is not that of a catalog.
    pub fn file(url: &str) -> Result<Option<PathBuf>, CatalogError> {
        Ok(Location::parse(url)?.file)
    }

    /// Opens the database at `sqlite://path`, `sqlite::memory:`, `postgres://…` or `mysql://…` and
    /// migrates its schema.
    ///
    /// # Errors
    /// [`CatalogError`], which never contains the password:
    /// [`is_unavailable`](CatalogError::is_unavailable) when the database cannot be reached,
    /// [`is_permanent`](CatalogError::is_permanent) when it denies access or has a newer schema.
    pub async fn open(url: &str) -> Result<Self, CatalogError> {
        Self::open_with(url, CatalogOptions::default()).await
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As for [`open`](Self::open), and [`is_permanent`](CatalogError::is_permanent) when the audit
    /// key is too short.
    pub async fn open_with(url: &str, options: CatalogOptions) -> Result<Self, CatalogError> {
        let CatalogOptions { clock, audit_key } = options;
        let given = audit_key.as_deref().map(AuditKey::new).transpose()?;
        let location = Location::parse(url)?;
        let file = location.file.clone();
        let (kind, is_memory) = (location.kind, location.is_memory);
        if !is_memory {
            let mut attempt = 1;
            // SQLite does not wait for locks while the file is being turned into a database.
            while let Err(error) = migrate_schema(&location).await {
                if !error.is_rolled_back() || attempt == OPEN_ATTEMPTS_MAX {
                    return Err(error);
                }
                attempt += 1;
                sleep(OPEN_PAUSE).await;
            }
        }
        let pool = location.pool();
        // A database in memory has only one connection.
        let readers = if is_memory { pool.clone() } else { location.readers() };
        let unknown = AuditKey::new(&random_hexadecimal::<32>()?)?;
        let mut catalog = Self {
            kind,
            is_memory,
            pool,
            readers,
            clock,
            pepper: Arc::default(),
            audit_key: Arc::new(AuditKeySource::Known(given.clone().unwrap_or(unknown))),
            file_rules: Arc::default(),
            lineage: Arc::default(),
            turn: Arc::default(),
        };
        if is_memory {
            let mut lease = catalog.lease().await?;
            schema::migrate(lease.connection(), kind).await?;
            lease.settle();
        }
        catalog.pepper = catalog.load_secret("pacegate_catalog_state", "key_pepper").await?.into();
        if given.is_none() {
            if let Some(file) = &file {
                catalog.audit_key = Arc::new(AuditKeySource::beside(file));
            } else if !is_memory {
                tracing::warn!(
                    "the audit key is stored in the catalog itself: any account that can write to the database can forge the audit trail; \
                     set catalog.audit_key to store it outside the database"
                );
                let secret = catalog.load_secret("pacegate_audit_state", "secret").await?;
                catalog.audit_key = Arc::new(AuditKeySource::Known(AuditKey::new(&secret)?));
            }
        }
        Ok(catalog)
    }

    /// Loads a random secret from the catalog; the first node creates it.
    async fn load_secret(&self, table: &str, name: &str) -> Result<String, CatalogError> {
        let mut lease = self.begin().await?;
        let sql = format!("SELECT {name} FROM {table} WHERE {name} <> ''");
        let mut row = self.statement(&sql).row(lease.connection()).await?;
        if row.is_none() {
            let make = format!("UPDATE {table} SET {name} = ? WHERE {name} = ''");
            self.statement(&make).bind(random_hexadecimal::<32>()?).run(lease.connection()).await?;
            row = self.statement(&sql).row(lease.connection()).await?;
        }
        lease.commit().await?;
        let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state row is missing"))?;
        column(&row, 0)
    }

    /// The current revision of the catalog. The query is cheap enough to poll.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn revision(&self) -> Result<Revision, CatalogError> {
        let mut lineage = self.lineage.lock().await;
        let mut lease = self.begin().await?;
        let (revision, head, removed) = state(lease.connection(), self.kind).await?;
        if !self.continues(lease.connection(), &lineage.seen, &head, removed).await? {
            tracing::warn!("catalog restored from another state; reloading everything");
            lineage.epoch += 1;
        }
        lease.commit().await?;
        lineage.seen = head;
        Ok(Revision { epoch: lineage.epoch, ..revision })
    }

    /// Whether the history that ends with `head` contains the record `seen`, the newest one before.
    async fn continues(
        &self,
        connection: &mut AnyConnection,
        seen: &AuditHead,
        head: &AuditHead,
        removed: i64,
    ) -> Result<bool, CatalogError> {
        if seen == head || seen.sequence == 0 {
            return Ok(true);
        }
        if head.sequence <= seen.sequence {
            return Ok(false);
        }
        // Retention removed the record, so it cannot be compared.
        if seen.sequence <= removed {
            return Ok(true);
        }
        let sql = "SELECT hash FROM pacegate_audit_log WHERE sequence = ?";
        let row = self.statement(sql).bind(seen.sequence).row(connection).await?;
        Ok(row.map(|row| column::<String>(&row, 0)).transpose()?.as_ref() == Some(&seen.hash))
    }

    /// The revision within a snapshot, in the epoch that was seen last.
    pub(crate) async fn revision_in(
        &self,
        snapshot: &mut AnyConnection,
        epoch: u64,
    ) -> Result<Revision, CatalogError> {
        let (revision, ..) = state(snapshot, self.kind).await?;
        Ok(Revision { epoch, ..revision })
    }

    pub(crate) async fn epoch(&self) -> u64 {
        self.lineage.lock().await.epoch
    }

    /// Checks that the database responds.
    ///
    /// # Errors
    /// [`CatalogError`] when it does not.
    pub async fn ping(&self) -> Result<(), CatalogError> {
        let mut lease = self.begin().await?;
        state(lease.connection(), self.kind).await?;
        lease.commit().await
    }

    pub(crate) fn statement<'q>(&self, sql: &str) -> Statement<'q> {
        Statement::new(self.kind, sql)
    }

    pub(crate) async fn rows(&self, statement: Statement<'_>) -> Result<Vec<AnyRow>, CatalogError> {
        let mut lease = self.begin().await?;
        let rows = statement.rows(lease.connection()).await?;
        lease.commit().await?;
        Ok(rows)
    }

    /// The rows of a list, on a connection and with a timeout reserved for lists.
    pub(crate) async fn read(&self, statement: Statement<'_>) -> Result<Vec<AnyRow>, CatalogError> {
        let busy = |error: sqlx::Error| match error {
            sqlx::Error::PoolTimedOut => CatalogError::unavailable(
                "too many concurrent list queries on the catalog; retry, or narrow the query with `since`",
            ),
            error => CatalogError::before_commit(&error),
        };
        let connection = self.readers.acquire().await.map_err(busy)?;
        let mut lease = Lease { connection, is_settled: self.is_memory, has_begun: false };
        if let Some(begin) = self.kind.begin_list() {
            bounded(STATEMENT_TIMEOUT, raw_sql(begin).execute(lease.connection())).await?;
            lease.has_begun = true;
        }
        let rows = statement.listing().rows(lease.connection()).await?;
        lease.commit().await?;
        Ok(rows)
    }

    pub(crate) async fn row(&self, statement: Statement<'_>) -> Result<Option<AnyRow>, CatalogError> {
        let mut lease = self.begin().await?;
        let row = statement.row(lease.connection()).await?;
        lease.commit().await?;
        Ok(row)
    }

    /// Returns the number of changed rows.
    pub(crate) async fn run(&self, statement: Statement<'_>) -> Result<u64, CatalogError> {
        let mut lease = self.begin().await?;
        let changed = statement.run(lease.connection()).await?;
        lease.commit().await?;
        Ok(changed)
    }

    /// A connection for several statements, ended by [`Lease::commit`]. Behind a pooler they run in
    /// a transaction, which keeps them on one server process.
    pub(crate) async fn begin(&self) -> Result<Lease, CatalogError> {
        let mut lease = self.lease().await?;
        if let Some(begin) = self.kind.begin_statement() {
            bounded(STATEMENT_TIMEOUT, raw_sql(begin).execute(lease.connection())).await?;
            lease.has_begun = true;
        }
        Ok(lease)
    }

    pub(crate) async fn lease(&self) -> Result<Lease, CatalogError> {
        let connection = self.pool.acquire().await.map_err(|error| CatalogError::before_commit(&error))?;
        Ok(Lease { connection, is_settled: self.is_memory, has_begun: false })
    }
}

async fn migrate_schema(location: &Location) -> Result<(), CatalogError> {
    let mut connection = location.connect().await?;
    location.reject_unknown_pooler(&mut connection).await?;
    schema::migrate(&mut connection, location.kind).await?;
    // MySQL logs a warning about clients that disconnect without closing.
    bounded(STATEMENT_TIMEOUT, connection.close()).await
}

/// The history that a node has seen.
#[derive(Debug, Default)]
struct Lineage {
    seen: AuditHead,
    epoch: u64,
}

/// The revision, the newest audit record, and the sequence of the last removed one.
async fn state(
    connection: &mut AnyConnection,
    kind: Kind,
) -> Result<(Revision, AuditHead, i64), CatalogError> {
    let sql = "SELECT revision, rules_revision, users_revision, audit_sequence, audit_hash, audit_removed_sequence FROM pacegate_catalog_state";
    let row = Statement::new(kind, sql).row(connection).await?;
    let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state row is missing"))?;
    let head = AuditHead { sequence: column(&row, 3)?, hash: column(&row, 4)? };
    let (all, rules, users) = (column(&row, 0)?, column(&row, 1)?, column(&row, 2)?);
    let revision = Revision { epoch: 0, all, rules, users, audit: head.sequence };
    Ok((revision, head, column(&row, 5)?))
}

/// A connection that is closed instead of returned to the pool if it is dropped before it is
/// settled. SQLite ends a transaction by itself when the disk is full, which the driver does not
/// notice.
pub(crate) struct Lease {
    connection: PoolConnection<Any>,
    is_settled: bool,
    /// Whether a transaction has to be ended.
    has_begun: bool,
}

impl Lease {
    pub(crate) fn connection(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }

    /// Ends what [`Catalog::begin`] started.
    pub(crate) async fn commit(mut self) -> Result<(), CatalogError> {
        if self.has_begun {
            bounded(STATEMENT_TIMEOUT, raw_sql("COMMIT").execute(self.connection())).await?;
        }
        self.settle();
        Ok(())
    }

    /// Returns the connection to the pool: no transaction is open.
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_settled {
            self.connection.close_on_drop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Actor, UserChange};
    use pacegate::{Limit, Rule};

    async fn file() -> (tempfile::TempDir, Catalog) {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("catalog.db").display());
        let catalog = Catalog::open(&url).await.unwrap();
        (directory, catalog)
    }

    /// Runs a statement on every connection of the pool.
    async fn on_every_connection(catalog: &Catalog, sql: &str) -> Vec<String> {
        let mut leases = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..4 {
            let mut lease = catalog.lease().await.unwrap();
            let row = catalog.statement(sql).row(lease.connection()).await.unwrap();
            answers.extend(row.map(|row| {
                column::<i64>(&row, 0).map_or_else(|_| column(&row, 0).unwrap(), |number| number.to_string())
            }));
            leases.push(lease);
        }
        leases.into_iter().for_each(Lease::settle);
        answers
    }

    fn rule(name: &str) -> Rule {
        Rule::new(name, "user", Limit::per_minute(1).build().unwrap())
    }

    #[tokio::test]
    async fn every_connection_to_a_file_is_durable() {
        let (_directory, catalog) = file().await;
        let settings =
            [("synchronous", "2"), ("journal_mode", "wal"), ("foreign_keys", "1"), ("busy_timeout", "5000")];
        for (setting, value) in settings {
            assert_eq!(
                on_every_connection(&catalog, &format!("PRAGMA {setting}")).await,
                [value; 4],
                "{setting}"
            );
        }
        assert_eq!(catalog.pool.size(), 4);
    }

    #[tokio::test]
    async fn full_disk_fails_changes_with_a_clear_error() {
        let (_directory, catalog) = file().await;
        let actor = Actor::default();
        catalog.create_rule(&actor, &rule("kept"), None).await.unwrap();
        let before = catalog.rules().await.unwrap();
        for (obstacle, message) in [
            ("PRAGMA max_page_count = 1", "the disk of the catalog database is full"),
            ("PRAGMA query_only = 1", "the catalog database is read-only"),
        ] {
            on_every_connection(&catalog, obstacle).await;
            let error = loop {
                // Repeated until the last page is full.
                let name = uuid::Uuid::now_v7().to_string();
                match catalog.put_user(&actor, &name.repeat(20), UserChange::all(None, &[]), None).await {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert!(error.is_unavailable() && !error.is_uncertain(), "{error:?}");
            assert_eq!(error.to_string(), message);
            assert_eq!(catalog.rules().await.unwrap().rules, before.rules);
            let revision = catalog.revision().await.unwrap();
            assert_eq!(
                catalog.audit_verify(None).await.unwrap().records,
                u64::try_from(revision.all).unwrap()
            );
        }
        for relief in ["PRAGMA query_only = 0", "PRAGMA max_page_count = 1000000"] {
            on_every_connection(&catalog, relief).await;
        }
        // More often than the pool has connections.
        for number in 0..8 {
            catalog.create_rule(&actor, &rule(&format!("later {number}")), None).await.unwrap();
        }
    }
}
