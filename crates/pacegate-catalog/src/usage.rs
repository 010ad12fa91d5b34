//! Usage: the number of allowed and blocked requests of each identifier, by minute and by hour.

use std::collections::BTreeMap;
use std::time::Duration;

use pacegate::Timestamp;
use pacegate::identity::{DIMENSION_LENGTH_MAX, IDENTIFIER_LENGTH_MAX};
use sqlx::any::AnyRow;

use crate::bounds::{check_page, is_id};
use crate::catalog::Catalog;
use crate::database::Kind;
use crate::decisions::{fit, shorten_identifier, signed};
use crate::digest::Fields;
use crate::error::CatalogError;
use crate::statement::{column, micros, time, unsigned};

/// Number of records that one statement writes.
const BATCH: usize = 500;

/// The length of a period of usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// One minute. Kept for a month.
    Minute,
    /// One hour. Kept for a year.
    Hour,
}

impl Period {
    /// The length of the period.
    pub const fn length(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(60),
            Self::Hour => Duration::from_secs(3_600),
        }
    }

    /// The start of the period that contains `at`.
    pub fn start_of(self, at: Timestamp) -> Timestamp {
        let length = u64::try_from(self.length().as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_micros(at.as_micros() / length * length)
    }
}

/// The usage of one identifier in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRecord {
    /// When the period started.
    pub start: Timestamp,
    /// The dimension.
    pub dimension: String,
    /// The identifier.
    pub identifier: String,
    /// Number of allowed requests.
    pub allowed: u64,
    /// Number of blocked requests.
    pub blocked: u64,
}

/// Selects usage. The default selects all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// Only this dimension.
    pub dimension: Option<String>,
    /// Only this identifier.
    pub identifier: Option<String>,
}

impl Catalog {
    /// Adds to the usage of periods of this length.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond; some of it may have been added.
    pub async fn add_usage(&self, period: Period, usage: &[UsageRecord]) -> Result<(), CatalogError> {
        // All nodes write in the same order, which avoids deadlocks.
        let mut sorted = BTreeMap::<(i64, String), UsageRecord>::new();
        for record in usage {
            let start = period.start_of(record.start);
            // Callers choose these texts; they are shortened to what every database can store.
            let mut record = record.clone();
            fit(&mut record.dimension, DIMENSION_LENGTH_MAX);
            record.identifier = shorten_identifier(&record.identifier).into_owned();
            fit(&mut record.identifier, IDENTIFIER_LENGTH_MAX);
            let key = key_of(&record.dimension, &record.identifier);
            let entry = sorted.entry((micros(start), key)).or_insert_with(|| UsageRecord {
                start,
                allowed: 0,
                blocked: 0,
                ..record.clone()
            });
            entry.allowed += record.allowed;
            entry.blocked += record.blocked;
        }
        let sorted: Vec<_> = sorted.into_iter().collect();
        for batch in sorted.chunks(BATCH) {
            let rows = vec!["(?, ?, ?, ?, ?, NULL, ?, ?)"; batch.len()].join(", ");
            let sql = format!(
                "INSERT INTO pacegate_usage_rollups (period_seconds, period_start, identifier_key, dimension, identifier, rule, allowed, blocked) VALUES {rows}{}",
                add_up(self.kind)
            );
            let mut statement = self.statement(&sql);
            for ((start, key), record) in batch {
                statement = statement
                    .bind(seconds(period))
                    .bind(*start)
                    .bind(key.clone())
                    .bind(record.dimension.clone())
                    .bind(record.identifier.clone())
                    .bind(signed(record.allowed))
                    .bind(signed(record.blocked));
            }
            self.run(statement).await?;
        }
        Ok(())
    }

    /// The usage since `since`, summed over all periods, the heaviest identifiers first.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not respond.
    pub async fn usage(
        &self,
        period: Period,
        filter: UsageFilter,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, CatalogError> {
        let limit = check_page(limit)?;
        let shortened = |identifier: String| shorten_identifier(&identifier).into_owned();
        let filter = UsageFilter { identifier: filter.identifier.map(shortened), ..filter };
        let mut sql = select(self.kind);
        for (wanted, condition) in [
            (filter.dimension.is_some(), " AND dimension = ?"),
            (filter.identifier.is_some(), " AND identifier = ?"),
        ] {
            sql.push_str(if wanted { condition } else { "" });
        }
        sql.push_str(
            " GROUP BY identifier_key ORDER BY SUM(allowed) + SUM(blocked) DESC, identifier_key LIMIT ?",
        );
        let mut statement = self.statement(&sql).bind(seconds(period)).time(period.start_of(since));
        for text in [filter.dimension, filter.identifier].into_iter().flatten() {
            statement = statement.bind(text);
        }
        self.read(statement.bind(limit)).await?.iter().map(read).collect()
    }

    /// One page of the usage of every identifier since `since`, summed over all periods.
    ///
    /// The order is unspecified but stable. `after` is the cursor that was returned with the
    /// previous page.
    ///
    /// # Errors
    /// As for [`usage`](Self::usage).
    pub async fn usage_page(
        &self,
        period: Period,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<UsageRecord>, Option<String>), CatalogError> {
        let page = check_page(limit)?;
        if after.as_deref().is_some_and(|after| !is_id(after)) {
            return Err(CatalogError::invalid("cursor", "expected a cursor from a previous page"));
        }
        let sql = format!(
            "{} AND identifier_key > ? GROUP BY identifier_key ORDER BY identifier_key LIMIT ?",
            select(self.kind)
        );
        let statement = self.statement(&sql).bind(seconds(period)).time(period.start_of(since));
        let rows = self.read(statement.bind(after.unwrap_or_default()).bind(page)).await?;
        let records: Vec<UsageRecord> = rows.iter().map(read).collect::<Result<_, _>>()?;
        let last = records.last().filter(|_| records.len() == limit);
        let next = last.map(|record| key_of(&record.dimension, &record.identifier));
        Ok((records, next))
    }
}

/// The usage since a time, to be grouped by identifier.
fn select(kind: Kind) -> String {
    "SELECT MAX(period_start), MAX(dimension), MAX(identifier), CAST(SUM(allowed) AS {integer}), CAST(SUM(blocked) AS {integer}) FROM pacegate_usage_rollups \
     WHERE period_seconds = ? AND period_start >= ?"
        .replace("{integer}", if kind == Kind::MySql { "SIGNED" } else { "BIGINT" })
}

fn key_of(dimension: &str, identifier: &str) -> String {
    Fields::plain().text(dimension).text(identifier).hexadecimal()
}

pub(crate) fn seconds(period: Period) -> i64 {
    signed(period.length().as_secs())
}

/// The end of an INSERT that adds to existing rows.
fn add_up(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite | Kind::Postgres { .. } => {
            " ON CONFLICT (period_seconds, period_start, identifier_key) DO UPDATE SET allowed = pacegate_usage_rollups.allowed + excluded.allowed, \
             blocked = pacegate_usage_rollups.blocked + excluded.blocked"
        }
        Kind::MySql => {
            " ON DUPLICATE KEY UPDATE allowed = allowed + VALUES(allowed), blocked = blocked + VALUES(blocked)"
        }
    }
}

fn read(row: &AnyRow) -> Result<UsageRecord, CatalogError> {
    Ok(UsageRecord {
        start: time(row, 0)?,
        dimension: column(row, 1)?,
        identifier: column(row, 2)?,
        allowed: unsigned(column(row, 3)?)?,
        blocked: unsigned(column(row, 4)?)?,
    })
}
