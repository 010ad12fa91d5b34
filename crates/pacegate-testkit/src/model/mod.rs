//! A naive reference model of the six rate-limiting algorithms.
//!
//! It is compared with the fast implementation, so it deliberately shares no code with the core:
//! fractions are exact in `i128`, logs are plain lists, and retry times are found by searching for
//! the first moment at which the admission rule itself holds, instead of by a closed formula.

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

/// The latest time, in microseconds, that a request or an answer can have.
pub const MODEL_LAST_MOMENT: u64 = (1 << 53) - 1;

/// The algorithm of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelAlgorithm {
    /// Tokens are refilled linearly, up to the burst.
    TokenBucket,
    /// The token bucket as a queue, which also returns a delay and a position.
    LeakyBucket,
    /// The generic cell rate algorithm, which stores only a theoretical arrival time.
    Gcra,
    /// One count per window aligned to multiples of the window length.
    FixedWindow,
    /// Every charge is stored until it is one window old.
    SlidingLog,
    /// The count of the current window plus a decreasing share of the previous one.
    SlidingCounter,
}

/// One limit: `quota` tokens per `window` microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelLimit {
    /// How the limit counts.
    pub algorithm: ModelAlgorithm,
    /// Tokens that are refilled per window.
    pub quota: u64,
    /// Maximum number of tokens in bucket-like algorithms; unused by windows.
    pub burst: u64,
    /// The length of the window in microseconds.
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

/// The answer of one limit to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAnswer {
    /// Whether this limit allows the request.
    pub allowed: bool,
    /// The limit's capacity in tokens.
    pub capacity: u64,
    /// Whole tokens remaining, after the charge if there was one.
    pub remaining: u64,
    /// When the counter equals a fresh one again without further charges.
    pub reset_at: u64,
    /// When the same request would be admitted; only for a denied request that can ever be
    /// admitted.
    pub retry_at: Option<u64>,
    /// Whether the cost exceeds the capacity, so that a retry never helps.
    pub never_fits: bool,
    /// The mark that goes with this answer.
    pub mark: ModelMark,
    /// How long an admitted leaky-bucket request has to wait, in microseconds.
    pub delay: Option<u64>,
    /// The queue position of an admitted leaky-bucket request.
    pub queue_position: Option<u64>,
    /// The part of the cost that exceeds the maximum debt and is not charged.
    pub uncharged: u64,
}

/// How much of the cost must be available for a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelFit {
    /// All of it.
    #[default]
    Whole,
    /// One token.
    Overdraw,
    /// Nothing.
    Forced,
}

/// One limit of a chain.
#[derive(Clone, Debug)]
pub struct ModelCharge {
    /// The key's name.
    pub key: String,
    /// Its limit.
    pub limit: ModelLimit,
    /// How much is charged or refunded; zero checks whether one token would be allowed.
    pub cost: u64,
    /// How much of the cost must be available for a take.
    pub fit: ModelFit,
    /// For a refund, when the charge was made.
    pub taken_at: Option<u64>,
    /// Whether the limit is in shadow mode.
    pub shadow: bool,
}

/// The outcome of an operation on a chain of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDecision {
    /// Whether every enforced limit allows the request.
    pub allowed: bool,
    /// The index of the binding limit.
    pub binding: usize,
    /// One answer per charge, in the order of the charges.
    pub answers: Vec<ModelAnswer>,
}
