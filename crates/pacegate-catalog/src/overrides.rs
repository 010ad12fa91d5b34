//! Temporary limits of single users and other identities.

use std::time::Duration;

use pacegate::{LimitOverride, Timestamp, identity};
use sqlx::any::AnyRow;
use uuid::Uuid;

use crate::audit::{Action, Entry};
use crate::bounds::{check_name, check_numbers, check_reason, check_user_id, is_id};
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::database::Kind;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::json;
use crate::precondition::Expected;
use crate::record::{Actor, NewOverride, Override};
use crate::seal::Sealed;
use crate::statement::{Statement, column, time, unsigned};

/// Maximum number of overrides that a user, or another identity, may have at a time.
pub const OVERRIDES_MAX: usize = 100;
/// Maximum number of overrides at a time for identities other than users. Every node keeps them in
/// memory, together with the rules.
pub const IDENTITY_OVERRIDES_MAX: usize = 1_000;

const SELECT: &str = "SELECT override_id, user_id, rule, quota, window_micros, burst, reason, expires_at, created_at, dimension, user_key FROM pacegate_overrides";

/// Returns the key by which the overrides of an identity are looked up. No user id contains a NUL,
/// so that no other identity has the key of a user.
fn owner_key(dimension: &str, identifier: &str) -> String {
    if dimension == identity::USER {
        return key_of(identifier);
    }
    key_of(&format!("{dimension}\0{identifier}"))
}

/// The overrides of a user that apply at `now`, oldest first.
pub(crate) fn select_live<'q>(kind: Kind, user_id: &str, now: Timestamp) -> Statement<'q> {
    select_live_by(kind, key_of(user_id), now)
}

fn select_live_by<'q>(kind: Kind, owner_key: String, now: Timestamp) -> Statement<'q> {
    let sql = format!("{SELECT} WHERE user_key = ? AND expires_at > ? ORDER BY number");
    Statement::new(kind, &sql).bind(owner_key).time(now)
}

/// The overrides of identities other than users that apply at `now`, oldest first.
pub(crate) fn select_identities<'q>(kind: Kind, now: Timestamp) -> Statement<'q> {
    let sql = format!("{SELECT} WHERE dimension IS NOT NULL AND expires_at > ? ORDER BY number");
    Statement::new(kind, &sql).time(now)
}

/// The overrides of several users that apply at `now`, oldest first.
pub(crate) fn select_live_of<'q>(kind: Kind, user_keys: &[String], now: Timestamp) -> Statement<'q> {
    let placeholders = vec!["?"; user_keys.len()].join(", ");
    let sql = format!("{SELECT} WHERE user_key IN ({placeholders}) AND expires_at > ? ORDER BY number");
    let statement = Statement::new(kind, &sql);
    user_keys.iter().cloned().fold(statement, Statement::bind).time(now)
}

impl Catalog {
    /// Creates an override. For the same rule, a later override wins over an earlier one.
    ///
    /// # Errors
    /// [`CatalogError`] when a value is invalid, the expiry is not in the future, or the user has
    /// 100 overrides.
    pub async fn add_override(&self, actor: &Actor, new: NewOverride) -> Result<Override, CatalogError> {
        self.add_override_for(actor, identity::USER, new).await
    }

    /// As [`add_override`](Self::add_override), for the identity `new.user_id` of `dimension`.
    ///
    /// # Errors
    /// As [`add_override`](Self::add_override), and when there are 1,000 overrides for identities
    /// other than users.
    pub async fn add_override_for(
        &self,
        actor: &Actor,
        dimension: &str,
        new: NewOverride,
    ) -> Result<Override, CatalogError> {
        let (dimension, identifier) = canonical(dimension, &new.user_id)?;
        let new = NewOverride { user_id: identifier, ..new };
        check_name("rule", &new.rule)?;
        check_numbers(&new.numbers)?;
        check_reason(new.reason.as_deref())?;
        let part = part_of(&dimension);
        self.change(actor, part, (dimension, new), |change, (dimension, new)| {
            Box::pin(add(change, dimension, new))
        })
        .await
    }

    /// The overrides of a user that apply at `now`, oldest first.
    ///
    /// # Errors
    /// [`CatalogError`] when a row cannot be read, or the database does not respond.
    pub async fn overrides(&self, user_id: &str, now: Timestamp) -> Result<Vec<Override>, CatalogError> {
        self.overrides_of(identity::USER, user_id, now).await
    }

    /// As [`overrides`](Self::overrides), for an identity of `dimension`.
    ///
    /// # Errors
    /// As [`overrides`](Self::overrides), and when the identity is not valid.
    pub async fn overrides_of(
        &self,
        dimension: &str,
        identifier: &str,
        now: Timestamp,
    ) -> Result<Vec<Override>, CatalogError> {
        let (dimension, identifier) = canonical(dimension, identifier)?;
        let rows = self.rows(select_live_by(self.kind, owner_key(&dimension, &identifier), now)).await?;
        rows.iter().map(read).collect()
    }

    /// Deletes an override of a user if `expected` holds.
    ///
    /// # Errors
    /// [`CatalogError`]: not found, or another version is expected.
    pub async fn delete_override(
        &self,
        actor: &Actor,
        user_id: &str,
        override_id: &str,
        expected: Option<Expected>,
    ) -> Result<(), CatalogError> {
        self.delete_override_of(actor, identity::USER, user_id, override_id, expected).await
    }

    /// As [`delete_override`](Self::delete_override), for an identity of `dimension`.
    ///
    /// # Errors
    /// As [`delete_override`](Self::delete_override), and when the identity is not valid.
    pub async fn delete_override_of(
        &self,
        actor: &Actor,
        dimension: &str,
        identifier: &str,
        override_id: &str,
        expected: Option<Expected>,
    ) -> Result<(), CatalogError> {
        let owner = canonical(dimension, identifier)?;
        let part = part_of(&owner.0);
        let input = (owner, override_id.to_owned(), expected);
        self.change(actor, part, input, |change, (owner, override_id, expected)| {
            Box::pin(delete(change, owner, override_id, *expected))
        })
        .await
    }
}

/// An identity in the one spelling that is kept. Addresses keep all their bits, as in rules.
fn canonical(dimension: &str, identifier: &str) -> Result<(String, String), CatalogError> {
    let dimension = identity::dimension(dimension)?;
    if dimension == identity::USER {
        check_user_id(identifier)?;
        return Ok((dimension.to_owned(), identifier.to_owned()));
    }
    let identifier = identity::identifier(dimension, identifier, 128)?;
    Ok((dimension.to_owned(), identifier.into_owned()))
}

/// Overrides of users are looked up with the users; all others are compiled with the rules.
fn part_of(dimension: &str) -> Part {
    if dimension == identity::USER { Part::Users } else { Part::Rules }
}

async fn add(change: &mut Change<'_>, dimension: &str, new: &NewOverride) -> Result<Override, CatalogError> {
    let owner_key = owner_key(dimension, &new.user_id);
    let is_user = dimension == identity::USER;
    if new.expires_at <= change.now {
        return Err(CatalogError::invalid("expires_at", "must be in the future"));
    }
    // Expired overrides have no effect; the audit trail still has them.
    let expired =
        change.statement("SELECT override_id FROM pacegate_overrides WHERE user_key = ? AND expires_at <= ?");
    let expired = expired.bind(owner_key.clone()).time(change.now).rows(change.connection).await?;
    let mut sealed: Vec<String> = expired.iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
    let remove = change.statement("DELETE FROM pacegate_overrides WHERE user_key = ? AND expires_at <= ?");
    remove.bind(owner_key.clone()).time(change.now).run(change.connection).await?;
    let count = change.statement("SELECT COUNT(*) FROM pacegate_overrides WHERE user_key = ?");
    let count = count.bind(owner_key.clone()).row(change.connection).await?;
    let count: i64 = count.map_or(Ok(0), |row| column(&row, 0))?;
    if usize::try_from(count).unwrap_or(usize::MAX) >= OVERRIDES_MAX {
        return Err(CatalogError::invalid("overrides", "the user has 100 overrides, which is the maximum"));
    }
    if !is_user {
        let sql = "SELECT COUNT(*) FROM pacegate_overrides WHERE dimension IS NOT NULL AND expires_at > ?";
        let count = change.statement(sql).time(change.now).row(change.connection).await?;
        let count: i64 = count.map_or(Ok(0), |row| column(&row, 0))?;
        if usize::try_from(count).unwrap_or(usize::MAX) >= IDENTITY_OVERRIDES_MAX {
            return Err(CatalogError::invalid(
                "overrides",
                format!(
                    "there are {IDENTITY_OVERRIDES_MAX} overrides already, the maximum beside those of users"
                ),
            ));
        }
    }
    let made = Override {
        override_id: Uuid::now_v7().to_string(),
        dimension: dimension.to_owned(),
        user_id: new.user_id.clone(),
        rule: new.rule.clone(),
        numbers: new.numbers,
        reason: new.reason.clone(),
        expires_at: new.expires_at,
        created_at: change.now,
    };
    let too_large = |_| CatalogError::invalid("limit", "is too large");
    let kept = |number: Option<u64>| number.map(i64::try_from).transpose().map_err(too_large);
    let sql = "INSERT INTO pacegate_overrides (number, override_id, user_key, user_id, rule, quota, window_micros, burst, reason, expires_at, \
               created_at, dimension) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    change
        .statement(sql)
        // Each revision creates at most one override.
        .bind(change.revision)
        .bind(made.override_id.clone())
        .bind(owner_key)
        .bind(made.user_id.clone())
        .bind(made.rule.clone())
        .bind(kept(Some(made.numbers.quota))?)
        .bind(kept(made.numbers.window.map(json::whole_micros))?)
        .bind(kept(made.numbers.burst)?)
        .bind(made.reason.clone())
        .time(made.expires_at)
        .time(made.created_at)
        .bind(Some(dimension.to_owned()).filter(|_| !is_user))
        .run(change.connection)
        .await?;
    sealed.push(made.override_id.clone());
    change.seal(Sealed::Overrides, &sealed).await?;
    let after = Some(json::of_override(&made));
    let (subject, user_id) = (made.override_id.as_str(), Some(made.user_id.as_str()).filter(|_| is_user));
    change.record(Entry { action: Action::OverrideCreate, subject, user_id, before: None, after }).await?;
    Ok(made)
}

async fn delete(
    change: &mut Change<'_>,
    (dimension, identifier): &(String, String),
    override_id: &str,
    expected: Option<Expected>,
) -> Result<(), CatalogError> {
    if !is_id(override_id) {
        return Err(CatalogError::not_found("unknown override"));
    }
    let statement = change.statement(&format!("{SELECT} WHERE override_id = ? AND user_key = ?"));
    let statement = statement.bind(override_id.to_owned()).bind(owner_key(dimension, identifier));
    let row = statement.row(change.connection).await?;
    let row = row.ok_or_else(|| CatalogError::not_found("unknown override"))?;
    let before = Some(json::of_override(&read(&row)?));
    Expected::check(expected, Some(Override::VERSION), "override")?;
    let delete = change.statement("DELETE FROM pacegate_overrides WHERE override_id = ?");
    delete.bind(override_id.to_owned()).run(change.connection).await?;
    change.seal(Sealed::Overrides, &[override_id.to_owned()]).await?;
    let (action, subject) = (Action::OverrideDelete, override_id);
    let user_id = Some(identifier.as_str()).filter(|_| dimension == identity::USER);
    change.record(Entry { action, subject, user_id, before, after: None }).await
}

pub(crate) fn read(row: &AnyRow) -> Result<Override, CatalogError> {
    let optional = |index| column::<Option<i64>>(row, index)?.map(unsigned).transpose();
    let (dimension, user_id): (Option<String>, String) = (column(row, 9)?, column(row, 1)?);
    let dimension = dimension.unwrap_or_else(|| identity::USER.to_owned());
    // The seal covers the key and not the dimension.
    if column::<String>(row, 10)? != owner_key(&dimension, &user_id) {
        return Err(json::unreadable("an override has the key of another identity"));
    }
    Ok(Override {
        override_id: column(row, 0)?,
        dimension,
        user_id,
        rule: column(row, 2)?,
        numbers: LimitOverride {
            quota: unsigned(column(row, 3)?)?,
            window: optional(4)?.map(Duration::from_micros),
            burst: optional(5)?,
        },
        reason: column(row, 6)?,
        expires_at: time(row, 7)?,
        created_at: time(row, 8)?,
    })
}
