//! An embeddable rate limiter: exact decisions, six algorithms, and several limits charged all or
//! nothing.
//!
//! A [`Limiter`] decides whether a request may pass. It finds the limits that apply to a [`Check`],
//! and has a store decide on all of them in one step. This crate is what an embedding program
//! depends on; the Pacegate service is built on the same `Limiter`.
//!
//! ```
//! # use pacegate::{Limit, Limiter};
//! let limiter = Limiter::new(Limit::per_second(10).burst(20))?;
//! let decision = limiter.check_now("user-1")?;
//! assert!(decision.allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A plan is a named list of limits. All limits of all plans of a check are charged, or none is:
//!
//! ```
//! use pacegate::{Check, Limit, Limiter};
//!
//! let limiter = Limiter::builder()
//!     .plan("gold", [Limit::per_second(10).burst(20)])
//!     .plan("daily", [Limit::per_day(1_000).sliding_counter()])
//!     .build()?;
//! let decision = limiter.check_now(Check::key("user-1").plan("gold").plan("daily").cost(5))?;
//! assert_eq!(decision.remaining(), Some(15));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Rule`] defines which requests a limit applies to: a dimension such as `user` or `ip`, and
//! optionally an identifier, a tier, an endpoint pattern and methods. Of the rules with one name,
//! the most specific applies.
//!
//! # From a check to a decision
//!
//! 1. [`identity`] rewrites dimensions and identifiers in their canonical form, and [`PathOptions`]
//!    normalises the endpoint, so that two spellings of one identity or path share one counter.
//! 2. The compiled rule set finds the limits that apply: rules, plans, an ad-hoc limit, or else the
//!    default limit. The [`Profile`] of a user selects a tier and replaces numbers.
//! 3. The limits become one command, which [`Stores`] applies. Limits that are kept in different
//!    stores are charged in a fixed order and refunded if a later one denies.
//! 4. The [`Decision`] contains the answer of every limit. An [`observe::Observer`] receives it.
//!
//! [`Limiter::replace`] swaps the rule set as a whole; each check uses one rule set throughout.
//! Counters belong to the name, pattern, algorithm and window of a rule, so they survive a change
//! of its quota.
//!
//! The most common check, of one known key against one limit in memory, takes a fast path that
//! skips what only other cases need. It shares its arithmetic with the general path, and a property
//! test compares the two.
//!
//! # Invariants
//!
//! - A denied check must never charge a limit. An allowed check must charge every enforced limit.
//! - Two spellings of one identity or path must never have two counters.
//! - A counter must never be reset by a change of rules that keeps its name, pattern, algorithm and
//!   window.
//! - An ad-hoc limit must never replace a rule: it could otherwise lift the operator's limits. It
//!   replaces only the default limit.
//! - A refund must never be applied twice, and must never refund more than was charged.
//! - An identifier must never become a label of a metric.
//! - This crate must never depend on a protocol, a file format or a specific remote store.
//!
//! # Features
//!
//! - `macros`: the attribute `#[rate_limit]` for functions.
//! - `metrics`: `observe::MetricsObserver`, which reports decisions to the `metrics` crate.
//!
//! # Where to go next
//!
//! - [`Limiter`] and [`Check`]: the API for decisions. [`Limiter::wait`] waits instead of denying.
//! - [`LimiterBuilder`]: rules, plans, stores and failure modes.
//! - [`descriptor`]: limits on Envoy's descriptors. [`explain`]: why a rule applies or does not.
//! - [`remote`]: a service that decides instead of this process.
//! - `pacegate-config` reads rules and plans from the YAML file of the service, `pacegate-connect`
//!   connects to the stores in that file, and `pacegate-tower` is a layer for axum, tonic and
//!   hyper.

#[doc(hidden)]
pub mod attribute;
mod chain;
mod check;
mod decision;
pub mod descriptor;
mod effective;
mod endpoint;
mod error;
pub mod explain;
pub mod identity;
mod into_check;
mod limiter;
mod methods;
pub mod observe;
mod pattern;
mod plan;
mod profile;
mod refund;
pub mod remote;
mod resolved;
mod rule;
mod rule_builder;
mod ruleset;
mod stores;
mod trie;
mod wait;

/// Errors and options of endpoints and patterns.
pub mod path {
    pub use crate::endpoint::{ENDPOINT_LENGTH_MAX, EncodedSlashes, InvalidEndpoint};
    pub use crate::pattern::InvalidPattern;
}

/// Reserved names and maximum sizes of rules and plans.
pub mod rules {
    pub use crate::rule::{DEFAULT_NAME, PLAN_LIMITS_MAX, POLICY_NAME};
    pub use crate::ruleset::RULES_MAX;
}

/// Stores: the trait that they implement, their clocks, and their health.
///
/// ```
/// use pacegate::store::{Clock, SystemClock};
///
/// assert!(SystemClock::default().now() > pacegate::Timestamp::default());
/// ```
pub mod store {
    pub use pacegate_memory::{SystemClock, WallClock};
    #[doc(hidden)]
    pub use pacegate_store::TRACES;
    pub use pacegate_store::{
        ApplyFuture, BreakerState, Clock, Command, Figure, Figures, Gauge, Present, ShardedStore, Store,
        StoreHealth,
    };
}

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use attribute::RateLimited;
pub use check::Check;
pub use decision::Decision;
pub use endpoint::PathOptions;
pub use error::{CheckError, InvalidRules};
pub use identity::Invalid;
pub use into_check::IntoCheck;
pub use limiter::{Limiter, LimiterBuilder};
pub use methods::Methods;
pub use pattern::Pattern;
pub use plan::Plan;
pub use profile::{LimitOverride, Profile};
pub use rule::{LimitSource, Mode, NamedLimit, PlanLimit, Rule, Scope};
pub use rule_builder::{PlanLimitBuilder, RuleBuilder};
pub use stores::Stores;

#[cfg(feature = "macros")]
pub use pacegate_macros::rate_limit;

pub use pacegate_core::{
    Algorithm, Answer, Cost, InvalidCost, InvalidLimit, Limit, LimitBuilder, Reason, Standing, Timestamp,
};
pub use pacegate_memory::{MemoryOptions, MemoryStore};
pub use pacegate_store::{FailureMode, StoreError};
