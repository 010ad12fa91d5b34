//! A naive reference model of the six rate-limiting algorithms.
//!
//! It exists to be compared with the fast implementation, so it deliberately
//! shares no code with the core: fractions are kept exact in `i128`, logs are
//! plain lists, and waiting times are found by searching for the first moment
//! at which the admission rule itself holds instead of by a closed formula.

mod bucket;
mod chain;
mod fixed_window;
mod gcra;
mod key;
mod mark;
mod search;
mod sliding_counter;
mod sliding_log;
mod ticks;

#[cfg(test)]
mod promises;
#[cfg(test)]
mod tests;

pub use chain::Model;
pub use key::ModelKey;
pub use mark::ModelMark;

/// The latest moment, in microseconds, that a request or an answer can name.
pub const MODEL_LAST_MOMENT: u64 = (1 << 53) - 1;

/// The algorithm a limit counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelAlgorithm {
    /// Tokens come back linearly, up to the burst.
    TokenBucket,
    /// The token bucket seen as a queue, which also answers a delay and a position.
    LeakyBucket,
    /// The generic cell rate algorithm: only a theoretical arrival time is kept.
    Gcra,
    /// One count per window aligned to multiples of the window length.
    FixedWindow,
    /// Every charge is remembered until it is one window old.
    SlidingLog,
    /// The current window's count plus a fading share of the one before.
    SlidingCounter,
}

/// One limit: `quota` tokens per `window` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelLimit {
    /// How the limit counts.
    pub algorithm: ModelAlgorithm,
    /// Tokens that come back per window.
    pub quota: u64,
    /// The most tokens the bucket-like algorithms hold at once; unused by the windows.
    pub burst: u64,
    /// The window's length in microseconds.
    pub window: u64,
}

impl ModelLimit {
    /// The largest cost that can ever be admitted: the burst for the
    /// bucket-like algorithms, the quota for the windows.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            ModelAlgorithm::TokenBucket | ModelAlgorithm::LeakyBucket | ModelAlgorithm::Gcra => self.burst,
            ModelAlgorithm::FixedWindow | ModelAlgorithm::SlidingLog | ModelAlgorithm::SlidingCounter => {
                self.quota
            }
        }
    }
}

/// What one limit says about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAnswer {
    /// Whether this limit had room for the request.
    pub allowed: bool,
    /// The limit's capacity in tokens.
    pub capacity: u64,
    /// Whole tokens left, after the charge if there was one.
    pub remaining: u64,
    /// When the counter equals a fresh one again if nothing more comes.
    pub reset_at: u64,
    /// When the same request would be admitted; only for a denied request that can fit.
    pub retry_at: Option<u64>,
    /// Whether the cost is above the capacity, so that waiting never helps.
    pub never_fits: bool,
    /// The mark that goes with this answer.
    pub mark: ModelMark,
    /// How long an admitted leaky-bucket request has to wait, in microseconds.
    pub delay: Option<u64>,
    /// The place in the queue of an admitted leaky-bucket request.
    pub queue_position: Option<u64>,
    /// What the bound of the debt kept from being charged.
    pub uncharged: u64,
}

/// How much room a charge needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelFit {
    /// Room for all of it.
    #[default]
    Whole,
    /// Room for one token.
    Overdraw,
    /// None.
    Forced,
}

/// One link of a chain.
#[derive(Clone, Debug)]
pub struct ModelCharge {
    /// The key's name.
    pub key: String,
    /// Its limit.
    pub limit: ModelLimit,
    /// How much is taken or given back; nothing looks whether one token would fit.
    pub cost: u64,
    /// How much room a take needs.
    pub fit: ModelFit,
    /// For a refund, when it was taken.
    pub taken_at: Option<u64>,
    /// Whether the limit is only watched.
    pub shadow: bool,
}

/// The outcome of an operation on a chain of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDecision {
    /// Whether every limit that is not a shadow had room.
    pub allowed: bool,
    /// The index of the limit that decides what the caller is told.
    pub binding: usize,
    /// One answer per charge, in the order of the charges.
    pub answers: Vec<ModelAnswer>,
}
