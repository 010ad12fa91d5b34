//! The catalog: a pool of connections, the clock, and whose turn it is to change something.

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{Any, AnyRow};
use sqlx::pool::PoolConnection;
use sqlx::{AnyConnection, AnyPool};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tollgate::{Clock, SystemClock};

use crate::database::{Kind, Location};
use crate::error::CatalogError;
use crate::record::Revision;
use crate::schema;
use crate::statement::{Statement, column};

/// How often a file is opened again that others are just making into a database.
const OPEN_ATTEMPTS_MAX: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// Configuration, users, keys and the audit trail in a database. See the crate documentation. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub(crate) kind: Kind,
    pub(crate) pool: AnyPool,
    pub(crate) clock: Arc<dyn Clock>,
    /// Changes of this node wait here, and not each with a connection for the row that all of them lock first.
    pub(crate) turn: Arc<Mutex<()>>,
}

impl Catalog {
    /// Opens the database at `sqlite://path`, `sqlite::memory:`, `postgres://…` or `mysql://…`, and brings its schema up to date.
    ///
    /// # Errors
    /// [`CatalogError`], never with the password in it: [`is_unavailable`](CatalogError::is_unavailable) when the database cannot be reached,
    /// [`is_permanent`](CatalogError::is_permanent) when it refuses us or has a schema newer than ours.
    pub async fn open(url: &str) -> Result<Self, CatalogError> {
        Self::open_with_clock(url, Arc::new(SystemClock::new())).await
    }

    /// As [`open`](Self::open), with a clock that says when changes are made.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, CatalogError> {
        let location = Location::parse(url)?;
        let (kind, is_memory) = (location.kind, location.is_memory);
        if !is_memory {
            let mut attempt = 1;
            // While a file becomes a database SQLite does not wait for locks.
            while let Err(error) = bring_up_to_date(&location).await {
                if !error.is_rolled_back() || attempt == OPEN_ATTEMPTS_MAX {
                    return Err(error);
                }
                attempt += 1;
                sleep(OPEN_PAUSE).await;
            }
        }
        let catalog = Self { kind, pool: location.pool(), clock, turn: Arc::default() };
        if is_memory {
            let mut lease = catalog.lease().await?;
            schema::migrate(lease.connection(), kind).await?;
            lease.settle();
        }
        Ok(catalog)
    }

    /// How far the catalog has been changed: a cheap question, to be asked often.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not answer.
    pub async fn revision(&self) -> Result<Revision, CatalogError> {
        let mut lease = self.lease().await?;
        let revision = revision(lease.connection(), self.kind).await?;
        lease.settle();
        Ok(revision)
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// [`CatalogError`] when it does not.
    pub async fn ping(&self) -> Result<(), CatalogError> {
        self.revision().await.map(drop)
    }

    pub(crate) fn statement<'q>(&self, sql: &str) -> Statement<'q> {
        Statement::new(self.kind, sql)
    }

    pub(crate) async fn rows(&self, statement: Statement<'_>) -> Result<Vec<AnyRow>, CatalogError> {
        let mut lease = self.lease().await?;
        let rows = statement.rows(lease.connection()).await?;
        lease.settle();
        Ok(rows)
    }

    pub(crate) async fn row(&self, statement: Statement<'_>) -> Result<Option<AnyRow>, CatalogError> {
        let mut lease = self.lease().await?;
        let row = statement.row(lease.connection()).await?;
        lease.settle();
        Ok(row)
    }

    pub(crate) async fn lease(&self) -> Result<Lease, CatalogError> {
        let connection = self.pool.acquire().await.map_err(|error| CatalogError::before_commit(&error))?;
        Ok(Lease { connection, is_settled: self.kind == Kind::Sqlite })
    }
}

async fn bring_up_to_date(location: &Location) -> Result<(), CatalogError> {
    let mut connection = location.connect().await?;
    schema::migrate(&mut connection, location.kind).await
}

pub(crate) async fn revision(connection: &mut AnyConnection, kind: Kind) -> Result<Revision, CatalogError> {
    let sql = "SELECT revision, rules_revision, users_revision FROM tollgate_catalog_state";
    let row = Statement::new(kind, sql).row(connection).await?;
    let row = row.ok_or_else(|| CatalogError::permanent("the catalog's state is missing"))?;
    Ok(Revision { all: column(&row, 0)?, rules: column(&row, 1)?, users: column(&row, 2)? })
}

/// A connection that is closed, and not used by others, when somebody goes away or gives up in the middle of something.
pub(crate) struct Lease {
    connection: PoolConnection<Any>,
    is_settled: bool,
}

impl Lease {
    pub(crate) fn connection(&mut self) -> &mut AnyConnection {
        &mut self.connection
    }

    /// Everything that was begun is ended.
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
