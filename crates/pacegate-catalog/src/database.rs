//! The three kinds of databases: how to connect to them, and how their SQL differs.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::{AnyConnection, AnyPool, Connection, Row, raw_sql};

use crate::error::{CatalogError, POOLED};
use crate::statement::bounded;

/// Maximum time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed, well before the server closes it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_CONNECTIONS: u32 = 5;
/// Number of times that two connections are compared before they count as unpooled.
const PROBES: u32 = 5;
const SQLITE_CONNECTIONS: u32 = 4;
/// Maximum number of concurrent list queries.
const READERS: u32 = 2;
/// Maximum time that a list query waits for a connection.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// The kind of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres {
        /// Whether a pooler may assign each transaction to another server process. Prepared
        /// statements then do not outlive a transaction.
        is_pooled: bool,
    },
    MySql,
}

/// The location of a database. It has no `Debug` because it may contain a password.
pub(crate) struct Location {
    pub(crate) kind: Kind,
    /// Whether the database is in this process's memory and is lost with its connection.
    pub(crate) is_memory: bool,
    /// The file of a SQLite database.
    pub(crate) file: Option<PathBuf>,
    options: AnyConnectOptions,
}

impl Location {
    pub(crate) fn parse(url: &str) -> Result<Self, CatalogError> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let kind = match scheme {
            "sqlite" => Kind::Sqlite,
            "postgres" | "postgresql" => Kind::Postgres { is_pooled: false },
            "mysql" | "mariadb" => Kind::MySql,
            _ => {
                let message = "expected a URL that starts with sqlite://, postgres:// or mysql://";
                return Err(CatalogError::permanent(message));
            }
        };
        let (mut url, mut kind) = (Cow::Borrowed(url), kind);
        if kind.is_postgres() {
            let (is_pooled, others) = take_pooling(&url)?;
            (url, kind) = (Cow::Owned(others), Kind::Postgres { is_pooled });
        }
        let is_memory = url == "sqlite::memory:";
        let file = if kind == Kind::Sqlite && !is_memory { Some(file(&url)?) } else { None };
        let file_url = file.as_deref().map(file_url);
        // The URL contains a password, and the error may contain the URL.
        let options = file_url.as_deref().unwrap_or(&url).parse().map_err(|_: sqlx::Error| {
            CatalogError::permanent("expected a URL such as postgres://user:password@host:5432/database")
        })?;
        Ok(Self { kind, is_memory, file, options })
    }

    /// Opens one connection, ready for use. Its errors are more specific than those of a pool.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, CatalogError> {
        install_default_drivers();
        bounded(CONNECT_TIMEOUT, async {
            if let Some(file) = &self.file {
                make_private(file);
            }
            let mut connection = AnyConnection::connect_with(&self.options).await?;
            if self.kind == Kind::Sqlite {
                // This setting is persistent. It lets readers run during a write.
                raw_sql("PRAGMA journal_mode = WAL").execute(&mut connection).await?;
            }
            prepare(&mut connection, self.kind, false).await?;
            Ok(connection)
        })
        .await
    }

    /// Rejects a pooler in transaction mode that the URL does not announce. Prepared statements do
    /// not work through one, and may even run another client's statement. A pooler shows itself by
    /// moving connections between server processes.
    pub(crate) async fn reject_unknown_pooler(&self, first: &mut AnyConnection) -> Result<(), CatalogError> {
        if self.kind != (Kind::Postgres { is_pooled: false }) {
            return Ok(());
        }
        let mut second = self.connect().await?;
        let moves = bounded(CONNECT_TIMEOUT, moves(first, &mut second)).await?;
        bounded(CONNECT_TIMEOUT, second.close()).await?;
        if moves { Err(CatalogError::permanent(POOLED)) } else { Ok(()) }
    }

    pub(crate) fn pool(&self) -> AnyPool {
        let kind = self.kind;
        let options = AnyPoolOptions::new().acquire_timeout(CONNECT_TIMEOUT);
        let options = if self.is_memory {
            // The connection is in process and cannot be dead. A caller that is cancelled during
            // the test would drop it and the data with it.
            options.max_connections(1).idle_timeout(None).max_lifetime(None).test_before_acquire(false)
        } else if kind == Kind::Sqlite {
            options.max_connections(SQLITE_CONNECTIONS)
        } else {
            options.max_connections(SERVER_CONNECTIONS).idle_timeout(IDLE_TIMEOUT)
        };
        self.start(options, false)
    }

    /// A separate pool for lists, which can take seconds.
    pub(crate) fn readers(&self) -> AnyPool {
        let options = AnyPoolOptions::new().acquire_timeout(READER_TIMEOUT).max_connections(READERS);
        self.start(options.idle_timeout(IDLE_TIMEOUT), true)
    }

    fn start(&self, options: AnyPoolOptions, for_lists: bool) -> AnyPool {
        install_default_drivers();
        let kind = self.kind;
        let options =
            options.after_connect(move |connection, _| Box::pin(prepare(connection, kind, for_lists)));
        options.connect_lazy_with(self.options.clone())
    }
}

/// Settings for the lifetime of a connection.
async fn prepare(connection: &mut AnyConnection, kind: Kind, for_lists: bool) -> Result<(), sqlx::Error> {
    let settings = match kind {
        // An acknowledged change survives a power failure.
        Kind::Sqlite => "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 5000",
        // A pooler may assign the server process to another client, so settings are part of each
        // transaction.
        Kind::Postgres { .. } => return Ok(()),
        // MariaDB and MySQL each execute one of the comments; both limit the duration of a list.
        Kind::MySql if for_lists => {
            "SET innodb_lock_wait_timeout = 5, wait_timeout = 120 \
             /*M!100101 , max_statement_time = 5 */ /*!50708 , max_execution_time = 5000 */"
        }
        // Snapshots require this isolation level, whatever the server's default is.
        Kind::MySql => {
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET innodb_lock_wait_timeout = 5, wait_timeout = 120"
        }
    };
    raw_sql(settings).execute(connection).await.map(drop)
}

impl Kind {
    /// Begins a change. SQLite must know from the start, because a reader cannot be upgraded to a
    /// writer.
    pub(crate) const fn begin_change(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            // Limits how long a node that stalls during a change blocks the others.
            Self::Postgres { .. } => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '5s'; \
                 SET LOCAL statement_timeout = '60s'; SET LOCAL idle_in_transaction_session_timeout = '60s'"
            }
            Self::MySql => "START TRANSACTION",
        }
    }

    /// Begins a transaction that is needed only behind a pooler; `None` without one.
    pub(crate) const fn begin_statement(self) -> Option<&'static str> {
        match self {
            Self::Postgres { is_pooled: true } => Some(self.begin_change()),
            _ => None,
        }
    }

    /// Begins a list, with a timeout in the database; `None` where the connection has that timeout.
    pub(crate) const fn begin_list(self) -> Option<&'static str> {
        match self {
            Self::Postgres { .. } => {
                Some("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = '5s'")
            }
            Self::Sqlite | Self::MySql => None,
        }
    }

    pub(crate) const fn is_postgres(self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// Whether a connection can reuse a prepared statement.
    pub(crate) const fn keeps_statements(self) -> bool {
        !matches!(self, Self::Postgres { is_pooled: true })
    }

    /// Begins a snapshot: several reads that see the same data.
    pub(crate) const fn begin_snapshot(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN",
            Self::Postgres { .. } => {
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '60s'; \
                 SET LOCAL idle_in_transaction_session_timeout = '60s'"
            }
            Self::MySql => "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        }
    }

    /// Replaces `?` by the placeholders of this database: PostgreSQL numbers its parameters.
    pub(crate) fn placeholders(self, sql: &str) -> String {
        if !self.is_postgres() {
            return sql.to_owned();
        }
        let mut numbered = String::with_capacity(sql.len() + 16);
        for (number, part) in sql.split('?').enumerate() {
            if number > 0 {
                numbered.push('$');
                numbered.push_str(&number.to_string());
            }
            numbered.push_str(part);
        }
        numbered
    }

    /// The end of an INSERT that gives existing users the new tier.
    pub(crate) const fn replace_tier(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres { .. } => {
                " ON CONFLICT (user_key) DO UPDATE SET tier = excluded.tier, version = pacegate_users.version + 1, updated_at = excluded.updated_at"
            }
            Self::MySql => {
                " ON DUPLICATE KEY UPDATE tier = VALUES(tier), version = version + 1, updated_at = VALUES(updated_at)"
            }
        }
    }
}

/// Removes the parameter `pooling` from a PostgreSQL URL. Returns whether it is `transaction`, and
/// the URL without it.
fn take_pooling(url: &str) -> Result<(bool, String), CatalogError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut is_pooled, mut others) = (false, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.strip_prefix("pooling=") {
            None => others.push(pair),
            Some("transaction") => is_pooled = true,
            Some("session") => is_pooled = false,
            Some(_) => return Err(CatalogError::permanent("pooling: expected `session` or `transaction`")),
        }
    }
    let separator = if others.is_empty() { "" } else { "?" };
    Ok((is_pooled, format!("{base}{separator}{}", others.join("&"))))
}

/// Whether a connection changes its server process, as far as a few transactions on two connections
/// show.
async fn moves(first: &mut AnyConnection, second: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    for _ in 0..PROBES {
        let own = process_id(first).await?;
        raw_sql("BEGIN").execute(&mut *second).await?;
        // A pooler assigns the process that was released last.
        let moves = process_id(second).await? == own || process_id(first).await? != own;
        raw_sql("ROLLBACK").execute(&mut *second).await?;
        if moves {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn process_id(connection: &mut AnyConnection) -> Result<String, sqlx::Error> {
    raw_sql("SELECT pg_backend_pid()::text").fetch_one(connection).await?.try_get(0)
}

/// Creates a missing file that only its owner can access, because it contains hashes of keys and
/// names of users. SQLite gives the same permissions to the files next to it, and reports the error
/// if the file cannot be created.
fn make_private(file: &Path) {
    let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
}

/// The absolute path of a SQLite database.
fn file(url: &str) -> Result<PathBuf, CatalogError> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or_default();
    if path.is_empty() || path.contains(['?', '#']) {
        return Err(CatalogError::permanent("expected a URL such as sqlite://pacegate.db"));
    }
    std::path::absolute(Path::new(path))
        .map_err(|error| CatalogError::permanent(format!("catalog file cannot be used: {error}")))
}

/// A URL that the driver reads as exactly this path; the file is created if it is missing.
fn file_url(path: &Path) -> String {
    const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    format!("sqlite://{}?mode=rwc", utf8_percent_encode(&path.to_string_lossy(), &ESCAPED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_postgres_numbers_its_parameters() {
        let sql = "SELECT a FROM b WHERE c = ? AND d > ? LIMIT ?";
        assert_eq!(
            Kind::Postgres { is_pooled: false }.placeholders(sql),
            "SELECT a FROM b WHERE c = $1 AND d > $2 LIMIT $3"
        );
        assert_eq!(Kind::MySql.placeholders(sql), sql);
    }

    #[test]
    fn path_is_used_verbatim() {
        let url_of = |url| file_url(&file(url).unwrap());
        assert_eq!(url_of("sqlite:///tmp/a b%/ä.db"), "sqlite:///tmp/a%20b%25/%C3%A4.db?mode=rwc");
        let relative = url_of("sqlite://catalog.db");
        assert!(
            relative.starts_with("sqlite:///") && relative.ends_with("/catalog.db?mode=rwc"),
            "{relative}"
        );
        assert!(file("sqlite://").is_err());
    }

    #[test]
    fn invalid_url_error_hides_the_password() {
        for url in
            ["postgres://user:hunter2@host:port/x", "oracle://user:hunter2@host/x", "mysql://u:hunter2@[x"]
        {
            let error = Location::parse(url).err().unwrap();
            assert!(error.is_permanent() && !format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
