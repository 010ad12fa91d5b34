//! Users in the catalog: their tiers and custom limits.

use std::collections::BTreeMap;

use pacegate::{Profile, Timestamp, identity};
use serde_json::{Value, json};
use sqlx::any::AnyRow;

use crate::audit::{Action, Entry};
use crate::bounds::{check_custom_limits, check_page, check_user_id, is_id};
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::precondition::Expected;
use crate::record::{Actor, Override, User, UserChange};
use crate::seal::Sealed;
use crate::statement::{Statement, column, time};
use crate::{json, overrides};

/// Number of users that are imported in one transaction.
const IMPORT_BATCH: usize = 1_000;
/// Numbers of users in one query. A database prepares one statement for each size.
const PROFILE_SIZES: [usize; 2] = [1, 64];

/// The profile of a user, and when its first override expires.
pub type ProfileUntil = (Profile, Option<Timestamp>);

pub(crate) const SELECT: &str =
    "SELECT user_id, tier, custom_limits_json, version, updated_at FROM pacegate_users";

impl Catalog {
    /// The user, if the catalog has one with this id.
    ///
    /// # Errors
    /// [`CatalogError`] when the row cannot be read, or the database does not respond.
    pub async fn user(&self, user_id: &str) -> Result<Option<User>, CatalogError> {
        let statement = self.statement(&format!("{SELECT} WHERE user_key = ?")).bind(key_of(user_id));
        self.row(statement).await?.as_ref().map(read).transpose()
    }

    /// One page of users.
    ///
    /// The order is unspecified but stable. `after` is the cursor that was returned with the
    /// previous page.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, a row cannot be read, or the
    /// database does not respond.
    pub async fn user_page(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Result<(Vec<User>, Option<String>), CatalogError> {
        let page = check_page(limit)?;
        if after.as_deref().is_some_and(|after| !is_id(after)) {
            return Err(CatalogError::invalid("cursor", "expected a cursor from a previous page"));
        }
        let statement = self.statement(&format!("{SELECT} WHERE user_key > ? ORDER BY user_key LIMIT ?"));
        let rows = self.read(statement.bind(after.unwrap_or_default()).bind(page)).await?;
        let users: Vec<User> = rows.iter().map(read).collect::<Result<_, _>>()?;
        let next = users.last().filter(|_| users.len() == limit).map(|user| key_of(&user.user_id));
        Ok((users, next))
    }

    /// Creates or changes a user if `expected` holds. Fields that are `None` in `wanted` stay
    /// unchanged.
    ///
    /// # Errors
    /// [`CatalogError`]: changed by a concurrent request, or an invalid value.
    pub async fn put_user(
        &self,
        actor: &Actor,
        user_id: &str,
        wanted: UserChange,
        expected: Option<Expected>,
    ) -> Result<User, CatalogError> {
        check_user_id(user_id)?;
        wanted.tier.as_ref().and_then(Option::as_deref).map(identity::check_tier).transpose()?;
        check_custom_limits(wanted.custom_limits.as_deref().unwrap_or_default())?;
        let input = (user_id.to_owned(), wanted, expected);
        self.change(actor, Part::Users, input, |change, (user_id, wanted, expected)| {
            Box::pin(put(change, user_id, wanted, *expected))
        })
        .await
    }

    /// Deletes a user and the user's overrides.
    ///
    /// # Errors
    /// [`CatalogError`]: not found.
    pub async fn delete_user(&self, actor: &Actor, user_id: &str) -> Result<(), CatalogError> {
        self.change(actor, Part::Users, user_id.to_owned(), |change, user_id| {
            Box::pin(delete(change, user_id))
        })
        .await
    }

    /// The profile of a user at `now`, and when its first override expires.
    ///
    /// # Errors
    /// [`CatalogError`] when a row cannot be read, or the database does not respond.
    pub async fn profile(&self, user_id: &str, now: Timestamp) -> Result<ProfileUntil, CatalogError> {
        let mut found = self.profiles(&[user_id], now).await?;
        found.pop().unwrap_or_else(|| Ok(ProfileUntil::default()))
    }

    /// The profiles of several users, in the same order. A row that cannot be read yields an error
    /// at its position.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond.
    pub async fn profiles(
        &self,
        user_ids: &[&str],
        now: Timestamp,
    ) -> Result<Vec<Result<ProfileUntil, CatalogError>>, CatalogError> {
        let [one, many] = PROFILE_SIZES;
        let size = if user_ids.len() <= one { one } else { many };
        let mut profiles = Vec::with_capacity(user_ids.len());
        let mut lease = self.begin().await?;
        for part in user_ids.chunks(size) {
            let mut keys: Vec<String> = part.iter().map(|user_id| key_of(user_id)).collect();
            // Padded to one of the sizes; a repeated key is found once.
            let last = keys[keys.len() - 1].clone();
            keys.resize(size, last);
            let placeholders = vec!["?"; size].join(", ");
            let users = self.statement(&format!("{SELECT} WHERE user_key IN ({placeholders})"));
            let users = keys.iter().cloned().fold(users, Statement::bind).rows(lease.connection()).await?;
            let live = overrides::select_live_of(self.kind, &keys, now).rows(lease.connection()).await?;
            let users: Vec<(String, Result<User, CatalogError>)> = users
                .iter()
                .map(|row| Ok((column(row, 0)?, read(row))))
                .collect::<Result<_, CatalogError>>()?;
            let live: Vec<(String, Result<Override, CatalogError>)> = live
                .iter()
                .map(|row| Ok((column(row, 1)?, overrides::read(row))))
                .collect::<Result<_, CatalogError>>()?;
            profiles.extend(part.iter().map(|user_id| profile(user_id, &users, &live)));
        }
        lease.commit().await?;
        Ok(profiles)
    }

    /// Creates users, or sets the tiers of existing ones; their custom limits stay unchanged.
    ///
    /// Every thousand users are one change with one audit record. Returns the number of users in
    /// the input.
    ///
    /// # Errors
    /// [`CatalogError`] when a value is invalid. Earlier thousands stay imported.
    pub async fn import_users<I>(&self, actor: &Actor, users: I) -> Result<u64, CatalogError>
    where
        I: IntoIterator<Item = (String, Option<String>), IntoIter: Send> + Send,
    {
        let mut users = users.into_iter();
        let mut imported = 0;
        loop {
            let mut batch = BTreeMap::new();
            let mut given = 0;
            for (user_id, tier) in users.by_ref().take(IMPORT_BATCH) {
                check_user_id(&user_id)?;
                tier.as_deref().map(identity::check_tier).transpose()?;
                given += 1;
                // One statement cannot contain a user twice; the last entry wins.
                batch.insert(key_of(&user_id), (user_id, tier));
            }
            if given == 0 {
                return Ok(imported);
            }
            self.change(actor, Part::Users, batch, |change, batch| Box::pin(import(change, batch))).await?;
            imported += given;
        }
    }
}

/// The profile of one user, from the rows of several.
fn profile(
    user_id: &str,
    users: &[(String, Result<User, CatalogError>)],
    live: &[(String, Result<Override, CatalogError>)],
) -> Result<ProfileUntil, CatalogError> {
    let user = users.iter().find(|(other, _)| other == user_id);
    let user = user.map(|(_, user)| user.as_ref().map_err(Clone::clone)).transpose()?;
    // The newest override of a rule wins.
    let mut newest: BTreeMap<&str, &Override> = BTreeMap::new();
    for (_, of) in live.iter().filter(|(other, _)| other == user_id) {
        let of = of.as_ref().map_err(Clone::clone)?;
        newest.insert(&of.rule, of);
    }
    let expires = newest.values().map(|of| of.expires_at).min();
    let overrides = newest.values().map(|of| (of.rule.clone(), of.numbers)).collect();
    let (tier, custom_limits) =
        user.map(|user| (user.tier.clone(), user.custom_limits.clone())).unwrap_or_default();
    Ok((Profile { tier, custom_limits, overrides }, expires))
}

async fn put(
    change: &mut Change<'_>,
    user_id: &str,
    wanted: &UserChange,
    expected: Option<Expected>,
) -> Result<User, CatalogError> {
    let before = find(change, user_id).await?;
    Expected::check(expected, before.as_ref().map(|user| user.version), "user")?;
    // Merged here: the row is locked until this change ends.
    let user = wanted.apply_to(before.as_ref(), user_id, change.now);
    let sql = if before.is_some() {
        "UPDATE pacegate_users SET user_id = ?, tier = ?, custom_limits_json = ?, version = ?, updated_at = ? WHERE user_key = ?"
    } else {
        "INSERT INTO pacegate_users (user_id, tier, custom_limits_json, version, updated_at, user_key) VALUES (?, ?, ?, ?, ?, ?)"
    };
    let statement = change.statement(sql).bind(user.user_id.clone()).bind(user.tier.clone());
    let statement = statement.bind(json::write_custom_limits(&user.custom_limits)?).bind(user.version);
    statement.time(user.updated_at).bind(key_of(user_id)).run(change.connection).await?;
    change.seal(Sealed::Users, &[key_of(user_id)]).await?;
    let (before, after) = (before.as_ref().map(json::user), Some(json::user(&user)));
    change
        .record(Entry { action: Action::UserPut, subject: user_id, user_id: Some(user_id), before, after })
        .await?;
    Ok(user)
}

async fn delete(change: &mut Change<'_>, user_id: &str) -> Result<(), CatalogError> {
    let before = find(change, user_id).await?;
    let overrides = overrides::select_live(change.kind, user_id, Timestamp::default());
    let overrides = overrides.rows(change.connection).await?;
    if before.is_none() && overrides.is_empty() {
        return Err(CatalogError::not_found("unknown user"));
    }
    let overrides: Vec<Override> = overrides.iter().map(overrides::read).collect::<Result<_, _>>()?;
    for table in ["pacegate_users", "pacegate_overrides"] {
        let delete = change.statement(&format!("DELETE FROM {table} WHERE user_key = ?"));
        delete.bind(key_of(user_id)).run(change.connection).await?;
    }
    let ids: Vec<String> = overrides.iter().map(|of| of.override_id.clone()).collect();
    change.seal(Sealed::Users, &[key_of(user_id)]).await?;
    change.seal(Sealed::Overrides, &ids).await?;
    let overrides: Vec<Value> = overrides.iter().map(json::of_override).collect();
    let before = Some(json!({ "user": before.as_ref().map(json::user), "overrides": overrides }));
    let (action, user) = (Action::UserDelete, Some(user_id));
    change.record(Entry { action, subject: user_id, user_id: user, before, after: None }).await
}

async fn import(
    change: &mut Change<'_>,
    batch: &BTreeMap<String, (String, Option<String>)>,
) -> Result<(), CatalogError> {
    let mut sql = String::from(
        "INSERT INTO pacegate_users (user_key, user_id, tier, custom_limits_json, version, updated_at) VALUES ",
    );
    sql.push_str(&vec!["(?, ?, ?, '[]', 1, ?)"; batch.len()].join(", "));
    sql.push_str(change.kind.replace_tier());
    let mut statement: Statement<'_> = change.statement(&sql).bulk();
    for (user_key, (user_id, tier)) in batch {
        let row = statement.bind(user_key.clone()).bind(user_id.clone()).bind(tier.clone());
        statement = row.time(change.now);
    }
    statement.run(change.connection).await?;
    let keys: Vec<String> = batch.keys().cloned().collect();
    change.seal(Sealed::Users, &keys).await?;
    let after = Some(json!({ "users": batch.len() }));
    change
        .record(Entry { action: Action::UserImport, subject: "users", user_id: None, before: None, after })
        .await
}

async fn find(change: &mut Change<'_>, user_id: &str) -> Result<Option<User>, CatalogError> {
    let statement = change.statement(&format!("{SELECT} WHERE user_key = ?")).bind(key_of(user_id));
    statement.row(change.connection).await?.as_ref().map(read).transpose()
}

pub(crate) fn read(row: &AnyRow) -> Result<User, CatalogError> {
    let custom_limits = json::read_custom_limits(column(row, 2)?)?;
    Ok(User {
        user_id: column(row, 0)?,
        tier: column(row, 1)?,
        custom_limits,
        version: column(row, 3)?,
        updated_at: time(row, 4)?,
    })
}
