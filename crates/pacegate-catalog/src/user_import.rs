//! Import of many users in one change.

use std::collections::{HashMap, HashSet};

use pacegate::{LimitOverride, identity};

use crate::audit::{Action, Entry};
use crate::bounds::{check_custom_limits, check_user_id};
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::json;
use crate::record::{Actor, User, UserChange};
use crate::seal::Sealed;
use crate::statement::Statement;
use crate::users;

/// Maximum number of users of one import.
pub const IMPORT_USERS_MAX: usize = 10_000;
/// Number of users per statement.
const BATCH: usize = 250;

/// What an import does with one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserOutcome {
    /// The user had neither a tier nor custom limits.
    Created,
    /// The tier or the custom limits change.
    Updated,
    /// The user has this tier and these custom limits already.
    Unchanged,
}

/// A validated import.
struct Import {
    users: Vec<(String, UserChange)>,
    dry_run: bool,
}

impl Catalog {
    /// Creates or updates many users in one change: all of them or none. Every changed user has an
    /// audit record, as after [`put_user`](Self::put_user). Returns the outcomes in the order of
    /// `users`. With `dry_run`, nothing is changed.
    ///
    /// # Errors
    /// [`CatalogError`]: more than [`IMPORT_USERS_MAX`] users, a duplicate user, an invalid value.
    pub async fn put_users(
        &self,
        actor: &Actor,
        users: Vec<(String, UserChange)>,
        dry_run: bool,
    ) -> Result<Vec<UserOutcome>, CatalogError> {
        if users.len() > IMPORT_USERS_MAX {
            let reason = format!("must be at most {IMPORT_USERS_MAX}, got {}", users.len());
            return Err(CatalogError::invalid("users", reason));
        }
        let mut ids = HashSet::with_capacity(users.len());
        for (user_id, wanted) in &users {
            check_user_id(user_id)?;
            wanted.tier.as_ref().and_then(Option::as_deref).map(identity::check_tier).transpose()?;
            check_custom_limits(wanted.custom_limits.as_deref().unwrap_or_default())?;
            if !ids.insert(user_id) {
                return Err(CatalogError::invalid("users", format!("duplicate user `{user_id}`")));
            }
        }
        let import = Import { users, dry_run };
        self.change(actor, Part::Users, import, |change, import| Box::pin(put_all(change, import))).await
    }
}

async fn put_all(change: &mut Change<'_>, import: &Import) -> Result<Vec<UserOutcome>, CatalogError> {
    let mut outcomes = Vec::with_capacity(import.users.len());
    for batch in import.users.chunks(BATCH) {
        let mut known = find(change, batch).await?;
        let mut changed: Vec<(Option<User>, User)> = Vec::new();
        for (user_id, wanted) in batch {
            let before = known.remove(user_id);
            let after = wanted.apply_to(before.as_ref(), user_id, change.now);
            let outcome = match &before {
                None => UserOutcome::Created,
                Some(before) if is_same(before, &after) => UserOutcome::Unchanged,
                Some(_) => UserOutcome::Updated,
            };
            outcomes.push(outcome);
            if outcome != UserOutcome::Unchanged {
                changed.push((before, after));
            }
        }
        if !import.dry_run && !changed.is_empty() {
            write(change, &changed).await?;
        }
    }
    Ok(outcomes)
}

/// Replaces the rows, seals them, and records every change.
async fn write(change: &mut Change<'_>, changed: &[(Option<User>, User)]) -> Result<(), CatalogError> {
    let keys: Vec<String> = changed.iter().map(|(_, user)| key_of(&user.user_id)).collect();
    let places = vec!["?"; keys.len()].join(", ");
    let delete = change.statement(&format!("DELETE FROM pacegate_users WHERE user_key IN ({places})"));
    keys.iter().cloned().fold(delete, Statement::bind).bulk().run(change.connection).await?;
    let mut sql = String::from(
        "INSERT INTO pacegate_users (user_key, user_id, tier, custom_limits_json, version, updated_at) VALUES ",
    );
    sql.push_str(&vec!["(?, ?, ?, ?, ?, ?)"; changed.len()].join(", "));
    let mut insert = change.statement(&sql).bulk();
    for (key, (_, user)) in keys.iter().zip(changed) {
        insert = insert.bind(key.clone()).bind(user.user_id.clone()).bind(user.tier.clone());
        insert = insert.bind(json::write_custom_limits(&user.custom_limits)?).bind(user.version);
        insert = insert.time(user.updated_at);
    }
    insert.run(change.connection).await?;
    change.seal(Sealed::Users, &keys).await?;
    let entries = changed.iter().map(|(before, after)| Entry {
        action: Action::UserPut,
        subject: &after.user_id,
        user_id: Some(&after.user_id),
        before: before.as_ref().map(json::user),
        after: Some(json::user(after)),
    });
    change.record_all(entries.collect()).await
}

async fn find(
    change: &mut Change<'_>,
    batch: &[(String, UserChange)],
) -> Result<HashMap<String, User>, CatalogError> {
    let places = vec!["?"; batch.len()].join(", ");
    let statement = change.statement(&format!("{} WHERE user_key IN ({places})", users::SELECT));
    let statement = batch.iter().map(|(user_id, _)| key_of(user_id)).fold(statement, Statement::bind);
    let rows = statement.bulk().rows(change.connection).await?;
    let users = rows.iter().map(|row| users::read(row).map(|user| (user.user_id.clone(), user)));
    users.collect()
}

/// Whether both have the same tier and the same custom limits, in any order.
fn is_same(left: &User, right: &User) -> bool {
    let sorted = |user: &User| {
        let mut limits: Vec<(String, LimitOverride)> = user.custom_limits.clone();
        limits.sort_by(|(left, _), (right, _)| left.cmp(right));
        limits
    };
    left.tier == right.tier && sorted(left) == sorted(right)
}
