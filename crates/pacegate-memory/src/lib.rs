//! The in-process store: sharded, bounded, with incremental expiry, and synchronous.
//!
//! ```
//! use pacegate_core::{Cost, Counter, Key, Limit};
//! use pacegate_memory::MemoryStore;
//! use pacegate_store::Charge;
//!
//! let store = MemoryStore::default();
//! let counter = Counter::new("logins", "ip", "");
//! let limit = Limit::per_minute(1).build()?;
//! let charge = Charge::new(Key::new(&counter, "10.0.0.1", ""), &limit);
//! assert!(store.take(&charge, None)?.allowed);
//! assert!(!store.take(&charge, None)?.allowed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//!
//! - It must never evict a key that still limits an identity.
//! - It must never hold a lock while it waits for anything but the next shard in ascending order.
//! - It must never allocate for a known key.
//!
//! All counters are lost on restart.
//!
//! # Locks
//!
//! A command locks the shards of its keys in ascending order, so that commands with several limits
//! are atomic and cannot deadlock. An idempotency key is locked before any shard and stays locked
//! from the lookup to the record, so that concurrent duplicates are charged once. Tests explore the
//! interleavings with shuttle. One short lock on one of 128 shards costs less than a lock-free map
//! or an async mutex, and several shards can be held at once, which chains need. A thread that
//! finds a shard locked yields its processor until it is free; see `sync.rs` for the reason.
//!
//! # Bounds
//!
//! Entries are stored densely in a list per shard with an index of 4-byte slots over it. An entry
//! has 80 bytes, which include identifiers of up to 24 bytes. The rule's name, dimension and scope
//! are represented by 94 bits of SHA-256; identifiers are stored as they are, or as their SHA-256
//! above 512 bytes.
//!
//! Every command pays one step towards a sweep of 64 entries in the next shard in turn, whichever
//! shard it touched itself. The sweep drops keys whose state equals a fresh one. A new key in a
//! full store first searches two shards for expired keys, and then shares the overflow counter of
//! its rule. A flood of new keys therefore never evicts an active limit.
//!
//! Callers can invent dimensions and ad-hoc windows, so keys and overflow counters of these have
//! separate bounds ([`Origin`](pacegate_core::Origin), two bits of a counter's digest). They use up
//! neither the keys nor the overflow counters of configured rules. A limit that gets no counter at
//! all is decided by its failure mode, while the other limits of its check are counted. An
//! idempotency key beyond the bound is not recorded: the check is charged, and charged again when
//! it is repeated.
//!
//! # Time
//!
//! [`SystemClock`], for counters, counts with the processor's time-stamp counter. It approaches the
//! wall clock at 500 ppm, follows it at once if it was set forward, and never goes back; how far it
//! is ahead is a metric. A counter that jumps (suspend, a restored VM) is detected within a second
//! by comparison with the monotonic clock. [`WallClock`], for everything that people express as a
//! time of day, follows the wall clock in both directions. Keys expire by the store's own clock
//! only, never by a time that a command specifies.
//!
//! # The fast path
//!
//! A take of one enforced limit that fits, under a known key, is by far the most common case:
//! [`MemoryStore::take_known`]. It skips what only other cases need and shares the arithmetic of
//! the general path; a property test keeps the two equal.
//!
//! # Where to go next
//!
//! `store.rs` has the locking, `shard.rs` the entries and the sweep, `index.rs` the lookup. The
//! `Store` trait is in `pacegate-store`; the decisions are made by `pacegate_core::chain`.

mod clock;
mod idempotency;
mod index;
mod shard;
mod store;
mod sync;

pub use clock::{SystemClock, WallClock};
pub use store::{MemoryOptions, MemoryStore};
