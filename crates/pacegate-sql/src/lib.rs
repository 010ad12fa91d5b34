//! Counters in MySQL, MariaDB or PostgreSQL, for teams that have a database and no Redis.
//!
//! Concurrent checks are gathered into batches; a batch is one transaction at READ COMMITTED: its rows are locked in the order of their keys, the time is read
//! from the database, `pacegate-core` decides, what changed is written back. Every decision is exact, and a database that is asked a hundred things at
//! once answers far more of them than one that is asked one at a time.
//!
//! ```no_run
//! use pacegate_sql::{SqlOptions, SqlStore};
//!
//! # async fn example() -> Result<(), pacegate_store::StoreError> {
//! let store = SqlStore::connect(SqlOptions::new("postgres://pacegate:secret@127.0.0.1:5432/pacegate")?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! It does not decide what a failure means for a request, nor how long a request may wait: that is `pacegate_store::GuardedStore`'s.

mod error;
mod forget;
mod ledger;
mod mysql;
mod postgres;
mod record;
mod request;
mod schema;
mod session;
mod store;
mod sweep;

pub use store::{SqlOptions, SqlStore};
