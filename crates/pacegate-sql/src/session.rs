//! A connection to one of the databases, and the operations on it.

use std::collections::BTreeSet;

use pacegate_core::Timestamp;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Row, query, raw_sql};

use crate::ledger::Change;
use crate::postgres::{PgLink, PgOptions};
use crate::{mysql, postgres};

const MINUTE: u64 = 60_000_000;

/// The location of the database.
#[derive(Clone, Debug)]
pub(crate) enum Options {
    MySql(Box<MySqlConnectOptions>),
    Postgres(Box<PgOptions>),
}

/// An open connection.
#[derive(Debug)]
pub(crate) enum Session {
    MySql(MySqlConnection),
    Postgres(PgLink),
}

/// The rows of a transaction, and the time after the last lock.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    pub(crate) rows: Vec<(String, Vec<u8>)>,
    pub(crate) now_micros: i64,
    /// Existing rows that other transactions have locked, if they were skipped.
    pub(crate) held: BTreeSet<String>,
}

impl Locked {
    /// The `keys` without a locked row.
    pub(crate) fn absent<'a>(&self, keys: &[&'a str]) -> Vec<&'a str> {
        let here: BTreeSet<&str> = self.rows.iter().map(|(key, _)| key.as_str()).collect();
        keys.iter().copied().filter(|key| !here.contains(key)).collect()
    }
}

impl Session {
    pub(crate) async fn connect(options: &Options) -> Result<Self, sqlx::Error> {
        match options {
            Options::MySql(options) => mysql::connect(options).await.map(Self::MySql),
            Options::Postgres(options) => postgres::connect(options).await.map(Self::Postgres),
        }
    }

    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        match self {
            // The first statement starts the transaction, which saves a round trip.
            Self::MySql(_) => Ok(()),
            Self::Postgres(link) => postgres::begin(link).await,
        }
    }

    /// Rolls back the transaction, which releases its locks, and begins another.
    pub(crate) async fn begin_again(&mut self) -> Result<(), sqlx::Error> {
        self.rollback().await?;
        self.begin().await
    }

    /// Locks the existing rows of `keys`, which are sorted and distinct.
    pub(crate) async fn lock(&mut self, keys: &[&str]) -> Result<Locked, sqlx::Error> {
        match self {
            Self::MySql(connection) => mysql::lock(connection, keys).await,
            Self::Postgres(link) => postgres::lock(link, keys).await,
        }
    }

    /// Inserts the missing rows of `keys`, which are sorted and distinct, and locks all of them. No
    /// row may be locked yet.
    pub(crate) async fn create(&mut self, keys: &[&str]) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(connection) => mysql::create(connection, keys).await,
            Self::Postgres(link) => postgres::create(link, keys).await,
        }
    }

    /// The last committed rows of `keys`, without waiting for locks.
    pub(crate) async fn read(&mut self, keys: &[&str]) -> Result<Vec<(String, Vec<u8>)>, sqlx::Error> {
        match self {
            Self::MySql(connection) => mysql::read(connection, keys).await,
            Self::Postgres(link) => postgres::read(link, keys).await,
        }
    }

    /// Maximum number of keys that [`keys_between`](Self::keys_between) returns.
    pub(crate) const KEYS_MAX: usize = 1_000;

    /// The first keys between these two that have a row, in order.
    pub(crate) async fn keys_between(
        &mut self,
        after: &str,
        before: &str,
    ) -> Result<Vec<String>, sqlx::Error> {
        match self {
            Self::MySql(connection) => mysql::keys_between(connection, after, before).await,
            Self::Postgres(link) => postgres::keys_between(link, after, before).await,
        }
    }

    /// Like [`lock`](Self::lock), without waiting: rows that other transactions have locked are
    /// skipped.
    pub(crate) async fn lock_free(&mut self, keys: &[&str]) -> Result<Locked, sqlx::Error> {
        let mut locked = match self {
            Self::MySql(connection) => mysql::lock_free(connection, keys).await?,
            Self::Postgres(link) => postgres::lock_free(link, keys).await?,
        };
        let absent = locked.absent(keys);
        if !absent.is_empty() {
            locked.held = self.read(&absent).await?.into_iter().map(|(key, _)| key).collect();
        }
        Ok(locked)
    }

    pub(crate) async fn write(&mut self, changes: &[Change]) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(connection) => mysql::write(connection, changes).await,
            Self::Postgres(link) => postgres::write(link, changes).await,
        }
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.run("COMMIT").await
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.run("ROLLBACK").await
    }

    /// The integer that a statement returns as text, which both databases encode in the same way.
    pub(crate) async fn number(&mut self, sql: &'static str) -> Result<i64, sqlx::Error> {
        let text: Option<String> = match self {
            Self::MySql(connection) => query(sql).fetch_one(connection).await?.try_get_unchecked(0)?,
            Self::Postgres(link) => {
                raw_sql(sql).fetch_one(&mut link.connection).await?.try_get_unchecked(0)?
            }
        };
        text.unwrap_or_default().trim().parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }

    /// Like [`run`](Self::run), for a statement that contains generated numbers.
    pub(crate) async fn run_text(&mut self, sql: String) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(connection) => raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop),
            Self::Postgres(link) => raw_sql(AssertSqlSafe(sql)).execute(&mut link.connection).await.map(drop),
        }
    }

    /// Runs statements without parameters or results.
    pub(crate) async fn run(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(connection) => raw_sql(sql).execute(connection).await.map(drop),
            Self::Postgres(link) => raw_sql(sql).execute(&mut link.connection).await.map(drop),
        }
    }
}

/// The minute after which a row is expired. Minutes keep the index stable: it changes once a
/// minute, not with every check.
pub(crate) fn expires_minute(needed_until: Timestamp) -> i32 {
    i32::try_from(needed_until.as_micros() / MINUTE + 1).unwrap_or(i32::MAX)
}
