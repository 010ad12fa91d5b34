//! Removes rows that are not needed any more, a few at a time, past rows that somebody works on.

use sqlx::{AssertSqlSafe, Row, query, raw_sql};

use crate::postgres;
use crate::session::Session;

/// How many rows go at once: few enough that nobody waits for them.
const STEP: usize = 500;
/// Through the index on `expires`: it is only used for a time that does not change meanwhile and has the column's type. There is no order, because nobody
/// is waited for.
const POSTGRES: &str = "DELETE FROM pacegate_state WHERE k IN (SELECT k FROM pacegate_state \
    WHERE expires < floor(extract(epoch FROM now()) / 60)::integer LIMIT 500 FOR UPDATE SKIP LOCKED)";
const MYSQL_FIND: &str = "SELECT k FROM pacegate_state FORCE INDEX (pacegate_state_expires) \
    WHERE expires < FLOOR(UNIX_TIMESTAMP(NOW()) / 60) LIMIT 500 FOR UPDATE SKIP LOCKED";

/// Removes one step's worth; says how many rows that was, and whether there may be more.
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
            // By a list of keys: a subquery would lock what it passes by, and deadlock with checks.
            if !keys.is_empty() {
                let places = vec!["?"; keys.len()].join(", ");
                let mut delete =
                    query(AssertSqlSafe(format!("DELETE FROM pacegate_state WHERE k IN ({places})")));
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
