//! The three kinds of databases: where they are, how they are connected to, and what differs between their languages.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::{AnyConnection, AnyPool, Connection, raw_sql};

use crate::error::CatalogError;
use crate::statement::bounded;

/// How long anybody waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After that an unused connection is closed, long before the server does it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const SERVER_CONNECTIONS: u32 = 5;
const SQLITE_CONNECTIONS: u32 = 4;

/// Which kind of database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// Where a database is. It is never shown, because there may be a password in it.
pub(crate) struct Location {
    pub(crate) kind: Kind,
    /// Inside this process, and gone with its connection.
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
            "postgres" | "postgresql" => Kind::Postgres,
            "mysql" | "mariadb" => Kind::MySql,
            _ => {
                let message = "a catalog's URL starts with sqlite://, postgres:// or mysql://";
                return Err(CatalogError::permanent(message));
            }
        };
        let is_memory = url == "sqlite::memory:";
        let file = if kind == Kind::Sqlite && !is_memory { Some(file(url)?) } else { None };
        let file_url = file.as_deref().map(file_url);
        // The URL has a password in it, and the error may have the URL in it.
        let options = file_url.as_deref().unwrap_or(url).parse().map_err(|_: sqlx::Error| {
            CatalogError::permanent("is not a URL like postgres://user:password@host:5432/database")
        })?;
        Ok(Self { kind, is_memory, file, options })
    }

    /// One connection, ready for use. It tells more about what is wrong than a pool would.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, CatalogError> {
        install_default_drivers();
        bounded(CONNECT_TIMEOUT, async {
            if let Some(file) = &self.file {
                make_private(file);
            }
            let mut connection = AnyConnection::connect_with(&self.options).await?;
            if self.kind == Kind::Sqlite {
                // The file remembers it. Readers then do not wait for a writer.
                raw_sql("PRAGMA journal_mode = WAL").execute(&mut connection).await?;
            }
            prepare(&mut connection, self.kind).await?;
            Ok(connection)
        })
        .await
    }

    pub(crate) fn pool(self) -> AnyPool {
        install_default_drivers();
        let kind = self.kind;
        let options = AnyPoolOptions::new().acquire_timeout(CONNECT_TIMEOUT);
        let options = if self.is_memory {
            // It cannot be dead, and whoever goes away while it is being tested would take it along.
            options.max_connections(1).idle_timeout(None).max_lifetime(None).test_before_acquire(false)
        } else if kind == Kind::Sqlite {
            options.max_connections(SQLITE_CONNECTIONS)
        } else {
            options.max_connections(SERVER_CONNECTIONS).idle_timeout(IDLE_TIMEOUT)
        };
        let options = options.after_connect(move |connection, _| Box::pin(prepare(connection, kind)));
        options.connect_lazy_with(self.options)
    }
}

/// What holds for a connection as long as it lives.
async fn prepare(connection: &mut AnyConnection, kind: Kind) -> Result<(), sqlx::Error> {
    let settings = match kind {
        // A change that was acknowledged survives a power cut.
        Kind::Sqlite => "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 5000",
        // A node that stands still in the middle of a change does not stop the others for longer than that.
        Kind::Postgres => {
            "SET lock_timeout = '5s'; SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'"
        }
        // Snapshots need this isolation, whatever the server's own is.
        Kind::MySql => {
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET innodb_lock_wait_timeout = 5, wait_timeout = 120"
        }
    };
    raw_sql(settings).execute(connection).await.map(drop)
}

impl Kind {
    /// Begins a change. Only SQLite has to be told that it is one, or readers could not become writers.
    pub(crate) const fn begin_change(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::MySql => "START TRANSACTION",
        }
    }

    /// Begins several reads that see the same.
    pub(crate) const fn begin_snapshot(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN",
            Self::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Self::MySql => "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        }
    }

    /// The statement as this database wants it: PostgreSQL numbers its parameters.
    pub(crate) fn placeholders(self, sql: &str) -> String {
        if self != Self::Postgres {
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

    /// What follows the rows of an INSERT so that users who are there get the new tier.
    pub(crate) const fn replace_tier(self) -> &'static str {
        match self {
            Self::Sqlite | Self::Postgres => {
                " ON CONFLICT (user_key) DO UPDATE SET tier = excluded.tier, version = pacegate_users.version + 1, updated_at = excluded.updated_at"
            }
            Self::MySql => {
                " ON DUPLICATE KEY UPDATE tier = VALUES(tier), version = version + 1, updated_at = VALUES(updated_at)"
            }
        }
    }
}

/// Makes a file that is missing, for its owner alone: hashes of keys and the users' names are in it. SQLite gives the files beside it the same rights, and
/// says what is wrong if it cannot be made.
fn make_private(file: &Path) {
    let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
}

/// The absolute path of a SQLite database.
fn file(url: &str) -> Result<PathBuf, CatalogError> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or_default();
    if path.is_empty() || path.contains(['?', '#']) {
        return Err(CatalogError::permanent("is not a URL like sqlite://pacegate.db"));
    }
    std::path::absolute(Path::new(path))
        .map_err(|error| CatalogError::permanent(format!("the catalog's file cannot be used: {error}")))
}

/// A URL that the driver reads as exactly this path; the file is made if it is missing.
fn file_url(path: &Path) -> String {
    let mut encoded = String::from("sqlite://");
    for byte in path.to_string_lossy().bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => encoded.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded.push_str("?mode=rwc");
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_postgres_numbers_its_parameters() {
        let sql = "SELECT a FROM b WHERE c = ? AND d > ? LIMIT ?";
        assert_eq!(Kind::Postgres.placeholders(sql), "SELECT a FROM b WHERE c = $1 AND d > $2 LIMIT $3");
        assert_eq!(Kind::MySql.placeholders(sql), sql);
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
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
    fn a_wrong_url_does_not_show_its_password() {
        for url in
            ["postgres://user:hunter2@host:port/x", "oracle://user:hunter2@host/x", "mysql://u:hunter2@[x"]
        {
            let error = Location::parse(url).err().unwrap();
            assert!(error.is_permanent() && !format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
