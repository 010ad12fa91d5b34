//! Counters in MySQL, MariaDB or PostgreSQL, for teams that run a database but no Redis.
//!
//! ```no_run
//! use pacegate_sql::{SqlOptions, SqlStore};
//!
//! # async fn example() -> Result<(), pacegate_store::StoreError> {
//! let options = SqlOptions::new("postgres://pacegate:secret@127.0.0.1:5432/pacegate")?;
//! let store = SqlStore::connect(options).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Concurrent checks are combined into batches. A batch is one transaction at READ COMMITTED: its
//! rows are locked in key order, the time is read from the database, `pacegate-core` decides, and
//! the changed rows are written back. Every decision is exact, and batches give a far higher
//! throughput than one transaction per check.
//!
//! # Invariants
//!
//! - A row must never be changed without its lock.
//! - A transaction that may have been committed must never be retried.
//! - Rows must be locked in key order, so that batches cannot deadlock with each other.
//! - A denial, a peek, and a reset or refund of an absent key must never write a row.
//! - The store must never decide what a failure means for a request or how long a request may wait:
//!   `pacegate_store::GuardedStore` does.
//!
//! # How a batch is decided
//!
//! All state is in one table, `pacegate_state`, with one row per counter or idempotency key. The
//! primary key is text in byte order.
//!
//! 1. `pacegate_store::Batcher` has a lane per connection, one more lane for large batches, and no
//!    timer: a batch is whatever queued while the previous one ran.
//! 2. Existing rows are locked with `SELECT … ORDER BY k FOR UPDATE`, and the batch is decided with
//!    missing rows as fresh counters.
//! 3. Only rows that the batch would write are inserted. The transaction is rolled back, these rows
//!    and the existing ones are inserted or locked in key order, and the batch is decided again.
//! 4. The time must be read after the last lock. PostgreSQL reads it in the same statement, after a
//!    count that needs all locked rows. MariaDB reads it with each row as it is locked, and the
//!    last value counts.
//!
//! A row that another transaction keeps locked delays only its own callers. After 80 ms the batch
//! continues without them (`SKIP LOCKED`), waits once more for the locked rows alone, and then
//! rejects requests for that key until the row is free.
//!
//! `expires` is in minutes, so that its index changes once a minute instead of with every check.
//! PostgreSQL's planner is forced to use the primary key: after many updates it would otherwise
//! switch to sequential scans, which are ten times slower.
//!
//! # Where to go next
//!
//! `request` is a command that can wait in a queue, `ledger` the locked rows of a batch and the
//! decisions on them, `session` the operations on a connection with their statements in `mysql` and
//! `postgres`, `schema` the migrations, `sweep` the removal of expired rows, and `error` the
//! classification of database errors.

mod error;

mod ledger;
mod mysql;
mod postgres;
mod record;
mod request;
mod reset;
mod schema;
mod session;
mod store;
mod sweep;

pub use store::{SqlOptions, SqlStore};
