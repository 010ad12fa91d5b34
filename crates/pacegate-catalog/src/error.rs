//! What can go wrong with the catalog, and what an error of a database means.

use std::borrow::Cow;
use std::io::ErrorKind;

use pacegate::Invalid;
use sqlx::error::DatabaseError;
use thiserror::Error;

/// Why the catalog did not do what was asked.
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
    /// The database rolled the transaction back and would take it again.
    RolledBack,
    Unavailable,
    Permanent,
    /// The database cannot keep a value; the same statement without it may succeed.
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

    /// There is no such thing.
    pub fn is_not_found(&self) -> bool {
        self.kind == Kind::NotFound
    }

    /// Something else stands in the way; [`existing`](Self::existing) says what.
    pub fn is_conflict(&self) -> bool {
        self.kind == Kind::Conflict
    }

    /// Somebody changed it since the version that was expected.
    pub fn is_changed(&self) -> bool {
        self.kind == Kind::Changed
    }

    /// A value cannot be kept; [`field`](Self::field) says which.
    pub fn is_invalid(&self) -> bool {
        self.kind == Kind::Invalid
    }

    /// The database cannot do it now; nothing was changed, and trying again later helps.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::RolledBack)
    }

    /// Trying again does not help: a wrong password, missing rights, an unknown schema, a file that is no database.
    pub fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Permanent | Kind::Value)
    }

    /// The database refused a value that a statement brought.
    pub(crate) fn is_value(&self) -> bool {
        self.kind == Kind::Value
    }

    /// The connection was lost while the change was committed; it may have been carried out or not.
    pub fn is_uncertain(&self) -> bool {
        self.kind == Kind::Uncertain
    }

    /// The value that cannot be kept.
    pub fn field(&self) -> Option<&str> {
        self.field
    }

    /// What went wrong, without the name of the field.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The id of what stands in the way.
    pub fn existing(&self) -> Option<&str> {
        self.existing.as_deref()
    }

    pub(crate) fn is_rolled_back(&self) -> bool {
        self.kind == Kind::RolledBack
    }

    /// Before COMMIT everything is undone by losing the connection.
    pub(crate) fn before_commit(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(database) => of_database(&**database),
            sqlx::Error::PoolTimedOut => {
                Self::unavailable("there is no connection to the catalog's database for too long")
            }
            // That is how a handshake fails: another authority, another name, a certificate that is missing.
            sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
                Self::permanent(format!("TLS to the catalog's database: {error}"))
            }
            sqlx::Error::Tls(error) => Self::permanent(format!("TLS to the catalog's database: {error}")),
            sqlx::Error::Configuration(error) => {
                Self::permanent(format!("the catalog's database cannot be used: {error}"))
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::permanent(format!("the catalog's tables are not as they were made: {error}"))
            }
            error => Self::unavailable(format!("the catalog's database cannot be reached: {error}")),
        }
    }

    /// A lost COMMIT may have been carried out.
    pub(crate) fn during_commit(error: &sqlx::Error) -> Self {
        match Self::before_commit(error) {
            // A server that is stopping may have carried it out all the same.
            error if error.kind == Kind::Unavailable && !error.is_full() => {
                Self::uncertain(format!("whether the change was committed is not known: {error}"))
            }
            error => error,
        }
    }

    /// SQLite undoes everything when there is no room to commit.
    fn is_full(&self) -> bool {
        matches!(&self.reason, Cow::Borrowed(FULL | READ_ONLY))
    }
}

/// What has to be done about a pooler in transaction mode.
pub(crate) const POOLED: &str = "a connection pooler in transaction mode is between here and PostgreSQL: \
    add pooling=transaction to the URL's parameters, or use session mode";
const FULL: &str = "the disk of the catalog's database is full";
const READ_ONLY: &str = "the catalog's database is read-only";

fn of_database(error: &dyn DatabaseError) -> CatalogError {
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return of_sqlite(error);
    }
    let code = error.code().unwrap_or_default();
    // MySQL has numbers of its own beside the standard's states.
    let number =
        error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map_or(0, |error| error.number());
    let rolled_back = |message: &'static str| CatalogError::new(Kind::RolledBack, message);
    match (&*code, number) {
        (_, 1213) | ("40P01", _) => rolled_back("a deadlock in the catalog was resolved against us"),
        (_, 1205) | ("55P03", _) => rolled_back("the catalog stayed locked for too long"),
        (_, 1020) | ("40001", _) => rolled_back("changes of the catalog got in each other's way"),
        (_, 1969 | 3024) | ("57014", _) => {
            CatalogError::unavailable("the catalog's database cancelled a statement that took too long")
        }
        (_, 1044 | 1045 | 1142 | 1698) | ("28000" | "28P01" | "42501", _) => {
            CatalogError::permanent(format!("the catalog's database refuses the user: {}", error.message()))
        }
        (_, 1021 | 1114) | ("53100", _) => CatalogError::unavailable(FULL),
        (_, 1036 | 1290 | 1792 | 1836) | ("25006", _) => CatalogError::unavailable(READ_ONLY),
        (_, 1040 | 1047 | 1053 | 1203 | 1226 | 1317 | 1927)
        | ("25P03" | "53200" | "53300" | "57P01" | "57P02" | "57P03" | "58030", _) => {
            CatalogError::unavailable(format!(
                "the catalog's database cannot serve us now: {}",
                error.message()
            ))
        }
        // A statement that was prepared is missing, or was prepared by another client.
        ("26000" | "42P05", _) => CatalogError::permanent(POOLED),
        ("08P01", _) if error.message().contains("extra_float_digits") => CatalogError::permanent(
            "PgBouncer refuses a start-up parameter: add ignore_startup_parameters = extra_float_digits to its configuration",
        ),
        // Too long, not in the character set, out of range, missing, or there already.
        (_, 1048 | 1062 | 1264 | 1366 | 1406 | 3988) => value(error),
        (code, _) if code.starts_with("22") || code.starts_with("23") => value(error),
        (_, 1146) | ("42P01", _) => {
            CatalogError::permanent("a table of the catalog is missing; restart to create it")
        }
        _ => CatalogError::permanent(format!("the catalog's database refuses: {}", error.message())),
    }
}

fn value(error: &dyn DatabaseError) -> CatalogError {
    let message = format!("the catalog's database refuses a value: {}", error.message());
    CatalogError::new(Kind::Value, message)
}

fn of_sqlite(error: &dyn DatabaseError) -> CatalogError {
    let code = error.code().unwrap_or_default();
    // The low byte is the result; the rest says more about it.
    match code.parse::<u32>().unwrap_or(0) & 0xff {
        5 | 6 => CatalogError::new(Kind::RolledBack, "the catalog's file stayed locked for too long"),
        8 => CatalogError::unavailable(READ_ONLY),
        13 => CatalogError::unavailable(FULL),
        // Too big, a constraint, or of another type.
        18..=20 => value(error),
        10 => CatalogError::unavailable(format!(
            "the catalog's file cannot be read or written: {}",
            error.message()
        )),
        _ => CatalogError::permanent(format!("the catalog's file cannot be used: {}", error.message())),
    }
}
