//! The decision log: a sample of the decisions.

use std::borrow::Cow;

use pacegate::identity::{DIMENSION_LENGTH_MAX, IDENTIFIER_LENGTH_MAX, NAME_LENGTH_MAX};
use pacegate::{Timestamp, path::ENDPOINT_LENGTH_MAX};
use sqlx::any::AnyRow;

use crate::bounds::check_page;
use crate::catalog::Catalog;
use crate::digest::key_of;
use crate::error::CatalogError;
use crate::statement::{column, time, unsigned};

/// Maximum number of records that one statement writes.
pub const DECISIONS_MAX: usize = 500;

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionRecord {
    /// When the decision was made.
    pub at: Timestamp,
    /// The id of the request.
    pub request_id: Option<String>,
    /// The user, if the check names one.
    pub user_id: Option<String>,
    /// The dimension of the binding limit.
    pub dimension: String,
    /// The identifier in that dimension.
    pub identifier: String,
    /// The requested endpoint.
    pub endpoint: String,
    /// The HTTP method.
    pub method: Option<String>,
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The name of the binding limit.
    pub rule: Option<String>,
    /// Why the request is denied, or why no decision could be made.
    pub reason: Option<String>,
    /// The cost of the request.
    pub cost: u64,
    /// The capacity of the binding limit.
    pub capacity: Option<u64>,
    /// The remaining quota after the decision.
    pub remaining: Option<u64>,
}

/// Maximum length of each text in bytes: that of a valid check, and what the columns hold.
const REQUEST_ID_MAX: usize = 256;
const METHOD_MAX: usize = 64;
const REASON_MAX: usize = 64;

/// Maximum stored length of identifiers and endpoints, so that a flood of new ones does not fill
/// the disk.
const IDENTIFIER_STORED_MAX: usize = 128;
const ENDPOINT_STORED_MAX: usize = 256;
/// Number of digits of the hash that a shortened text ends with.
const HASH_DIGITS: usize = 16;

/// An identifier as usage and the decision log store it: above 128 bytes, its beginning and a hash.
pub fn shorten_identifier(identifier: &str) -> Cow<'_, str> {
    shorten(identifier, IDENTIFIER_STORED_MAX)
}

fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    const GAP: char = '…';
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let start = &text[..text.floor_char_boundary(max - GAP.len_utf8() - HASH_DIGITS)];
    Cow::Owned(format!("{start}{GAP}{}", &key_of(text)[..HASH_DIGITS]))
}

fn shorten_in_place(text: &mut String, max: usize) {
    if let Cow::Owned(short) = shorten(text, max) {
        *text = short;
    }
}

impl DecisionRecord {
    /// The record with texts that every database can store: shortened to their maximum, and without
    /// NUL, which PostgreSQL rejects.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        shorten_in_place(&mut self.identifier, IDENTIFIER_STORED_MAX);
        shorten_in_place(&mut self.endpoint, ENDPOINT_STORED_MAX);
        if let Some(user_id) = &mut self.user_id {
            shorten_in_place(user_id, IDENTIFIER_STORED_MAX);
        }
        let texts = [
            (&mut self.dimension, DIMENSION_LENGTH_MAX),
            (&mut self.identifier, IDENTIFIER_LENGTH_MAX),
            (&mut self.endpoint, ENDPOINT_LENGTH_MAX),
        ];
        let optional = [
            (&mut self.request_id, REQUEST_ID_MAX),
            (&mut self.user_id, IDENTIFIER_LENGTH_MAX),
            (&mut self.method, METHOD_MAX),
            (&mut self.rule, NAME_LENGTH_MAX),
            (&mut self.reason, REASON_MAX),
        ];
        let optional = optional.into_iter().filter_map(|(text, max)| text.as_mut().map(|text| (text, max)));
        for (text, max) in texts.into_iter().chain(optional) {
            fit(text, max);
        }
        self
    }
}

/// Shortens a text at a character boundary and replaces NUL.
pub(crate) fn fit(text: &mut String, max: usize) {
    text.truncate(text.floor_char_boundary(max));
    if text.contains('\0') {
        *text = text.replace('\0', " ");
    }
}

/// Selects decisions. The default selects all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionFilter {
    /// Only decisions about this user.
    pub user_id: Option<String>,
    /// Only decisions at this endpoint.
    pub endpoint: Option<String>,
    /// Only decisions about this identity, in any dimension.
    pub identifier: Option<String>,
    /// Only decisions that report this rule.
    pub rule: Option<String>,
    /// Only decisions made at this time or later.
    pub since: Option<Timestamp>,
    /// Only allowed requests, or only denied ones.
    pub allowed: Option<bool>,
}

const COLUMNS: &str = "number, at, request_id, user_id, dimension, identifier, endpoint, method, allowed, rule, reason, cost, quota, remaining_quota";

impl Catalog {
    /// Adds up to [`DECISIONS_MAX`] decisions to the log. Returns how many the database rejected;
    /// the others are stored.
    ///
    /// # Errors
    /// [`CatalogError`] when the database does not respond; some decisions may then be missing.
    pub async fn append_decisions(&self, decisions: &[DecisionRecord]) -> Result<u64, CatalogError> {
        let mut rejected = 0;
        let mut batches: Vec<&[DecisionRecord]> = decisions.chunks(DECISIONS_MAX).rev().collect();
        while let Some(batch) = batches.pop() {
            match self.insert_decisions(batch).await {
                Ok(()) => {}
                Err(error) if error.is_value() && batch.len() == 1 => {
                    tracing::warn!(%error, "decision not logged");
                    rejected += 1;
                }
                Err(error) if error.is_value() => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([second, first]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(rejected)
    }

    async fn insert_decisions(&self, decisions: &[DecisionRecord]) -> Result<(), CatalogError> {
        let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"; decisions.len()].join(", ");
        let sql = format!(
            "INSERT INTO pacegate_decision_log (at, request_id, user_key, user_id, dimension, identifier, endpoint_key, endpoint, method, allowed, rule, reason, cost, \
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
                .bind(key_of(&decision.endpoint))
                .bind(decision.endpoint.clone())
                .bind(decision.method.clone())
                .bind(i64::from(decision.allowed))
                .bind(decision.rule.clone())
                .bind(decision.reason.clone())
                .bind(signed(decision.cost))
                .bind(decision.capacity.map(signed))
                .bind(decision.remaining.map(signed));
        }
        self.run(statement).await.map(drop)
    }

    /// The newest decisions that match the filter, newest first, each with its number; only those
    /// before the number `after`, if it is set.
    ///
    /// At most `limit` are returned, and only a bounded number of other rows is scanned.
    ///
    /// # Errors
    /// [`CatalogError`] when `limit` is not between 1 and 1,000, or the database does not respond.
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
            (filter.endpoint.is_some(), " AND endpoint_key = ?"),
            (filter.identifier.is_some(), " AND identifier = ?"),
            (filter.rule.is_some(), " AND rule = ?"),
            (filter.since.is_some(), " AND at >= ?"),
            (filter.allowed.is_some(), " AND allowed = ?"),
        ];
        sql.extend(conditions.iter().filter(|(wanted, _)| *wanted).map(|(_, condition)| *condition));
        sql.push_str(" ORDER BY number DESC LIMIT ?");
        let mut statement = self.statement(&sql).bind(after.unwrap_or(i64::MAX));
        if let Some(user_id) = &filter.user_id {
            statement = statement.bind(key_of(&shorten_identifier(user_id)));
        }
        if let Some(endpoint) = filter.endpoint {
            statement = statement.bind(key_of(&shorten(&endpoint, ENDPOINT_STORED_MAX)));
        }
        if let Some(identifier) = &filter.identifier {
            statement = statement.bind(shorten_identifier(identifier).into_owned());
        }
        if let Some(rule) = filter.rule {
            statement = statement.bind(rule);
        }
        if let Some(since) = filter.since {
            statement = statement.time(since);
        }
        if let Some(allowed) = filter.allowed {
            statement = statement.bind(i64::from(allowed));
        }
        self.read(statement.bind(limit)).await?.iter().map(read).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_identifiers_are_shortened_to_their_beginning_and_a_hash() {
        assert_eq!(shorten_identifier(&"u".repeat(128)), "u".repeat(128));
        let (one, other) = ("ä".repeat(500), format!("{}b", "ä".repeat(499)));
        let short = shorten_identifier(&one);
        assert!(short.len() <= 128 && short.starts_with("ääää"), "{short}");
        assert_ne!(short, shorten_identifier(&other));
        assert_eq!(short, shorten_identifier(&short), "shortening is idempotent");
    }

    #[test]
    fn bounded_record_fits_every_database() {
        let long = "ä\0".repeat(3_000);
        let record = DecisionRecord {
            request_id: Some(long.clone()),
            user_id: Some(long.clone()),
            dimension: long.clone(),
            identifier: long.clone(),
            endpoint: long.clone(),
            method: Some(long.clone()),
            rule: Some(long.clone()),
            reason: Some(long),
            ..DecisionRecord::default()
        };
        let bounded = record.bounded();
        let texts = [
            (bounded.request_id.as_deref().unwrap_or_default(), 256),
            (bounded.user_id.as_deref().unwrap_or_default(), 128),
            (&bounded.dimension, 64),
            (&bounded.identifier, 128),
            (&bounded.endpoint, 256),
            (bounded.method.as_deref().unwrap_or_default(), 64),
            (bounded.rule.as_deref().unwrap_or_default(), 128),
            (bounded.reason.as_deref().unwrap_or_default(), 64),
        ];
        for (text, max) in texts {
            assert!((max - 3..=max).contains(&text.len()) && !text.contains('\0'), "{} bytes", text.len());
        }
        let short = DecisionRecord { endpoint: "/a".into(), ..DecisionRecord::default() };
        assert_eq!(short.clone().bounded(), short);
    }
}
