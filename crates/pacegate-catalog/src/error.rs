//! Catalog errors, and the classification of database errors.

use std::borrow::Cow;
use std::io::ErrorKind;

use pacegate::Invalid;
use sqlx::error::DatabaseError;
use thiserror::Error;

/// Why a catalog operation failed.
#[derive(Clone, Debug, Error)]
#[error("{}{reason}", field.map_or_else(String::new, |field| format!("{field}: ")))]
pub struct CatalogError {
    kind: Kind,
    reason: Cow<'static, str>,
    field: Option<&'static str>,
    existing: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NotFound,
    Conflict,
    Changed,
    Invalid,
    /// The database rolled the transaction back; it can be retried.
    RolledBack,
    Unavailable,
    Permanent,
    /// The database rejected a value; the same statement without it may succeed.
    Value,
    Uncertain,
}

impl From<Invalid> for CatalogError {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.field(), invalid.reason().to_owned())
    }
}

impl CatalogError {
    fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, reason: message.into(), field: None, existing: None }
    }

    pub(crate) fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    pub(crate) fn conflict(message: String, existing: &str) -> Self {
        Self { existing: Some(existing.to_owned()), ..Self::new(Kind::Conflict, message) }
    }

    pub(crate) fn changed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Changed, message)
    }

    pub(crate) fn invalid(field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field), ..Self::new(Kind::Invalid, reason) }
    }

    pub(crate) fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Unavailable, message)
    }

    pub(crate) fn permanent(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Permanent, message)
    }

    pub(crate) fn uncertain(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Uncertain, message)
    }

    /// Whether the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == Kind::NotFound
    }

    /// Whether another resource is in the way; [`existing`](Self::existing) returns its id.
    pub fn is_conflict(&self) -> bool {
        self.kind == Kind::Conflict
    }

    /// Whether the resource changed since the expected version.
    pub fn is_changed(&self) -> bool {
        self.kind == Kind::Changed
    }

    /// Whether a value is invalid; [`field`](Self::field) returns which one.
    pub fn is_invalid(&self) -> bool {
        self.kind == Kind::Invalid
    }

    /// Whether the database is temporarily unavailable; nothing was changed, and a later retry can
    /// succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::RolledBack)
    }

    /// Whether a retry cannot help: a wrong password, missing privileges, an unknown schema, a file
    /// that is not a database.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Permanent | Kind::Value)
    }

    /// Whether the database rejected a value that is bound to the statement.
    pub(crate) fn is_value(&self) -> bool {
        self.kind == Kind::Value
    }

    /// Whether the connection was lost during the commit, so that the change may or may not have
    /// been made.
    pub fn is_uncertain(&self) -> bool {
        self.kind == Kind::Uncertain
    }

    /// The name of the invalid field.
    pub fn field(&self) -> Option<&str> {
        self.field
    }

    /// The reason, without the name of the field.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The id of the resource that is in the way.
    pub fn existing(&self) -> Option<&str> {
        self.existing.as_deref()
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.kind == Kind::RolledBack
    }

    /// Classifies an error before COMMIT, where losing the connection undoes everything.
    pub(crate) fn before_commit(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(database) => of_database(&**database),
            sqlx::Error::PoolTimedOut => {
                Self::unavailable("timed out waiting for a connection to the catalog database")
            }
            // This is how a handshake fails: unknown authority, wrong name, missing certificate.
            sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
                Self::permanent(format!("TLS handshake with the catalog database failed: {error}"))
            }
            sqlx::Error::Tls(error) => {
                Self::permanent(format!("TLS handshake with the catalog database failed: {error}"))
            }
            sqlx::Error::Configuration(error) => {
                Self::permanent(format!("invalid configuration of the catalog database: {error}"))
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::permanent(format!("unexpected content in the catalog tables: {error}"))
            }
            error => Self::unavailable(format!("catalog database unreachable: {error}")),
        }
    }

    /// Classifies an error during COMMIT, which may have been executed although its reply was lost.
    pub(crate) fn during_commit(error: &sqlx::Error) -> Self {
        match Self::before_commit(error) {
            // A server that is shutting down may still have committed it.
            error if error.kind == Kind::Unavailable && !error.is_full() => {
                Self::uncertain(format!("unknown whether the change was committed: {error}"))
            }
            error => error,
        }
    }

    /// Whether the disk is full or read-only: SQLite then undoes the whole transaction.
    fn is_full(&self) -> bool {
        matches!(&self.reason, Cow::Borrowed(FULL | READ_ONLY))
    }
}

/// The fix for a connection pooler in transaction mode.
pub(crate) const POOLED: &str = "PostgreSQL is behind a connection pooler in transaction mode: \
    add pooling=transaction to the URL's parameters, or use session mode";
const FULL: &str = "the disk of the catalog database is full";
const READ_ONLY: &str = "the catalog database is read-only";

fn of_database(error: &dyn DatabaseError) -> CatalogError {
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return of_sqlite(error);
    }
    let code = error.code().unwrap_or_default();
    // MySQL has its own error numbers in addition to the SQLSTATE.
    let number =
        error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map_or(0, |error| error.number());
    let rolled_back = |message: &'static str| CatalogError::new(Kind::RolledBack, message);
    match (&*code, number) {
        (_, 1213) | ("40P01", _) => {
            rolled_back("the catalog database rolled back the change because of a deadlock")
        }
        (_, 1205) | ("55P03", _) => rolled_back("timed out waiting for a lock in the catalog database"),
        (_, 1020) | ("40001", _) => {
            rolled_back("the catalog database rolled back the change because of a concurrent one")
        }
        (_, 1969 | 3024) | ("57014", _) => {
            CatalogError::unavailable("the catalog database cancelled a statement that took too long")
        }
        (_, 1044 | 1045 | 1142 | 1698) | ("28000" | "28P01" | "42501", _) => {
            CatalogError::permanent(format!("catalog database access denied: {}", error.message()))
        }
        (_, 1021 | 1114) | ("53100", _) => CatalogError::unavailable(FULL),
        (_, 1036 | 1290 | 1792 | 1836) | ("25006", _) => CatalogError::unavailable(READ_ONLY),
        (_, 1040 | 1047 | 1053 | 1203 | 1226 | 1317 | 1927)
        | ("25P03" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "58030", _) => {
            CatalogError::unavailable(format!("catalog database unavailable: {}", error.message()))
        }
        // A prepared statement is missing, or was prepared by another client.
        ("26000" | "42P05", _) => CatalogError::permanent(POOLED),
        ("08P01", _) if error.message().contains("extra_float_digits") => CatalogError::permanent(
            "PgBouncer rejected a startup parameter: add ignore_startup_parameters = extra_float_digits to its configuration",
        ),
        // Too long, not in the character set, out of range, null or duplicate.
        (_, 1048 | 1062 | 1264 | 1366 | 1406 | 3988) => value(error),
        (code, _) if code.starts_with("22") || code.starts_with("23") => value(error),
        (_, 1146) | ("42P01", _) => {
            CatalogError::permanent("a catalog table is missing; restart to create it")
        }
        _ => CatalogError::permanent(format!("catalog database error: {}", error.message())),
    }
}

fn value(error: &dyn DatabaseError) -> CatalogError {
    let message = format!("catalog database rejected a value: {}", error.message());
    CatalogError::new(Kind::Value, message)
}

fn of_sqlite(error: &dyn DatabaseError) -> CatalogError {
    let code = error.code().unwrap_or_default();
    // The low byte is the primary result code.
    match code.parse::<u32>().unwrap_or(0) & 0xff {
        5 | 6 => CatalogError::new(Kind::RolledBack, "timed out waiting for a lock on the catalog file"),
        8 => CatalogError::unavailable(READ_ONLY),
        13 => CatalogError::unavailable(FULL),
        // Too big, a constraint violation or a type mismatch.
        18..=20 => value(error),
        10 => {
            CatalogError::unavailable(format!("catalog file cannot be read or written: {}", error.message()))
        }
        _ => CatalogError::permanent(format!("catalog file cannot be used: {}", error.message())),
    }
}
