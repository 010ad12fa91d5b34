//! Stores Pacegate's configuration, users and audit trail in SQLite, PostgreSQL, MySQL or MariaDB.
//!
//! ```
//! use pacegate::{Limit, Rule};
//! use pacegate_catalog::{Actor, Catalog};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let catalog = Catalog::open("sqlite::memory:").await?;
//! let actor = Actor { key_id: "operator".into(), ..Actor::default() };
//!
//! let rule = Rule::new("per-user-minute", "user", Limit::per_minute(100).build()?);
//! let stored = catalog.create_rule(&actor, &rule, None).await?;
//! assert!(catalog.create_rule(&actor, &rule, None).await.is_err_and(|error| error.is_conflict()));
//!
//! let list = catalog.rules().await?;
//! assert_eq!(list.rules, [stored]);
//! assert_eq!(catalog.audit_verify(None).await?.records, 1);
//! # Ok(())
//! # }
//! ```
//!
//! One implementation serves all databases. The catalog holds rules, plans, users, overrides, API
//! keys, the audit trail, the decision log and usage. It makes no decisions and keeps no counters,
//! and it does not check that a rule or tier that an override or user names exists.
//!
//! # Invariants
//!
//! - A change is one transaction. The changed rows, the audit record and the revision become
//!   visible together or not at all.
//! - A change must never be made without an audit record that names its actor.
//! - Every change first raises the revision in one row, which serializes the writers of all nodes.
//!   So an update must never be lost, and the sequence of the audit trail must never have a gap.
//! - An acknowledged change must survive a power failure. A change with a lost commit is
//!   [uncertain](CatalogError::is_uncertain) and must never be retried.
//! - The catalog must never be on the path of a check with a cached user.
//!
//! # Rules in force
//!
//! [`Registry`] compiles the rules of the configuration file and of the catalog into one limiter. A
//! node polls the revision every half second and loads all rules when it changed; the node that
//! made a change loads them before it responds. A rule that cannot be applied (an unreadable row, a
//! variant that the file also has) is skipped and logged.
//!
//! [`Catalog::changes`] derives from the audit trail which users changed between two revisions, so
//! that a cache of users only needs to look those up again. After an import, or when the catalog
//! was restored from a backup, every cached user is stale.
//!
//! # Audit trail
//!
//! Each record is chained to the previous one by an HMAC under the audit key, which is not stored
//! in the audit table. The state of the trail (its first and last record, and the number of rows in
//! each table) has an HMAC too. A change compares it before it signs the next state, because
//! signing an edited state would hide the edit; if they differ, the change records `audit.broken`.
//! Every row that a change writes is read back and sealed: its HMAC goes to `pacegate_seals`.
//! Reading the row back means that one function defines what is sealed, for writing and for
//! [`Catalog::audit_verify`], which compares everything in one snapshot.
//!
//! # Adding a field to a rule
//!
//! Add the field to [`pacegate::Rule`], to `rule_row.rs` (with a default, so that existing rows
//! stay readable), to the management API of `pacegate-server` and to the reader of
//! `pacegate-config`.
//!
//! # Where to go next
//!
//! Start with [`Catalog`] for single operations and [`Registry`] for a limiter that follows them.
//! `change.rs` has the transaction that every change goes through.

mod audit;
mod audit_key;
mod bounds;
mod catalog;
mod change;
mod database;
mod decisions;
mod digest;
mod error;
mod json;
mod keys;
mod overrides;
mod plans;
mod precondition;
mod record;
mod registry;
mod resets;
mod retention;
mod rule_row;
mod rules;
mod schema;
mod seal;
mod statement;
mod usage;
mod user_import;
mod users;
mod verify;

pub use audit::Changes;
pub use bounds::{CUSTOM_LIMITS_MAX, PAGE_MAX, REASON_LENGTH_MAX};
pub use catalog::{Catalog, CatalogOptions};
pub use decisions::{DECISIONS_MAX, DecisionFilter, DecisionRecord, shorten_identifier};
pub use error::CatalogError;
pub use overrides::{IDENTITY_OVERRIDES_MAX, OVERRIDES_MAX};
pub use pacegate::rules::RULES_MAX;
pub use plans::PLANS_MAX;
pub use precondition::{Expected, RuleRef};
pub use record::{
    Actor, AuditCheck, AuditFilter, AuditHead, AuditProblem, AuditRecord, NewOverride, Override,
    PolicyDetail, Revision, RowChange, RuleList, StoredKey, StoredPlan, StoredRule, User, UserChange,
};
pub use registry::{CatalogPoll, Registry, RegistryError, Sources};
pub use retention::{Removed, Retention};
pub use usage::{Period, UsageFilter, UsageRecord};
pub use user_import::{IMPORT_USERS_MAX, UserOutcome};
pub use users::ProfileUntil;
