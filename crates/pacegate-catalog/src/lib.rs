//! Pacegate's configuration, users and audit trail in SQLite, PostgreSQL, MySQL or MariaDB.
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
//! # What it promises
//!
//! A change is one transaction: what it changes, its audit record and the revision become visible together or not at all. Changes of all nodes are
//! made one after the other, because each begins by locking the same row; so no update is lost, and the audit trail has an order without gaps. A change
//! that was acknowledged survives a power cut. One whose commit was lost is [uncertain](CatalogError::is_uncertain) and never repeated.
//!
//! # What it does not do
//!
//! It decides nothing and keeps no counters; [`Registry`] has a limiter compile what it keeps. It does not know whether a name that a rule or override mentions exists.

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
pub use registry::{Registry, RegistryError, Rounds, Sources};
pub use retention::{Removed, Retention};
pub use usage::{Period, UsageFilter, UsageRecord};
pub use users::ProfileUntil;
