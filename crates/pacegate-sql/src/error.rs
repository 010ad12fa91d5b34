//! What an error of a database means: rolled back, refused, or nobody knows.

use std::io::ErrorKind;

use pacegate_store::StoreError;
use sqlx::error::DatabaseError;

/// Why a transaction did not come to its end.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The database rolled it back and would take it again: a deadlock, a serialisation failure.
    RolledBack(StoreError),
    /// It was given up because somebody else held a row for too long, or a statement took too long, which MariaDB does not tell apart.
    Locked(StoreError),
    /// It did not run and will not: the connection is gone, or the database refuses.
    NotRun(StoreError),
    /// The connection was lost while it was committed.
    Uncertain(StoreError),
}

/// Before COMMIT everything is undone by losing the connection.
pub(crate) fn before_commit(error: &sqlx::Error) -> Trouble {
    match error {
        sqlx::Error::Database(database) => of_database(&**database),
        error => Trouble::NotRun(lost(error)),
    }
}

/// A lost COMMIT may have been carried out.
pub(crate) fn during_commit(error: &sqlx::Error) -> Trouble {
    match error {
        // A server that is stopping may have carried it out all the same.
        sqlx::Error::Database(database) => match of_database(&**database) {
            Trouble::NotRun(error) | Trouble::Locked(error) if error.is_retryable() => {
                Trouble::Uncertain(StoreError::uncertain(error.to_string()))
            }
            trouble => trouble,
        },
        error => Trouble::Uncertain(StoreError::uncertain(format!(
            "the connection was lost while committing: {error}"
        ))),
    }
}

fn of_database(error: &dyn DatabaseError) -> Trouble {
    let code = error.code().unwrap_or_default();
    // MySQL has numbers of its own beside the standard's states.
    let number =
        error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map_or(0, |error| error.number());
    match (&*code, number) {
        (_, 1213) | ("40P01", _) => {
            Trouble::RolledBack(StoreError::unavailable("a deadlock was resolved against us"))
        }
        (_, 1205 | 1969 | 3024) | ("55P03", _) => Trouble::Locked(locked()),
        ("40001", _) => Trouble::RolledBack(StoreError::unavailable("transactions got in each other's way")),
        // A statement that was prepared is missing, or was prepared by another client.
        ("26000" | "42P05", _) => Trouble::NotRun(pooled()),
        ("57014", _) => Trouble::RolledBack(StoreError::unavailable(
            "the database cancelled a statement that took too long",
        )),
        (_, 1044 | 1045 | 1142 | 1698) | ("28000" | "28P01" | "42501", _) => Trouble::NotRun(
            StoreError::rejected(format!("the database refuses the user: {}", error.message())),
        ),
        (_, 1049) | ("3D000", _) => Trouble::NotRun(StoreError::rejected(error.message())),
        (_, 1146) | ("42P01", _) => {
            Trouble::NotRun(StoreError::rejected("a table is missing; restart to create it"))
        }
        (_, 1040 | 1047 | 1053 | 1203 | 1226 | 1317 | 1927)
        | ("53100" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "58030", _) => {
            Trouble::NotRun(StoreError::unavailable(error.message()))
        }
        _ => Trouble::NotRun(StoreError::rejected(format!("the database refuses: {}", error.message()))),
    }
}

/// The connection has another server process for each transaction, which prepared statements do not survive.
pub(crate) fn pooled() -> StoreError {
    StoreError::rejected(
        "a connection pooler in transaction mode is between here and PostgreSQL: add pooling=transaction to the URL's \
         parameters, or use session mode",
    )
}

/// The error of a URL, which may have a password in it.
pub(crate) fn invalid_url(_: sqlx::Error) -> StoreError {
    StoreError::rejected("expected a URL such as postgres://user:password@host:5432/database")
}

/// Somebody else holds a row that a request needs; nothing ran.
pub(crate) fn locked() -> StoreError {
    StoreError::unavailable("a row stayed locked for too long")
}

/// A connection that could not be made; nothing ran.
pub(crate) fn not_connected(error: &sqlx::Error) -> StoreError {
    match error {
        // That is how a handshake fails: another authority, another name, a certificate that is missing.
        sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            StoreError::rejected(format!("TLS: {error}"))
        }
        error => lost(error),
    }
}

/// A connection that was lost.
fn lost(error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(database) => match of_database(&**database) {
            Trouble::RolledBack(error)
            | Trouble::Locked(error)
            | Trouble::NotRun(error)
            | Trouble::Uncertain(error) => error,
        },
        sqlx::Error::Configuration(error) => StoreError::rejected(error.to_string()),
        sqlx::Error::Tls(error) => StoreError::rejected(format!("TLS: {error}")),
        sqlx::Error::Io(error) => StoreError::unavailable(error.to_string()),
        error => StoreError::unavailable(error.to_string()),
    }
}

impl Trouble {
    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::RolledBack(error) | Self::Locked(error) | Self::NotRun(error) | Self::Uncertain(error) => {
                error
            }
        }
    }
}
