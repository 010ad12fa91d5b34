//! Classifies database errors: rolled back, not run, or uncertain.

use std::io::ErrorKind;

use pacegate_store::StoreError;
use sqlx::error::DatabaseError;

/// Why a transaction did not complete.
#[derive(Debug)]
pub(crate) enum TransactionError {
    /// The database rolled it back, and it can be retried: a deadlock or a serialization failure.
    RolledBack(StoreError),
    /// A row lock or a statement timed out; MariaDB does not distinguish the two.
    Locked(StoreError),
    /// It did not run and cannot be retried: the connection is lost, or the database rejected it.
    NotRun(StoreError),
    /// The connection was lost during the commit.
    Uncertain(StoreError),
}

/// Classifies an error before COMMIT, where losing the connection undoes everything.
pub(crate) fn before_commit(error: &sqlx::Error) -> TransactionError {
    match error {
        sqlx::Error::Database(database) => of_database(&**database),
        error => TransactionError::NotRun(lost(error)),
    }
}

/// Classifies an error during COMMIT, which may have been executed although its reply was lost.
pub(crate) fn during_commit(error: &sqlx::Error) -> TransactionError {
    match error {
        // A server that is shutting down may still have committed it.
        sqlx::Error::Database(database) => match of_database(&**database) {
            TransactionError::NotRun(error) | TransactionError::Locked(error) if error.is_retryable() => {
                TransactionError::Uncertain(StoreError::uncertain(error.to_string()))
            }
            error => error,
        },
        error => TransactionError::Uncertain(StoreError::uncertain(format!(
            "connection lost during commit: {error}"
        ))),
    }
}

fn of_database(error: &dyn DatabaseError) -> TransactionError {
    let code = error.code().unwrap_or_default();
    // MySQL has its own error numbers in addition to the SQLSTATE.
    let number =
        error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map_or(0, |error| error.number());
    match (&*code, number) {
        (_, 1213) | ("40P01", _) => TransactionError::RolledBack(StoreError::unavailable(
            "transaction rolled back because of a deadlock",
        )),
        (_, 1205 | 1969 | 3024) | ("55P03", _) => TransactionError::Locked(locked()),
        ("40001", _) => TransactionError::RolledBack(StoreError::unavailable(
            "transaction rolled back because of a concurrent one",
        )),
        // A prepared statement is missing, or was prepared by another client.
        ("26000" | "42P05", _) => TransactionError::NotRun(pooled()),
        ("57014", _) => TransactionError::RolledBack(StoreError::unavailable(
            "the database cancelled a statement that took too long",
        )),
        (_, 1044 | 1045 | 1142 | 1698) | ("28000" | "28P01" | "42501", _) => TransactionError::NotRun(
            StoreError::rejected(format!("database access denied: {}", error.message())),
        ),
        (_, 1049) | ("3D000", _) => TransactionError::NotRun(StoreError::rejected(error.message())),
        (_, 1146) | ("42P01", _) => {
            TransactionError::NotRun(StoreError::rejected("a table is missing; restart to create it"))
        }
        (_, 1040 | 1047 | 1053 | 1203 | 1226 | 1317 | 1927)
        | ("53100" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "58030", _) => {
            TransactionError::NotRun(StoreError::unavailable(error.message()))
        }
        _ => TransactionError::NotRun(StoreError::rejected(format!("database error: {}", error.message()))),
    }
}

/// The error for a pooler that assigns each transaction to another server process, which breaks
/// prepared statements.
pub(crate) fn pooled() -> StoreError {
    StoreError::rejected(
        "PostgreSQL is behind a connection pooler in transaction mode: add pooling=transaction to the URL's \
         parameters, or use session mode",
    )
}

/// The error for an invalid URL, which may contain a password and is therefore not shown.
pub(crate) fn invalid_url(_: sqlx::Error) -> StoreError {
    StoreError::rejected("expected a URL such as postgres://user:password@host:5432/database")
}

/// Another transaction holds a row that a request needs; nothing ran.
pub(crate) fn locked() -> StoreError {
    StoreError::unavailable("timed out waiting for a row lock")
}

/// The error for a connection that could not be established; nothing ran.
pub(crate) fn not_connected(error: &sqlx::Error) -> StoreError {
    match error {
        // This is how a handshake fails: unknown authority, wrong name, missing certificate.
        sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            StoreError::rejected(format!("TLS handshake failed: {error}"))
        }
        error => lost(error),
    }
}

/// The error for a lost connection.
fn lost(error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(database) => match of_database(&**database) {
            TransactionError::RolledBack(error)
            | TransactionError::Locked(error)
            | TransactionError::NotRun(error)
            | TransactionError::Uncertain(error) => error,
        },
        sqlx::Error::Configuration(error) => StoreError::rejected(error.to_string()),
        sqlx::Error::Tls(error) => StoreError::rejected(format!("TLS handshake failed: {error}")),
        sqlx::Error::Io(error) => StoreError::unavailable(error.to_string()),
        error => StoreError::unavailable(error.to_string()),
    }
}

impl TransactionError {
    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::RolledBack(error) | Self::Locked(error) | Self::NotRun(error) | Self::Uncertain(error) => {
                error
            }
        }
    }
}
