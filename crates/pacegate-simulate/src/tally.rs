//! Counters of a replay, all in bounded memory.

pub(crate) mod customers;
pub(crate) mod endpoints;
pub(crate) mod keys;
pub(crate) mod rules;
pub(crate) mod series;

/// Maximum number of sets of rules that are replayed together.
pub(crate) const SETS_MAX: usize = 2;
