//! A rate limiter inside your program: six exact algorithms, several limits charged all or nothing, plans and rules by name.
//!
//! ```
//! # use pacegate::{Limit, Limiter};
//! let limiter = Limiter::new(Limit::per_second(10).burst(20))?;
//! let decision = limiter.check_now("user-1")?;
//! assert!(decision.allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Plans are named lists of limits; all limits of all plans of a check are charged, or none is:
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
//! Rules say whom and where a limit applies. The crate `pacegate-config` reads them, and plans, from the same YAML file
//! that the service reads.
//!
//! # What it does not do
//!
//! It speaks no protocol (the `pacegate` binary does), asks no clock (the store does) and does not know which store it has.

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

/// Paths beyond [`Pattern`] and [`PathOptions`]: what is wrong with one, and how encoded slashes are read.
pub mod path {
    pub use crate::endpoint::{ENDPOINT_LENGTH_MAX, EncodedSlashes, InvalidEndpoint};
    pub use crate::pattern::InvalidPattern;
}

/// Names and bounds of rules and plans.
pub mod rules {
    pub use crate::rule::{DEFAULT_NAME, PLAN_LIMITS_MAX, POLICY_NAME};
    pub use crate::ruleset::RULES_MAX;
}

/// Stores: the trait that they implement, their clocks, and how they are.
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

/// The README's example compiles and runs.
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
