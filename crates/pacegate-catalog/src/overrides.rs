//! Temporary limits of single users.

use std::time::Duration;

use pacegate::{LimitOverride, Timestamp};
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

/// Maximum number of overrides that a user may have at a time.
pub const OVERRIDES_MAX: usize = 100;

const SELECT: &str = "SELECT override_id, user_id, rule, quota, window_micros, burst, reason, expires_at, created_at FROM pacegate_overrides";

/// The overrides of a user that apply at `now`, oldest first.
pub(crate) fn select_live<'q>(kind: Kind, user_id: &str, now: Timestamp) -> Statement<'q> {
    let sql = format!("{SELECT} WHERE user_key = ? AND expires_at > ? ORDER BY number");
    Statement::new(kind, &sql).bind(key_of(user_id)).time(now)
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
        check_user_id(&new.user_id)?;
        check_name("rule", &new.rule)?;
        check_numbers(&new.numbers)?;
        check_reason(new.reason.as_deref())?;
        self.change(actor, Part::Users, new, |change, new| Box::pin(add(change, new))).await
    }

    /// The overrides of a user that apply at `now`, oldest first.
    ///
    /// # Errors
    /// [`CatalogError`] when a row cannot be read, or the database does not respond.
    pub async fn overrides(&self, user_id: &str, now: Timestamp) -> Result<Vec<Override>, CatalogError> {
        let rows = self.rows(select_live(self.kind, user_id, now)).await?;
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
        let input = (user_id.to_owned(), override_id.to_owned(), expected);
        self.change(actor, Part::Users, input, |change, (user_id, override_id, expected)| {
            Box::pin(delete(change, user_id, override_id, *expected))
        })
        .await
    }
}

async fn add(change: &mut Change<'_>, new: &NewOverride) -> Result<Override, CatalogError> {
    if new.expires_at <= change.now {
        return Err(CatalogError::invalid("expires_at", "must be in the future"));
    }
    // Expired overrides have no effect; the audit trail still has them.
    let expired =
        change.statement("SELECT override_id FROM pacegate_overrides WHERE user_key = ? AND expires_at <= ?");
    let expired = expired.bind(key_of(&new.user_id)).time(change.now).rows(change.connection).await?;
    let mut sealed: Vec<String> = expired.iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
    let remove = change.statement("DELETE FROM pacegate_overrides WHERE user_key = ? AND expires_at <= ?");
    remove.bind(key_of(&new.user_id)).time(change.now).run(change.connection).await?;
    let count = change.statement("SELECT COUNT(*) FROM pacegate_overrides WHERE user_key = ?");
    let count = count.bind(key_of(&new.user_id)).row(change.connection).await?;
    let count: i64 = count.map_or(Ok(0), |row| column(&row, 0))?;
    if usize::try_from(count).unwrap_or(usize::MAX) >= OVERRIDES_MAX {
        return Err(CatalogError::invalid("overrides", "the user has 100 overrides, which is the maximum"));
    }
    let made = Override {
        override_id: Uuid::now_v7().to_string(),
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
               created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    change
        .statement(sql)
        // Each revision creates at most one override.
        .bind(change.revision)
        .bind(made.override_id.clone())
        .bind(key_of(&made.user_id))
        .bind(made.user_id.clone())
        .bind(made.rule.clone())
        .bind(kept(Some(made.numbers.quota))?)
        .bind(kept(made.numbers.window.map(json::whole_micros))?)
        .bind(kept(made.numbers.burst)?)
        .bind(made.reason.clone())
        .time(made.expires_at)
        .time(made.created_at)
        .run(change.connection)
        .await?;
    sealed.push(made.override_id.clone());
    change.seal(Sealed::Overrides, &sealed).await?;
    let after = Some(json::of_override(&made));
    let (subject, user_id) = (made.override_id.as_str(), Some(made.user_id.as_str()));
    change.record(Entry { action: Action::OverrideCreate, subject, user_id, before: None, after }).await?;
    Ok(made)
}

async fn delete(
    change: &mut Change<'_>,
    user_id: &str,
    override_id: &str,
    expected: Option<Expected>,
) -> Result<(), CatalogError> {
    if !is_id(override_id) {
        return Err(CatalogError::not_found("unknown override"));
    }
    let statement = change.statement(&format!("{SELECT} WHERE override_id = ? AND user_key = ?"));
    let row = statement.bind(override_id.to_owned()).bind(key_of(user_id)).row(change.connection).await?;
    let row = row.ok_or_else(|| CatalogError::not_found("unknown override"))?;
    let before = Some(json::of_override(&read(&row)?));
    Expected::check(expected, Some(Override::VERSION), "override")?;
    let delete = change.statement("DELETE FROM pacegate_overrides WHERE override_id = ?");
    delete.bind(override_id.to_owned()).run(change.connection).await?;
    change.seal(Sealed::Overrides, &[override_id.to_owned()]).await?;
    let (action, subject) = (Action::OverrideDelete, override_id);
    change.record(Entry { action, subject, user_id: Some(user_id), before, after: None }).await
}

pub(crate) fn read(row: &AnyRow) -> Result<Override, CatalogError> {
    let optional = |index| column::<Option<i64>>(row, index)?.map(unsigned).transpose();
    Ok(Override {
        override_id: column(row, 0)?,
        user_id: column(row, 1)?,
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
