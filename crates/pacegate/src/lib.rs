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
mod descriptor;
mod effective;
mod endpoint;
mod error;
mod explain;
pub mod identity;
mod into_check;
mod limiter;
mod methods;
mod pattern;
mod plan;
mod profile;
mod refund;
mod remote;
mod resolved;
mod rule;
mod rule_builder;
mod ruleset;
mod stores;
mod trie;
mod wait;

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use attribute::RateLimited;
pub use check::Check;
pub use decision::Decision;
pub use descriptor::check::{Descriptor, DescriptorDecision, DescriptorOutcome, Hits};
pub use descriptor::contradiction::Contradiction;
pub use descriptor::{Allowance, Condition, DescriptorRule, PathEntry, Selector, ValueTest};
pub use effective::EffectiveLimit;
pub use endpoint::{ENDPOINT_LENGTH_MAX, EncodedSlashes, InvalidEndpoint, PathOptions};
pub use error::{CheckError, InvalidRules};
pub use explain::{Explained, Verdict};
pub use identity::Invalid;
pub use into_check::IntoCheck;
pub use limiter::{Limiter, LimiterBuilder};
pub use methods::Methods;
pub use pattern::{InvalidPattern, Pattern};
pub use plan::Plan;
pub use profile::{LimitOverride, Profile};
pub use remote::{Remote, RemoteAnswers, RemoteFuture};
pub use rule::{
    DEFAULT_NAME, LimitSource, Mode, NamedLimit, PLAN_LIMITS_MAX, POLICY_NAME, PlanLimit, Rule, Scope,
};
pub use rule_builder::{PlanLimitBuilder, RuleBuilder};
pub use ruleset::RULES_MAX;
pub use stores::Stores;

#[cfg(feature = "macros")]
pub use pacegate_macros::rate_limit;

pub use pacegate_core::{
    Algorithm, Answer, Cost, InvalidCost, InvalidLimit, Limit, LimitBuilder, Reason, Standing, Timestamp,
};
pub use pacegate_memory::{MemoryOptions, MemoryStore, SystemClock, WallClock};
pub use pacegate_store::{
    ApplyFuture, BreakerState, Clock, Command, FailureMode, Figure, Figures, Gauge, Present, ShardedStore,
    Store, StoreError, StoreHealth, TRACES,
};
