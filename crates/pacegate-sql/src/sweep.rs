//! Removes expired rows in small steps, and skips rows that are in use.

use sqlx::{AssertSqlSafe, Row, query, raw_sql};

use crate::postgres;
use crate::session::Session;

/// Number of rows that are removed at a time, few enough that checks do not wait.
const STEP: usize = 500;
/// Uses the index on `expires`, which requires a constant of the column's type. No order is needed,
/// because locked rows are skipped.
const POSTGRES: &str = "DELETE FROM pacegate_state WHERE k IN (SELECT k FROM pacegate_state \
    WHERE expires < floor(extract(epoch FROM now()) / 60)::integer LIMIT 500 FOR UPDATE SKIP LOCKED)";
const MYSQL_FIND: &str = "SELECT k FROM pacegate_state FORCE INDEX (pacegate_state_expires) \
    WHERE expires < FLOOR(UNIX_TIMESTAMP(NOW()) / 60) LIMIT 500 FOR UPDATE SKIP LOCKED";

/// Removes one step of rows. Returns their number, and whether there may be more.
pub(crate) async fn sweep_step(session: &mut Session) -> Result<(u64, bool), sqlx::Error> {
    let removed = match session {
        Session::Postgres(link) => {
            postgres::begin(link).await?;
            let removed = raw_sql(POSTGRES).execute(&mut link.connection).await?.rows_affected();
            raw_sql("COMMIT").execute(&mut link.connection).await?;
            removed
        }
        Session::MySql(connection) => {
            raw_sql("BEGIN").execute(&mut *connection).await?;
            let found = query(MYSQL_FIND).fetch_all(&mut *connection).await?;
            let keys: Vec<Vec<u8>> = found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            // By a list of keys: a subquery would lock the rows that it scans, and deadlock with
            // checks.
            if !keys.is_empty() {
                let placeholders = vec!["?"; keys.len()].join(", ");
                let mut delete =
                    query(AssertSqlSafe(format!("DELETE FROM pacegate_state WHERE k IN ({placeholders})")));
                for key in &keys {
                    delete = delete.bind(key.as_slice());
                }
                delete.execute(&mut *connection).await?;
            }
            raw_sql("COMMIT").execute(&mut *connection).await?;
            keys.len() as u64
        }
    };
    Ok((removed, removed >= STEP as u64))
}
