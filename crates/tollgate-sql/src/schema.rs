//! The schema, by numbered steps that run at start, one node at a time.

use tollgate_store::StoreError;

use crate::error::{before_commit, not_connected};
use crate::session::Session;

/// The steps so far. Their text never changes once it is released.
const STEPS: [Step; 1] = [Step {
    mysql: include_str!("migrations/1.mysql.sql"),
    postgres: include_str!("migrations/1.postgres.sql"),
}];

struct Step {
    mysql: &'static str,
    postgres: &'static str,
}

/// Brings the schema up to date. Every step can be repeated, so one that was interrupted half-way is finished by the next start.
pub(crate) async fn migrate(session: &mut Session) -> Result<(), StoreError> {
    for step in &STEPS {
        let sql = match session {
            Session::MySql(_) => step.mysql,
            Session::Postgres(_) => step.postgres,
        };
        session.run(sql).await.map_err(|error| match &error {
            sqlx::Error::Database(_) => before_commit(&error).into_error(),
            _ => not_connected(&error),
        })?;
    }
    Ok(())
}
