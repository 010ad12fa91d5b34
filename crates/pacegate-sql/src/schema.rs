//! Schema migrations: numbered steps that run at startup under a lock, one node at a time.

use pacegate_store::StoreError;

use crate::error::before_commit;
use crate::mysql;
use crate::session::Session;

/// The migration steps. A released statement never changes. Each step can be repeated, because
/// MySQL cannot roll back half of one.
const STEPS: [Step; 1] = [Step {
    mysql: include_str!("migrations/1.mysql.sql"),
    postgres: include_str!("migrations/1.postgres.sql"),
}];

struct Step {
    mysql: &'static str,
    postgres: &'static str,
}

const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS pacegate_schema (version integer NOT NULL PRIMARY KEY)";
const VERSION: &str = "SELECT CAST(COALESCE(MAX(version), 0) AS CHAR(10)) FROM pacegate_schema";

/// Migrates the schema to the current version. Nodes that start at the same time wait for each
/// other; the next start completes an interrupted step.
pub(crate) async fn migrate(session: &mut Session) -> Result<(), StoreError> {
    limit_statements(session, false).await?;
    let migrated = steps(session).await;
    let mut ended = if migrated.is_ok() { session.commit().await } else { session.rollback().await };
    // PostgreSQL's lock ends with the transaction.
    if let (Session::MySql(_), Ok(())) = (&session, &ended) {
        ended = session.run("DO RELEASE_LOCK('pacegate_schema')").await;
    }
    migrated?;
    ended.map_err(|error| before_commit(&error).into_error())?;
    limit_statements(session, true).await
}

/// PostgreSQL's timeouts are part of each transaction.
pub(crate) async fn limit_statements(session: &mut Session, limit: bool) -> Result<(), StoreError> {
    if let Session::MySql(connection) = session {
        let limited = mysql::limit_statements(connection, limit).await;
        limited.map_err(|error| before_commit(&error).into_error())?;
    }
    Ok(())
}

async fn steps(session: &mut Session) -> Result<(), StoreError> {
    let lock = match session {
        Session::MySql(_) => "DO GET_LOCK('pacegate_schema', 30)",
        Session::Postgres(_) => {
            "BEGIN; SET LOCAL client_min_messages = warning; SET LOCAL lock_timeout = 30000; \
             SET LOCAL statement_timeout = 60000; SELECT pg_advisory_xact_lock(7813954320001)"
        }
    };
    for sql in [lock, VERSIONS] {
        session.run(sql).await.map_err(|error| before_commit(&error).into_error())?;
    }
    let version = session.number(VERSION).await.map_err(|error| before_commit(&error).into_error())?;
    let (done, known) = (usize::try_from(version).unwrap_or(usize::MAX), STEPS.len());
    if done > known {
        return Err(StoreError::rejected(format!(
            "the schema has version {done}; this program supports versions up to {known}"
        )));
    }
    for (index, step) in STEPS.iter().enumerate().skip(done) {
        let sql = match session {
            Session::MySql(_) => step.mysql,
            Session::Postgres(_) => step.postgres,
        };
        session.run(sql).await.map_err(|error| before_commit(&error).into_error())?;
        let record = format!("INSERT INTO pacegate_schema (version) VALUES ({})", index + 1);
        session.run_text(record).await.map_err(|error| before_commit(&error).into_error())?;
        tracing::info!(version = index + 1, "schema migrated");
    }
    Ok(())
}
