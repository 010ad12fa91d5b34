//! A statement with its parameters, and what is read from its rows.

use std::time::Duration;

use pacegate::Timestamp;
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, ColumnIndex, Decode, Encode, Row, Type};
use tokio::time::timeout;

use crate::database::Kind;
use crate::error::CatalogError;

/// Longer than a database waits for a lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// For lists that readers ask for.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// For statements that read or write very much.
pub(crate) const PATIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// One statement, sent once.
pub(crate) struct Statement<'q> {
    query: Query<'q, Any, AnyArguments>,
    within: Duration,
}

impl<'q> Statement<'q> {
    /// `sql` is made of the program's own texts only; its parameters are question marks.
    pub(crate) fn new(kind: Kind, sql: &str) -> Self {
        let query = sqlx::query(AssertSqlSafe(kind.placeholders(sql)));
        Self { query: query.persistent(kind.keeps_statements()), within: STATEMENT_TIMEOUT }
    }

    pub(crate) fn bind<T: Value<'q>>(mut self, value: T) -> Self {
        self.query = self.query.bind(value);
        self
    }

    pub(crate) fn time(self, time: Timestamp) -> Self {
        self.bind(micros(time))
    }

    /// Lets it take longer.
    pub(crate) fn patient(self) -> Self {
        Self { within: PATIENT_TIMEOUT, ..self }
    }

    /// Lets it take as long as a list may.
    pub(crate) fn listing(self) -> Self {
        Self { within: READ_TIMEOUT, ..self }
    }

    pub(crate) async fn rows(self, connection: &mut AnyConnection) -> Result<Vec<AnyRow>, CatalogError> {
        let within = self.within;
        bounded(within, self.query.fetch_all(connection)).await
    }

    pub(crate) async fn row(self, connection: &mut AnyConnection) -> Result<Option<AnyRow>, CatalogError> {
        let within = self.within;
        bounded(within, self.query.fetch_optional(connection)).await
    }

    /// Says how many rows it changed.
    pub(crate) async fn run(self, connection: &mut AnyConnection) -> Result<u64, CatalogError> {
        let within = self.within;
        Ok(bounded(within, self.query.execute(connection)).await?.rows_affected())
    }
}

/// What can be bound. One type for all integers: drivers remember a statement with the types that it was first sent with, and PostgreSQL refuses others.
pub(crate) trait Value<'q>: Encode<'q, Any> + Type<Any> + Send + 'q {}

impl Value<'_> for i64 {}
impl Value<'_> for Option<i64> {}
impl Value<'_> for String {}
impl Value<'_> for Option<String> {}
impl Value<'static> for &'static str {}

/// What a database does before a commit, as long as it answers in time.
pub(crate) async fn bounded<T>(
    within: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, CatalogError> {
    match timeout(within, future).await {
        Ok(answer) => answer.map_err(|error| CatalogError::before_commit(&error)),
        Err(_) => Err(CatalogError::unavailable("the catalog's database does not answer")),
    }
}

/// A column of a row.
pub(crate) fn column<'r, T>(row: &'r AnyRow, index: usize) -> Result<T, CatalogError>
where
    T: Decode<'r, Any> + Type<Any>,
    usize: ColumnIndex<AnyRow>,
{
    row.try_get(index).map_err(|error| CatalogError::before_commit(&error))
}

/// A column with a time.
pub(crate) fn time(row: &AnyRow, index: usize) -> Result<Timestamp, CatalogError> {
    column::<i64>(row, index).and_then(timestamp)
}

/// A column with a time or nothing.
pub(crate) fn optional_time(row: &AnyRow, index: usize) -> Result<Option<Timestamp>, CatalogError> {
    column::<Option<i64>>(row, index)?.map(timestamp).transpose()
}

pub(crate) fn micros(time: Timestamp) -> i64 {
    // At most 2^53.
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> Result<u64, CatalogError> {
    u64::try_from(number).map_err(|_| {
        CatalogError::permanent(format!("the catalog's tables have a negative number: {number}"))
    })
}

fn timestamp(micros: i64) -> Result<Timestamp, CatalogError> {
    unsigned(micros).map(Timestamp::from_micros)
}
