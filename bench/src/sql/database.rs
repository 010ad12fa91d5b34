//! The servers: a private one of each kind, with its default durability.

use std::fs;

use anyhow::{Context, Result};
use pacegate_testkit::server::{MariaDb, Postgres};

use crate::machine::processor_seconds;

/// A running server.
pub enum Database {
    /// MariaDB.
    MariaDb(MariaDb),
    /// PostgreSQL.
    Postgres(Postgres),
}

impl Database {
    /// Returns its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MariaDb(_) => "MariaDB",
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    /// Returns its address.
    pub fn url(&self) -> String {
        match self {
            Self::MariaDb(server) => server.url(),
            Self::Postgres(server) => server.url(),
        }
    }

    /// Returns its version and its durability settings.
    pub fn description(&self) -> String {
        match self {
            Self::MariaDb(server) => server
                .query("SELECT CONCAT(VERSION(), ', innodb_flush_log_at_trx_commit=', @@innodb_flush_log_at_trx_commit)"),
            Self::Postgres(server) => {
                let version = server.query("SHOW server_version");
                format!("{version}, synchronous_commit={}", server.query("SHOW synchronous_commit"))
            }
        }
    }

    /// Returns the number of transactions so far, without those that changed no row.
    ///
    /// # Errors
    /// If the server returns something else.
    pub fn transactions(&self) -> Result<u64> {
        let answer = match self {
            Self::MariaDb(server) => server.query("SHOW GLOBAL STATUS LIKE 'Com_commit'"),
            // The query itself takes a transaction number.
            Self::Postgres(server) => server.query("SELECT txid_current()"),
        };
        number(&answer)
    }

    /// Returns the time of the server, in microseconds since the epoch.
    ///
    /// # Errors
    /// If the server returns something else.
    pub fn now_micros(&self) -> Result<u64> {
        number(&match self {
            Self::MariaDb(server) => server.query("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"),
            Self::Postgres(server) => server.query("SELECT (extract(epoch FROM now()) * 1000000)::bigint"),
        })
    }

    /// Returns the number of bytes written to the write-ahead log so far.
    ///
    /// # Errors
    /// If the server returns something else.
    pub fn logged_bytes(&self) -> Result<u64> {
        number(&match self {
            Self::MariaDb(server) => server.query("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'"),
            Self::Postgres(server) => server.query("SELECT (pg_current_wal_lsn() - '0/0')::bigint"),
        })
    }

    /// Returns the size of the files of a table with its indexes, in bytes.
    ///
    /// # Errors
    /// If the server returns something else.
    pub fn size_bytes(&self, table: &str) -> Result<u64> {
        number(&match self {
            Self::MariaDb(server) => server.query(&format!(
                "SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name = 'pacegate/{table}'"
            )),
            Self::Postgres(server) => server.query(&format!("SELECT pg_total_relation_size('{table}')")),
        })
    }

    /// Returns the processor time of all its processes so far, in seconds.
    ///
    /// # Errors
    /// If the process has exited or `/proc` cannot be read.
    pub fn processor_seconds(&self) -> Result<f64> {
        let main = match self {
            Self::MariaDb(server) => server.pid(),
            Self::Postgres(server) => server.pid(),
        };
        let path = format!("/proc/{main}/task/{main}/children");
        let children = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let mut seconds = processor_seconds(main)?;
        for child in children.split_whitespace() {
            // A process that has exited in the meantime used little.
            seconds += processor_seconds(child.parse()?).unwrap_or_default();
        }
        Ok(seconds)
    }
}

/// Parses the last word of a response as a number.
fn number(answer: &str) -> Result<u64> {
    let number = answer.split_whitespace().last().and_then(|number| number.parse().ok());
    number.with_context(|| format!("not a number: {answer}"))
}
