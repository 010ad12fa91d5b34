//! What is counted while a log is replayed, all of it in bounded memory.

pub(crate) mod customers;
pub(crate) mod endpoints;
pub(crate) mod keys;
pub(crate) mod rules;
pub(crate) mod series;

/// How many sets of rules are replayed side by side at most.
pub(crate) const SETS_MAX: usize = 2;
