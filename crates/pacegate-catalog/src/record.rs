//! What the catalog keeps, as the rest of the program sees it.

use std::fmt;
use std::str::FromStr;

use pacegate::{LimitOverride, PlanLimit, Rule, Timestamp};

/// A rule with what the catalog knows about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    /// Grows with every rule that is made; lists are in this order.
    pub number: i64,
    /// The rule's id.
    pub rule_id: String,
    /// The rule.
    pub rule: Rule,
    /// LimitOverride of a policy that its limit has no place for.
    pub policy: Option<PolicyDetail>,
    /// Grows by one with every change.
    pub version: i64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
}

/// What a policy's algorithm does not use, kept so that it is shown as it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyDetail {
    /// Tokens per second, which windows have not.
    pub refill_rate: u64,
    /// The window, which buckets have not.
    pub window_seconds: u64,
}

/// A plan with what the catalog knows about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPlan {
    /// The plan's name.
    pub name: String,
    /// Its limits.
    pub limits: Vec<PlanLimit>,
    /// Grows by one with every change.
    pub version: i64,
    /// When it was changed last.
    pub updated_at: Timestamp,
}

/// A user that has a tier or limits of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The identifier in the dimension `user`.
    pub user_id: String,
    /// The tier.
    pub tier: Option<String>,
    /// Limits of their own, by the name of the rule.
    pub custom_limits: Vec<(String, LimitOverride)>,
    /// Grows by one with every change.
    pub version: i64,
    /// When it was changed last.
    pub updated_at: Timestamp,
}

/// A change of a user. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserChange {
    /// The new tier; `Some(None)` removes it.
    pub tier: Option<Option<String>>,
    /// The new custom limits, in place of all those before.
    pub custom_limits: Option<Vec<(String, LimitOverride)>>,
}

impl UserChange {
    /// Replaces tier and custom limits.
    pub fn all(tier: Option<&str>, custom_limits: &[(String, LimitOverride)]) -> Self {
        Self { tier: Some(tier.map(str::to_owned)), custom_limits: Some(custom_limits.to_vec()) }
    }
}

/// A temporary limit for one user or another identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The override's id.
    pub override_id: String,
    /// The dimension of the identity, usually `user`.
    pub dimension: String,
    /// The user, or the identifier in another dimension.
    pub user_id: String,
    /// Which rules it replaces the numbers of.
    pub rule: String,
    /// The numbers.
    pub numbers: LimitOverride,
    /// Why somebody made it.
    pub reason: Option<String>,
    /// From when on it does not hold any more.
    pub expires_at: Timestamp,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Override {
    /// The version of every override: none is ever changed, only removed.
    pub const VERSION: i64 = 1;
}

/// Who makes a change, for the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The id of the API key, or a word for the program itself.
    pub key_id: String,
    /// The address the request came from.
    pub address: Option<String>,
    /// The id of the request.
    pub request_id: Option<String>,
}

/// One change in the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its place in the trail, which has no gaps.
    pub sequence: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: Actor,
    /// What was done, like `rule.create`.
    pub action: String,
    /// To what: the id of the rule, the name of the plan, the user.
    pub subject: String,
    /// The user it concerns, if it is about one.
    pub user_id: Option<String>,
    /// As JSON, before the change.
    pub before: Option<String>,
    /// As JSON, after the change.
    pub after: Option<String>,
    /// Of the record before and of everything above.
    pub hash: String,
}

/// How far the catalog has been changed. Revisions are compared for equality only: a restored catalog has lower numbers again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// How often this node found another history than before, because the catalog was restored from a backup.
    pub epoch: u64,
    /// Grows with every change of anything.
    pub all: i64,
    /// What `all` was when rules or plans were changed last.
    pub rules: i64,
    /// What `all` was when users or overrides were changed last; 0 when there has never been one.
    pub users: i64,
    /// The number of the newest audit record.
    pub audit: i64,
}

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// The public part, by which people name it.
    pub key_id: String,
    /// What people call it.
    pub name: String,
    /// `admin`, `reader` or `checker`.
    pub role: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it does not hold any more.
    pub expires_at: Option<Timestamp>,
    /// When somebody took it back.
    pub revoked_at: Option<Timestamp>,
    /// When it was used last, as far as anybody noted it.
    pub last_used_at: Option<Timestamp>,
}

impl StoredKey {
    /// Its version: 1 as created, 2 once revoked. Nothing else about a key changes.
    pub fn version(&self) -> i64 {
        1 + i64::from(self.revoked_at.is_some())
    }

    /// Whether it is neither revoked nor expired at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires_at| expires_at > now)
    }
}

/// All rules and plans as they were at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleList {
    /// The revision they belong to.
    pub revision: Revision,
    /// The rules by their number.
    pub rules: Vec<StoredRule>,
    /// The plans by their name.
    pub plans: Vec<StoredPlan>,
    /// The overrides for identities other than users, oldest first.
    pub overrides: Vec<Override>,
    /// What is wrong with the rows that are left out, because somebody else edited the tables.
    pub unreadable: Vec<String>,
}

/// An override that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOverride {
    /// The user, or the identifier in another dimension.
    pub user_id: String,
    /// Which rules it replaces the numbers of.
    pub rule: String,
    /// The numbers.
    pub numbers: LimitOverride,
    /// Why somebody makes it.
    pub reason: Option<String>,
    /// From when on it does not hold any more.
    pub expires_at: Timestamp,
}

/// Which audit records are wanted; all of them unless something is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// About this user.
    pub user: Option<String>,
    /// By this key.
    pub actor: Option<String>,
    /// Made then or later.
    pub since: Option<Timestamp>,
}

/// A record of the audit trail by its sequence, which counts all records ever written, and its hash. The newest one is the trail's head:
/// kept elsewhere, it shows later whether the trail was cut off or rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditHead {
    /// Its place in the trail; 0 before the first record.
    pub sequence: i64,
    /// Its hash, in hexadecimal.
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

/// What a verification of the audit trail found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCheck {
    /// The first record that is verified: older ones were removed because of their age, or are older than the last sealing.
    pub first: i64,
    /// How many records are as they were written, counted from the first one.
    pub records: u64,
    /// The newest record.
    pub head: AuditHead,
    /// What is not as it was written; at most 100 of them are named.
    pub problems: Vec<AuditProblem>,
    /// How many further problems there are.
    pub unnamed: u64,
}

impl AuditCheck {
    /// Whether everything is as it was written.
    pub fn is_intact(&self) -> bool {
        self.problems.is_empty()
    }

    /// The first record that is missing or not as it was written.
    pub fn first_broken(&self) -> Option<i64> {
        self.problems.iter().find_map(|problem| match problem {
            AuditProblem::Record(sequence) => Some(*sequence),
            _ => None,
        })
    }
}

/// One thing that is not as the program's changes left it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditProblem {
    /// A record.
    #[error("record {0} is missing or not as it was written")]
    Record(i64),
    /// What is kept about the trail's ends and the numbers of rows.
    #[error("the head of the trail, its start or the numbers of rows were changed outside Pacegate")]
    State,
    /// A change found the state edited and noted it.
    #[error("record {0} notes that the state of the trail had been changed outside Pacegate")]
    Noted(i64),
    /// The trail belongs to another key.
    #[error("the trail is written under audit key {written_under}, but {}", given_key(.given.as_deref()))]
    OtherKey {
        /// The id of the key that it is written under.
        written_under: String,
        /// The id of the key at hand, if there is one.
        given: Option<String>,
    },
    /// Rows or records without any key.
    #[error("the catalog has rows or records that were never sealed")]
    Unsealed,
    /// The audit key is there, and the trail is gone.
    #[error("the trail is empty, but its audit key exists: the trail was removed")]
    Emptied,
    /// The expected record is not in the trail.
    #[error("the expected record {} is not in the trail: it was cut off or rewritten", .0.sequence)]
    Head(AuditHead),
    /// The expected record is older than the trail.
    #[error("the expected record {} is older than the oldest one that is kept; compare with a newer one", .0.sequence)]
    HeadTooOld(AuditHead),
    /// A row of a table.
    #[error("{kind} `{subject}` {change}")]
    Row {
        /// `rule`, `plan`, `user`, `key` or `override`.
        kind: &'static str,
        /// What the trail calls it.
        subject: String,
        /// What happened to it.
        change: RowChange,
    },
    /// The number of rows in a table.
    #[error("there are {found} rows of the kind {kind}, but changes left {expected}")]
    Rows {
        /// As in [`Row`](Self::Row).
        kind: &'static str,
        /// How many changes left.
        expected: i64,
        /// How many there are.
        found: i64,
    },
}

fn given_key(given: Option<&str>) -> String {
    given.map_or_else(|| "no audit key is at hand".to_owned(), |given| format!("the one at hand is {given}"))
}

/// What happened to a row outside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowChange {
    /// Its content differs.
    #[error("was edited outside Pacegate")]
    Edited,
    /// No change made it.
    #[error("was added outside Pacegate")]
    Added,
    /// No change removed it.
    #[error("was removed outside Pacegate")]
    Removed,
    /// A change removed it.
    #[error("was removed and is back")]
    Restored,
    /// It is an earlier version than the trail's.
    #[error("was set back to an earlier version")]
    Outdated,
}
