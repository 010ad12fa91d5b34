//! A sliding log with a row per admitted request and an index on key and time, as in most projects.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row, query, raw_sql};

/// Number of checks per transaction.
pub(super) const BATCH: usize = 32;

const MYSQL_TABLES: &str = "CREATE TABLE log_key (k varchar(64) NOT NULL PRIMARY KEY); \
    CREATE TABLE log_entry (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, k varchar(64) NOT NULL, at bigint NOT NULL, KEY log_entry_k_at (k, at))";
const POSTGRES_TABLES: &str = "CREATE TABLE log_key (k varchar(64) NOT NULL PRIMARY KEY); \
    CREATE TABLE log_entry (id bigserial PRIMARY KEY, k varchar(64) NOT NULL, at bigint NOT NULL); CREATE INDEX log_entry_k_at ON log_entry (k, at)";

/// A connection with one batch at a time.
pub(super) enum Rows {
    MySql(Box<MySqlConnection>),
    Postgres(Box<PgConnection>),
}

impl Rows {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        if url.starts_with("mysql://") {
            let options: MySqlConnectOptions = url.parse()?;
            let mut connection = options.disable_statement_logging().connect().await?;
            raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                .execute(&mut connection)
                .await?;
            return Ok(Self::MySql(Box::new(connection)));
        }
        let options: PgConnectOptions = url.parse()?;
        let mut connection = options.disable_statement_logging().connect().await?;
        // The same setting as in the store, so that query plans do not differ.
        raw_sql("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
            .execute(&mut connection)
            .await?;
        Ok(Self::Postgres(Box::new(connection)))
    }

    pub(super) async fn run(&mut self, sql: &str) -> Result<()> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::MySql(connection) => raw_sql(sql).execute(&mut **connection).await.map(drop),
            Self::Postgres(connection) => raw_sql(sql).execute(&mut **connection).await.map(drop),
        }
        .context("preparing a table")
    }

    /// Creates both tables, with `entries` rows per key spread over the last `window`.
    pub(super) async fn prepare(&mut self, keys: usize, entries: u64, window: u64) -> Result<()> {
        self.run("DROP TABLE IF EXISTS log_entry; DROP TABLE IF EXISTS log_key").await?;
        let mysql = matches!(self, Self::MySql(_));
        let numbers = |first: u64, last: u64, name: &str| {
            if mysql {
                format!("(SELECT seq AS {name} FROM seq_{first}_to_{last}) AS {name}s")
            } else {
                format!("generate_series({first}, {last}) AS {name}s ({name})")
            }
        };
        let (tables, key, now, analyze) = if mysql {
            let now = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
            (MYSQL_TABLES, "LPAD(number, 7, '0')", now, "ANALYZE TABLE log_key, log_entry")
        } else {
            let now = "(extract(epoch FROM now()) * 1000000)::bigint";
            (POSTGRES_TABLES, "LPAD(number::text, 7, '0')", now, "ANALYZE log_key, log_entry")
        };
        self.run(tables).await?;
        let (all, places) = (numbers(0, keys as u64 - 1, "number"), numbers(1, entries, "place"));
        self.run(&format!("INSERT INTO log_key (k) SELECT {key} FROM {all}")).await?;
        let step = window / (entries + 1);
        self.run(&format!(
            "INSERT INTO log_entry (k, at) SELECT {key}, {now} - place * {step} FROM {places} CROSS JOIN {all} ORDER BY place DESC"
        ))
        .await?;
        self.run(analyze).await
    }

    /// Decides one request for each of `keys` in one batch. Returns the number of admitted ones.
    pub(super) async fn check(&mut self, keys: &[&str], quota: u64, window: u64) -> Result<u64> {
        let distinct: BTreeSet<&str> = keys.iter().copied().collect();
        let distinct: Vec<&str> = distinct.into_iter().collect();
        let now = self.lock(&distinct).await?;
        let since = now - i64::try_from(window)?;
        let mut counts = self.count(&distinct, since).await?;
        let mut admitted = Vec::new();
        for key in keys {
            let count = counts.entry((*key).to_owned()).or_default();
            if *count < quota {
                *count += 1;
                admitted.push(*key);
            }
        }
        self.finish(&distinct, &admitted, now, since).await?;
        Ok(admitted.len() as u64)
    }

    /// Locks the keys in order and returns the time.
    async fn lock(&mut self, keys: &[&str]) -> Result<i64> {
        match self {
            Self::MySql(connection) => {
                let connection = &mut **connection;
                raw_sql("BEGIN").execute(&mut *connection).await?;
                let sql = format!(
                    "SELECT k, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) FROM log_key WHERE k IN ({}) ORDER BY k FOR UPDATE",
                    places(BATCH)
                );
                let mut select = query(AssertSqlSafe(sql));
                for key in padded(keys) {
                    select = select.bind(key);
                }
                let rows = select.fetch_all(connection).await?;
                Ok(rows.last().context("no such keys")?.try_get(1)?)
            }
            Self::Postgres(connection) => {
                let connection = &mut **connection;
                raw_sql("BEGIN").execute(&mut *connection).await?;
                let sql = "WITH locked AS MATERIALIZED (SELECT k FROM log_key WHERE k = ANY($1) ORDER BY k FOR UPDATE) \
                    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM (SELECT count(*) FROM locked) AS counted";
                Ok(query(sql).bind(keys).fetch_one(connection).await?.try_get(0)?)
            }
        }
    }

    async fn count(&mut self, keys: &[&str], since: i64) -> Result<BTreeMap<String, u64>> {
        let mut counts = BTreeMap::new();
        match self {
            Self::MySql(connection) => {
                let sql = format!(
                    "SELECT k, COUNT(*) FROM log_entry WHERE k IN ({}) AND at > ? GROUP BY k",
                    places(BATCH)
                );
                let mut select = query(AssertSqlSafe(sql));
                for key in padded(keys) {
                    select = select.bind(key);
                }
                for row in select.bind(since).fetch_all(&mut **connection).await? {
                    counts.insert(row.try_get(0)?, u64::try_from(row.try_get::<i64, _>(1)?)?);
                }
            }
            Self::Postgres(connection) => {
                let sql = "SELECT k, COUNT(*) FROM log_entry WHERE k = ANY($1) AND at > $2 GROUP BY k";
                for row in query(sql).bind(keys).bind(since).fetch_all(&mut **connection).await? {
                    counts.insert(row.try_get(0)?, u64::try_from(row.try_get::<i64, _>(1)?)?);
                }
            }
        }
        Ok(counts)
    }

    /// Inserts admitted requests, deletes expired ones, and commits.
    async fn finish(&mut self, keys: &[&str], admitted: &[&str], now: i64, since: i64) -> Result<()> {
        match self {
            Self::MySql(connection) => {
                let connection = &mut **connection;
                if !admitted.is_empty() {
                    let values = vec!["(?, ?)"; admitted.len()].join(", ");
                    let sql = format!("INSERT INTO log_entry (k, at) VALUES {values}");
                    let mut insert = query(AssertSqlSafe(sql));
                    for key in admitted {
                        insert = insert.bind(*key).bind(now);
                    }
                    insert.execute(&mut *connection).await?;
                }
                let sql = format!("DELETE FROM log_entry WHERE k IN ({}) AND at <= ?", places(BATCH));
                let mut delete = query(AssertSqlSafe(sql));
                for key in padded(keys) {
                    delete = delete.bind(key);
                }
                delete.bind(since).execute(&mut *connection).await?;
                raw_sql("COMMIT").execute(connection).await?;
            }
            Self::Postgres(connection) => {
                let connection = &mut **connection;
                if !admitted.is_empty() {
                    let sql = "INSERT INTO log_entry (k, at) SELECT k, $2 FROM unnest($1::text[]) AS new (k)";
                    query(sql).bind(admitted).bind(now).execute(&mut *connection).await?;
                }
                let sql = "DELETE FROM log_entry WHERE k = ANY($1) AND at <= $2";
                query(sql).bind(keys).bind(since).execute(&mut *connection).await?;
                raw_sql("COMMIT").execute(connection).await?;
            }
        }
        Ok(())
    }
}

fn places(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// Always the same number, so that one prepared statement is enough.
fn padded<'a>(keys: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let last = keys.last().copied().unwrap_or_default();
    keys.iter().copied().chain(std::iter::repeat(last)).take(BATCH)
}
