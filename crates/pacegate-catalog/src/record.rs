//! The records of the catalog.

use std::fmt;
use std::str::FromStr;

use pacegate::{LimitOverride, PlanLimit, Rule, Timestamp};

/// A rule as stored in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// Increases with every new rule; lists are in this order.
    pub number: i64,
    /// The id of the rule.
    pub rule_id: String,
    /// The rule.
    pub rule: Rule,
    /// Values of a policy that its limit has no field for.
    pub policy: Option<PolicyDetail>,
    /// Increases by one with every change.
    pub version: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Values that the policy's algorithm does not use, stored so that the policy is returned as it was
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDetail {
    /// Tokens per second, which window algorithms do not use.
    pub refill_rate: u64,
    /// The window, which bucket algorithms do not use.
    pub window_seconds: u64,
}

/// A plan as stored in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlan {
    /// The name of the plan.
    pub name: String,
    /// The limits of the plan.
    pub limits: Vec<PlanLimit>,
    /// Increases by one with every change.
    pub version: i64,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// A user with a tier or custom limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The identifier in the dimension `user`.
    pub user_id: String,
    /// The tier.
    pub tier: Option<String>,
    /// The custom limits, by the name of the rule.
    pub custom_limits: Vec<(String, LimitOverride)>,
    /// Increases by one with every change.
    pub version: i64,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// A change of a user. Fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserChange {
    /// The new tier; `Some(None)` removes it.
    pub tier: Option<Option<String>>,
    /// The new custom limits, which replace all existing ones.
    pub custom_limits: Option<Vec<(String, LimitOverride)>>,
}

impl UserChange {
    /// Replaces tier and custom limits.
    pub fn all(tier: Option<&str>, custom_limits: &[(String, LimitOverride)]) -> Self {
        Self { tier: Some(tier.map(str::to_owned)), custom_limits: Some(custom_limits.to_vec()) }
    }

    /// The user after this change, in its next version.
    pub(crate) fn apply_to(&self, before: Option<&User>, user_id: &str, now: Timestamp) -> User {
        let (tier, custom_limits, version) = match before {
            Some(user) => (user.tier.clone(), user.custom_limits.clone(), user.version),
            None => (None, Vec::new(), 0),
        };
        User {
            user_id: user_id.to_owned(),
            tier: self.tier.clone().unwrap_or(tier),
            custom_limits: self.custom_limits.clone().unwrap_or(custom_limits),
            version: version + 1,
            updated_at: now,
        }
    }
}

/// A temporary limit for one user or another identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The id of the override.
    pub override_id: String,
    /// The dimension of the identity, usually `user`.
    pub dimension: String,
    /// The user, or the identifier in another dimension.
    pub user_id: String,
    /// The name of the rules with overridden values.
    pub rule: String,
    /// The values.
    pub numbers: LimitOverride,
    /// Why it was created.
    pub reason: Option<String>,
    /// When it stops applying.
    pub expires_at: Timestamp,
    /// When it was created.
    pub created_at: Timestamp,
}

impl Override {
    /// The version of every override: overrides are never changed, only deleted.
    pub const VERSION: i64 = 1;
}

/// The author of a change, for the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The id of the API key, or the name of an internal component.
    pub key_id: String,
    /// The address that the request came from.
    pub address: Option<String>,
    /// The id of the request.
    pub request_id: Option<String>,
}

/// One change in the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its number in the trail, which has no gaps.
    pub sequence: i64,
    /// When the change was made.
    pub at: Timestamp,
    /// The author of the change.
    pub actor: Actor,
    /// The action, such as `rule.create`.
    pub action: String,
    /// The subject of the action: the id of the rule, the name of the plan, the user.
    pub subject: String,
    /// The affected user, if there is one.
    pub user_id: Option<String>,
    /// The JSON of the subject before the change.
    pub before: Option<String>,
    /// The JSON of the subject after the change.
    pub after: Option<String>,
    /// The hash of the previous record's hash and all fields above.
    pub hash: String,
}

/// The revision of the catalog. Compare revisions only for equality: a restored catalog has lower
/// numbers again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// Number of times this node found a different history, because the catalog was restored from a
    /// backup.
    pub epoch: u64,
    /// Increases with every change.
    pub all: i64,
    /// The value of `all` at the last change of rules or plans.
    pub rules: i64,
    /// The value of `all` at the last change of users or overrides; 0 before the first one.
    pub users: i64,
    /// The sequence of the newest audit record.
    pub audit: i64,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// The public part that identifies the key.
    pub key_id: String,
    /// The name that the operator gave it.
    pub name: String,
    /// `admin`, `reader` or `checker`.
    pub role: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it stops being valid.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used. Best effort: uses are written with a delay.
    pub last_used_at: Option<Timestamp>,
}

impl StoredKey {
    /// The version of the key: 1 when created, 2 once revoked. Nothing else about a key changes.
    pub fn version(&self) -> i64 {
        1 + i64::from(self.revoked_at.is_some())
    }

    /// Whether the key is neither revoked nor expired at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| expires_at > now)
    }
}

/// All rules and plans at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleList {
    /// The revision that they belong to.
    pub revision: Revision,
    /// The rules, by number.
    pub rules: Vec<StoredRule>,
    /// The plans, by name.
    pub plans: Vec<StoredPlan>,
    /// The overrides for identities other than users, oldest first.
    pub overrides: Vec<Override>,
    /// The errors of rows that are skipped, because the tables were edited outside Pacegate.
    pub unreadable: Vec<String>,
}

/// A new override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOverride {
    /// The user, or the identifier in another dimension.
    pub user_id: String,
    /// The name of the rules with overridden values.
    pub rule: String,
    /// The values.
    pub numbers: LimitOverride,
    /// Why it is created.
    pub reason: Option<String>,
    /// When it stops applying.
    pub expires_at: Timestamp,
}

/// Selects audit records. The default selects all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only records about this user.
    pub user: Option<String>,
    /// Only records by this key.
    pub actor: Option<String>,
    /// Only records made at this time or later.
    pub since: Option<Timestamp>,
}

/// A record of the audit trail: its sequence, which counts all records ever written, and its hash.
///
/// The newest one is the head of the trail. A head that was saved outside the catalog shows later
/// whether the trail was truncated or rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditHead {
    /// The number in the trail; 0 before the first record.
    pub sequence: i64,
    /// The hash, in hexadecimal.
    pub hash: String,
}

impl fmt::Display for AuditHead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.sequence, self.hash)
    }
}

impl FromStr for AuditHead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(sequence, hash)| {
            let sequence = sequence.parse().ok().filter(|sequence| *sequence >= 0)?;
            let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            (is_hash || (sequence == 0 && hash.is_empty()))
                .then(|| Self { sequence, hash: hash.to_ascii_lowercase() })
        });
        parsed.ok_or_else(|| format!("expected SEQUENCE:HASH as `audit verify` prints it, got `{text}`"))
    }
}

/// The result of verifying the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCheck {
    /// The first verified record. Older ones were removed by retention, or precede the last
    /// sealing.
    pub first: i64,
    /// Number of intact records, counted from the first one.
    pub records: u64,
    /// The newest record.
    pub head: AuditHead,
    /// The problems that were found; at most 100 are listed.
    pub problems: Vec<AuditProblem>,
    /// Number of further problems.
    pub unnamed: u64,
}

impl AuditCheck {
    /// Whether no problem was found.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }

    /// The first record that is missing or was edited.
    pub fn first_broken(&self) -> Option<i64> {
        self.problems.iter().find_map(|problem| match problem {
            AuditProblem::Record(sequence) => Some(*sequence),
            _ => None,
        })
    }
}

/// A difference between the catalog and what changes wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditProblem {
    /// A record is missing or was edited.
    #[error("record {0} is missing or was edited")]
    Record(i64),
    /// The state of the trail was edited: its first or last record, or the numbers of rows.
    #[error("the head of the trail, its start or the numbers of rows were changed outside Pacegate")]
    State,
    /// A change found the state edited and recorded it.
    #[error("record {0} reports that the state of the trail was changed outside Pacegate")]
    Noted(i64),
    /// The trail was written under another key.
    #[error("the trail was written under audit key {written_under}, but {}", given_key(.given.as_deref()))]
    OtherKey {
        /// The id of the key that the trail was written under.
        written_under: String,
        /// The id of the configured key, if there is one.
        given: Option<String>,
    },
    /// There are rows or records without a seal.
    #[error("the catalog has rows or records that were never sealed")]
    Unsealed,
    /// The audit key exists, but the trail is empty.
    #[error("the trail is empty, but its audit key exists: the trail was removed")]
    Emptied,
    /// The expected record is not in the trail.
    #[error("the expected record {} is not in the trail: the trail was truncated or rewritten", .0.sequence)]
    Head(AuditHead),
    /// The expected record is older than the trail.
    #[error("the expected record {} is older than the oldest record in the trail; expect a newer one", .0.sequence)]
    HeadTooOld(AuditHead),
    /// A row differs from the trail.
    #[error("{kind} `{subject}` {change}")]
    Row {
        /// `rule`, `plan`, `user`, `key` or `override`.
        kind: &'static str,
        /// The name of the row in the trail.
        subject: String,
        /// How the row was changed.
        change: RowChange,
    },
    /// The number of rows in a table differs.
    #[error("expected {expected} rows of kind {kind}, found {found}")]
    Rows {
        /// As in [`Row`](Self::Row).
        kind: &'static str,
        /// The number that changes left.
        expected: i64,
        /// The number in the table.
        found: i64,
    },
}

fn given_key(given: Option<&str>) -> String {
    given.map_or_else(
        || "no audit key is configured".to_owned(),
        |given| format!("the configured key is {given}"),
    )
}

/// How a row was changed outside Pacegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowChange {
    /// The content differs.
    #[error("was edited outside Pacegate")]
    Edited,
    /// No change created it.
    #[error("was added outside Pacegate")]
    Added,
    /// No change deleted it.
    #[error("was removed outside Pacegate")]
    Removed,
    /// A change deleted it.
    #[error("was deleted by a change and restored outside Pacegate")]
    Restored,
    /// It has an earlier version than the one in the trail.
    #[error("was reverted to an earlier version outside Pacegate")]
    Outdated,
}
