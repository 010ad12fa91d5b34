//! The decision log: what was decided, as far as it was sampled.

use pacegate::Timestamp;
use sqlx::any::AnyRow;

use crate::bounds::check_page;
use crate::catalog::Catalog;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::statement::{column, time, unsigned};

/// How many records are written by one statement.
pub const DECISIONS_MAX: usize = 500;

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionRecord {
    /// When it was made.
    pub at: Timestamp,
    /// The id of the request.
    pub request_id: Option<String>,
    /// The user, if the check named one.
    pub user_id: Option<String>,
    /// What was counted by the limit that binds.
    pub dimension: String,
    /// The value in that dimension.
    pub identifier: String,
    /// Where the request went.
    pub endpoint: String,
    /// How.
    pub method: Option<String>,
    /// Whether it may pass.
    pub allowed: bool,
    /// The name of the limit that binds.
    pub rule: Option<String>,
    /// Why it may not, or why nobody knows.
    pub reason: Option<String>,
    /// How much it takes.
    pub cost: u64,
    /// How much can be taken at once.
    pub capacity: Option<u64>,
    /// What was left then.
    pub remaining: Option<u64>,
}

/// Which decisions are wanted; all of them unless something is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionFilter {
    /// About this user.
    pub user_id: Option<String>,
    /// At this endpoint.
    pub endpoint: Option<String>,
    /// Made then or later.
    pub since: Option<Timestamp>,
    /// Only those that passed, or only those that did not.
    pub allowed: Option<bool>,
}

const COLUMNS: &str = "number, at, request_id, user_id, dimension, identifier, endpoint, method, allowed, rule, reason, cost, quota, remaining_quota";

impl Catalog {
    /// Adds decisions to the log, up to [`DECISIONS_MAX`] at once.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not answer; then none of them is there, or nobody knows.
    pub async fn append_decisions(&self, decisions: &[DecisionRecord]) -> Result<(), CatalogError> {
        for decisions in decisions.chunks(DECISIONS_MAX) {
            let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"; decisions.len()].join(", ");
            let sql = format!(
                "INSERT INTO pacegate_decision_log (at, request_id, user_key, user_id, dimension, identifier, endpoint, method, allowed, rule, reason, cost, \
                 quota, remaining_quota) VALUES {rows}"
            );
            let mut statement = self.statement(&sql);
            for decision in decisions {
                statement = statement
                    .time(decision.at)
                    .bind(decision.request_id.clone())
                    .bind(decision.user_id.as_deref().map(key_of))
                    .bind(decision.user_id.clone())
                    .bind(decision.dimension.clone())
                    .bind(decision.identifier.clone())
                    .bind(decision.endpoint.clone())
                    .bind(decision.method.clone())
                    .bind(i64::from(decision.allowed))
                    .bind(decision.rule.clone())
                    .bind(decision.reason.clone())
                    .bind(signed(decision.cost))
                    .bind(decision.capacity.map(signed))
                    .bind(decision.remaining.map(signed));
            }
            self.run(statement).await?;
        }
        Ok(())
    }

    /// The newest decisions that the filter lets through, newest first, each with its number: those before the number `after`, if it is given. No more than
    /// `limit` of them, and no more than a bounded number of others are looked at on the way.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not answer.
    pub async fn decision_page(
        &self,
        filter: DecisionFilter,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(i64, DecisionRecord)>, CatalogError> {
        let limit = check_page(limit)?;
        let mut sql = format!("SELECT {COLUMNS} FROM pacegate_decision_log WHERE number < ?");
        let conditions = [
            (filter.user_id.is_some(), " AND user_key = ?"),
            (filter.endpoint.is_some(), " AND endpoint = ?"),
            (filter.since.is_some(), " AND at >= ?"),
            (filter.allowed.is_some(), " AND allowed = ?"),
        ];
        sql.extend(conditions.iter().filter(|(wanted, _)| *wanted).map(|(_, condition)| *condition));
        sql.push_str(" ORDER BY number DESC LIMIT ?");
        let mut statement = self.statement(&sql).bind(after.unwrap_or(i64::MAX));
        if let Some(user_id) = &filter.user_id {
            statement = statement.bind(key_of(user_id));
        }
        if let Some(endpoint) = filter.endpoint {
            statement = statement.bind(endpoint);
        }
        if let Some(since) = filter.since {
            statement = statement.time(since);
        }
        if let Some(allowed) = filter.allowed {
            statement = statement.bind(i64::from(allowed));
        }
        self.rows(statement.bind(limit)).await?.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<(i64, DecisionRecord), CatalogError> {
    let optional =
        |index| column::<Option<i64>>(row, index).and_then(|number| number.map(unsigned).transpose());
    let record = DecisionRecord {
        at: time(row, 1)?,
        request_id: column(row, 2)?,
        user_id: column(row, 3)?,
        dimension: column(row, 4)?,
        identifier: column(row, 5)?,
        endpoint: column(row, 6)?,
        method: column(row, 7)?,
        allowed: column::<i32>(row, 8)? != 0,
        rule: column(row, 9)?,
        reason: column(row, 10)?,
        cost: unsigned(column(row, 11)?)?,
        capacity: optional(12)?,
        remaining: optional(13)?,
    };
    Ok((column(row, 0)?, record))
}

pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
