//! Resets every variant of an identity's counters. Their rows are adjacent in the primary key,
//! whichever node wrote them.

use pacegate_core::{Timestamp, Variants};

use crate::ledger::Change;
use crate::session::Session;

/// Resets the variants among the rows with keys that start with `identity`, which ends with a
/// colon. Each step is a transaction.
pub(crate) async fn reset_variants(
    session: &mut Session,
    identity: &str,
    variants: &[Variants],
) -> Result<(), sqlx::Error> {
    // The character after the colon is greater than every key of the identity.
    let end = format!("{};", identity.trim_end_matches(':'));
    let mut after = identity.to_owned();
    loop {
        session.begin().await?;
        let keys = session.keys_between(&after, &end).await?;
        let own = keys.iter().filter(|key| variants.iter().any(|variants| variants.contain(key)));
        let own: Vec<&str> = own.map(String::as_str).collect();
        if !own.is_empty() {
            let locked = session.lock(&own).await?.rows.into_iter();
            let reset = |(key, _)| Change { key, bytes: Vec::new(), needed_until: Timestamp::default() };
            let changes: Vec<Change> = locked.map(reset).collect();
            if !changes.is_empty() {
                session.write(&changes).await?;
            }
        }
        session.commit().await?;
        match keys.last() {
            Some(last) if keys.len() >= Session::KEYS_MAX => after.clone_from(last),
            _ => return Ok(()),
        }
    }
}
