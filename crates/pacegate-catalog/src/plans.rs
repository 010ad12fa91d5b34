//! Plans in the catalog.

use pacegate::PlanLimit;
use sqlx::any::AnyRow;

use crate::audit::{Action, Entry};
use crate::bounds::check_name;
use crate::catalog::Catalog;
use crate::change::{Change, Part};
use crate::database::Kind;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::json;
use crate::precondition::Expected;
use crate::record::{Actor, StoredPlan};
use crate::seal::Sealed;
use crate::statement::{Statement, column, time};

/// Maximum number of plans.
pub const PLANS_MAX: usize = 10_000;

const SELECT: &str = "SELECT name, limits_json, version, updated_at, name_key FROM pacegate_plans";

pub(crate) fn select_all<'q>(kind: Kind) -> Statement<'q> {
    Statement::new(kind, SELECT).bulk()
}

impl Catalog {
    /// All plans, by name.
    ///
    /// # Errors
    /// [`CatalogError`] when a row cannot be read, or the database does not respond.
    pub async fn plans(&self) -> Result<Vec<StoredPlan>, CatalogError> {
        let rows = self.rows(select_all(self.kind)).await?;
        let mut plans: Vec<StoredPlan> = rows.iter().map(read).collect::<Result<_, _>>()?;
        plans.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(plans)
    }

    /// The plan with this name.
    ///
    /// # Errors
    /// [`CatalogError`] when its row cannot be read, or the database does not respond.
    pub async fn plan(&self, name: &str) -> Result<Option<StoredPlan>, CatalogError> {
        let statement = self.statement(&format!("{SELECT} WHERE name_key = ?")).bind(key_of(name));
        self.row(statement).await?.as_ref().map(read).transpose()
    }

    /// Creates or replaces a plan if `expected` holds; returns whether it was created.
    ///
    /// # Errors
    /// [`CatalogError`]: changed by a concurrent request, or an invalid value.
    pub async fn put_plan(
        &self,
        actor: &Actor,
        name: &str,
        limits: &[PlanLimit],
        expected: Option<Expected>,
    ) -> Result<(StoredPlan, bool), CatalogError> {
        check_name("name", name)?;
        PlanLimit::check_all(limits)?;
        let input = (name.to_owned(), limits.to_vec(), expected);
        self.change(actor, Part::Rules, input, |change, (name, limits, expected)| {
            Box::pin(put(change, name, limits, *expected))
        })
        .await
    }

    /// Removes a plan if `expected` holds.
    ///
    /// # Errors
    /// [`CatalogError`]: not found, or changed by a concurrent request.
    pub async fn delete_plan(
        &self,
        actor: &Actor,
        name: &str,
        expected: Option<Expected>,
    ) -> Result<(), CatalogError> {
        let input = (name.to_owned(), expected);
        self.change(actor, Part::Rules, input, |change, (name, expected)| {
            Box::pin(async move {
                let before = find(change, name).await?;
                let before = before.ok_or_else(|| CatalogError::not_found("unknown plan"))?;
                Expected::check(*expected, Some(before.version), "plan")?;
                let delete = change.statement("DELETE FROM pacegate_plans WHERE name_key = ?");
                delete.bind(key_of(name)).run(change.connection).await?;
                change.seal(Sealed::Plans, &[key_of(name)]).await?;
                let before = Some(json::plan(&before));
                let entry =
                    Entry { action: Action::PlanDelete, subject: name, user_id: None, before, after: None };
                change.record(entry).await
            })
        })
        .await
    }
}

async fn put(
    change: &mut Change<'_>,
    name: &str,
    limits: &[PlanLimit],
    expected: Option<Expected>,
) -> Result<(StoredPlan, bool), CatalogError> {
    let before = find(change, name).await?;
    Expected::check(expected, before.as_ref().map(|plan| plan.version), "plan")?;
    let version = before.as_ref().map_or(0, |plan| plan.version);
    let plan = StoredPlan {
        name: name.to_owned(),
        limits: limits.to_vec(),
        version: version + 1,
        updated_at: change.now,
    };
    let sql = if before.is_some() {
        "UPDATE pacegate_plans SET name = ?, limits_json = ?, version = ?, updated_at = ? WHERE name_key = ?"
    } else {
        let count = change.statement("SELECT COUNT(*) FROM pacegate_plans").row(change.connection).await?;
        let count: i64 = count.map_or(Ok(0), |row| column(&row, 0))?;
        if usize::try_from(count).unwrap_or(usize::MAX) >= PLANS_MAX {
            let message = format!("the catalog has {count} plans, which is the maximum");
            return Err(CatalogError::invalid("plans", message));
        }
        "INSERT INTO pacegate_plans (name, limits_json, version, updated_at, name_key) VALUES (?, ?, ?, ?, ?)"
    };
    let statement = change.statement(sql).bind(plan.name.clone()).bind(json::write_limits(limits)?);
    let statement = statement.bind(plan.version).time(plan.updated_at).bind(key_of(name));
    statement.run(change.connection).await?;
    change.seal(Sealed::Plans, &[key_of(name)]).await?;
    let is_new = before.is_none();
    let (before, after) = (before.as_ref().map(json::plan), Some(json::plan(&plan)));
    change.record(Entry { action: Action::PlanPut, subject: name, user_id: None, before, after }).await?;
    Ok((plan, is_new))
}

async fn find(change: &mut Change<'_>, name: &str) -> Result<Option<StoredPlan>, CatalogError> {
    let statement = change.statement(&format!("{SELECT} WHERE name_key = ?")).bind(key_of(name));
    statement.row(change.connection).await?.as_ref().map(read).transpose()
}

/// Reads a plan. An error, which means that the table was edited, names the plan.
pub(crate) fn read(row: &AnyRow) -> Result<StoredPlan, CatalogError> {
    let name: String = column(row, 0)?;
    fields(row, &name)
        .map_err(|error| CatalogError::permanent(format!("plan `{name}` cannot be read: {error}")))
}

fn fields(row: &AnyRow, name: &str) -> Result<StoredPlan, CatalogError> {
    let limits = json::read_limits(column(row, 1)?)?;
    PlanLimit::check_all(&limits)?;
    // Two plans with one name would invalidate the whole set.
    if column::<&str>(row, 4)? != key_of(name) {
        return Err(json::unreadable("the name does not match its key"));
    }
    Ok(StoredPlan { name: name.to_owned(), limits, version: column(row, 2)?, updated_at: time(row, 3)? })
}
