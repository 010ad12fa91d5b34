//! A statement with its parameters, and the columns of its rows.

use std::time::Duration;

use pacegate::Timestamp;
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, ColumnIndex, Decode, Encode, Row, Type};
use tokio::time::timeout;

use crate::database::Kind;
use crate::error::CatalogError;

/// Timeout of a normal statement, longer than a database waits for a lock.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a list.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a statement that reads or writes many rows.
pub(crate) const BULK_TIMEOUT: Duration = Duration::from_secs(60);

/// One statement, sent once.
pub(crate) struct Statement<'q> {
    query: Query<'q, Any, AnyArguments>,
    within: Duration,
}

impl<'q> Statement<'q> {
    /// `sql` must consist of trusted text only; its parameters are question marks.
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

    /// Sets the timeout to that of statements on many rows.
    pub(crate) fn bulk(self) -> Self {
        Self { within: BULK_TIMEOUT, ..self }
    }

    /// Sets the timeout to that of lists.
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

    /// Returns the number of changed rows.
    pub(crate) async fn run(self, connection: &mut AnyConnection) -> Result<u64, CatalogError> {
        let within = self.within;
        Ok(bounded(within, self.query.execute(connection)).await?.rows_affected())
    }
}

/// A value that can be bound. All integers have one type, because drivers cache a statement with
/// the types of its first use and PostgreSQL rejects others.
pub(crate) trait Value<'q>: Encode<'q, Any> + Type<Any> + Send + 'q {}

impl Value<'_> for i64 {}
impl Value<'_> for Option<i64> {}
impl Value<'_> for String {}
impl Value<'_> for Option<String> {}
impl Value<'static> for &'static str {}

/// Runs a database operation before a commit, with a timeout.
pub(crate) async fn bounded<T>(
    within: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, CatalogError> {
    match timeout(within, future).await {
        Ok(answer) => answer.map_err(|error| CatalogError::before_commit(&error)),
        Err(_) => Err(CatalogError::unavailable("the catalog database did not respond in time")),
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

/// A column with an optional time.
pub(crate) fn optional_time(row: &AnyRow, index: usize) -> Result<Option<Timestamp>, CatalogError> {
    column::<Option<i64>>(row, index)?.map(timestamp).transpose()
}

pub(crate) fn micros(time: Timestamp) -> i64 {
    // At most 2^53.
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> Result<u64, CatalogError> {
    u64::try_from(number).map_err(|_| {
        CatalogError::permanent(format!("unexpected content in the catalog tables: negative number {number}"))
    })
}

fn timestamp(micros: i64) -> Result<Timestamp, CatalogError> {
    unsigned(micros).map(Timestamp::from_micros)
}
