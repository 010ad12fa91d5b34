//! The naive form: one transaction per check.

use anyhow::{Context, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, query, query_scalar, raw_sql};

use super::{KEYS, user};

/// Large enough that it is never exceeded.
const LIMIT: i64 = 1_000_000_000_000;

/// A connection with one transaction at a time.
pub(super) enum Naive {
    MySql(Box<MySqlConnection>),
    Postgres(Box<PgConnection>),
}

impl Naive {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        if url.starts_with("mysql://") {
            let options: MySqlConnectOptions = url.parse()?;
            return Ok(Self::MySql(Box::new(options.disable_statement_logging().connect().await?)));
        }
        let options: PgConnectOptions = url.parse()?;
        Ok(Self::Postgres(Box::new(options.disable_statement_logging().connect().await?)))
    }

    /// Creates the table and a row for each user.
    pub(super) async fn prepare(&mut self) -> Result<()> {
        let rows: Vec<String> = (0..KEYS).map(|number| format!("('{}', 0)", user(number))).collect();
        self.run("CREATE TABLE naive (k varchar(64) NOT NULL PRIMARY KEY, used bigint NOT NULL)".into())
            .await?;
        self.run(format!("INSERT INTO naive (k, used) VALUES {}", rows.join(", "))).await
    }

    /// Returns whether the check is admitted.
    pub(super) async fn check(&mut self, key: &str) -> Result<bool> {
        match self {
            Self::MySql(connection) => {
                let connection = &mut **connection;
                raw_sql("BEGIN").execute(&mut *connection).await?;
                let select = query_scalar("SELECT used FROM naive WHERE k = ? FOR UPDATE").bind(key);
                let used: i64 = select.fetch_one(&mut *connection).await?;
                let allowed = used < LIMIT;
                if allowed {
                    let update = query("UPDATE naive SET used = ? WHERE k = ?").bind(used + 1).bind(key);
                    update.execute(&mut *connection).await?;
                }
                raw_sql("COMMIT").execute(connection).await?;
                Ok(allowed)
            }
            Self::Postgres(connection) => {
                let connection = &mut **connection;
                raw_sql("BEGIN").execute(&mut *connection).await?;
                let select = query_scalar("SELECT used FROM naive WHERE k = $1 FOR UPDATE").bind(key);
                let used: i64 = select.fetch_one(&mut *connection).await?;
                let allowed = used < LIMIT;
                if allowed {
                    let update = query("UPDATE naive SET used = $1 WHERE k = $2").bind(used + 1).bind(key);
                    update.execute(&mut *connection).await?;
                }
                raw_sql("COMMIT").execute(connection).await?;
                Ok(allowed)
            }
        }
    }

    async fn run(&mut self, sql: String) -> Result<()> {
        let sql = AssertSqlSafe(sql);
        match self {
            Self::MySql(connection) => raw_sql(sql).execute(&mut **connection).await.map(drop),
            Self::Postgres(connection) => raw_sql(sql).execute(&mut **connection).await.map(drop),
        }
        .context("preparing the naive table")
    }
}
