//! What can go wrong with a check and with a set of rules.

use std::time::Duration;

use pacegate_core::{Algorithm, InvalidLimit};
use pacegate_store::StoreError;
use thiserror::Error;

use crate::endpoint::InvalidEndpoint;
use crate::identity::Invalid;

/// No decision could be made. A denial is not among these.
///
/// ```
/// use pacegate::{Check, CheckError, Limiter};
///
/// let error = Limiter::default().check_now(Check::key("user-1").plan("gold")).unwrap_err();
/// assert!(matches!(error, CheckError::UnknownPlan { .. }));
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The check names no identity.
    #[error("a check needs at least one dimension and identifier")]
    NoIdentity,
    /// One dimension is given twice.
    #[error("duplicate dimension `{dimension}`")]
    DuplicateDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// The dimension is not a word in lower case.
    #[error("{reason}")]
    InvalidDimension {
        /// What was given.
        dimension: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
    /// The identifier cannot be counted by.
    #[error("{reason}")]
    InvalidIdentifier {
        /// The dimension it was given for.
        dimension: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
    /// The tier cannot be one.
    #[error("{0}")]
    InvalidTier(Invalid),
    /// A cost is given in something that cannot be a unit.
    #[error("{reason}")]
    InvalidUnit {
        /// What was given.
        unit: Box<str>,
        /// What it must be.
        reason: Invalid,
    },
    /// The endpoint cannot be matched.
    #[error("endpoint: {0}")]
    InvalidEndpoint(#[from] InvalidEndpoint),
    /// The check's own limit has numbers that are not valid.
    #[error("ad-hoc limit: {0}")]
    InvalidLimit(InvalidLimit),
    /// The idempotency key is empty or too long.
    #[error("{0}")]
    InvalidIdempotencyKey(Invalid),
    /// There is no plan of that name.
    #[error("unknown plan `{name}`")]
    UnknownPlan {
        /// The name.
        name: Box<str>,
    },
    /// A plan is named twice, which would charge it twice.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: Box<str>,
    },
    /// The idempotency key was used for another request within the last five minutes.
    #[error("the idempotency key was already used for a different request")]
    IdempotencyMismatch,
    /// One of several checks that are decided together has an idempotency key.
    #[error("an idempotency key applies to a single check, not to several checks decided together")]
    IdempotencyOfMany,
    /// The cost cannot be charged.
    #[error(transparent)]
    InvalidCost(pacegate_core::InvalidCost),
    /// The service that decides does not take the check.
    #[error("the service rejected the check: {0}")]
    Rejected(Box<str>),
    /// `#[rate_limit]` was used without a limiter.
    #[error(
        "no limiter is installed: call `Limiter::install` at startup, or set `limiter = …` in the attribute"
    )]
    NotInstalled,
    /// `check_now` was called on a limiter whose store is not in this process.
    #[error("this limiter's store is not in this process; use the asynchronous methods")]
    NotInProcess,
    /// The store could not decide.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Rules and plans that contradict each other.
///
/// ```
/// use pacegate::{InvalidRules, Limit, Limiter, Rule};
///
/// let rule = Rule::builder("per-user", "user", Limit::per_minute(10));
/// let error = Limiter::builder().rule(rule.clone()).rule(rule).build().unwrap_err();
/// assert!(matches!(error, InvalidRules::DuplicateRule { .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRules {
    /// Two rules are the same variant of the same name.
    #[error(
        "duplicate rule `{name}`: another rule has the same dimension, identifier, tier, endpoint and method"
    )]
    DuplicateRule {
        /// The place of the second one in the list.
        place: usize,
        /// The name.
        name: String,
    },
    /// A rule has a field that cannot be what it is.
    #[error("rule `{name}`: {invalid}")]
    InvalidRule {
        /// The place in the list.
        place: usize,
        /// The name.
        name: String,
        /// The field and what it must be.
        invalid: Invalid,
    },
    /// A limit of a plan has numbers that are not valid.
    #[error("plan `{plan}`: limits[{index}]: {invalid}")]
    InvalidPlanLimit {
        /// The plan.
        plan: String,
        /// The position in the plan's list of limits.
        index: usize,
        /// What is wrong with the numbers.
        invalid: InvalidLimit,
    },
    /// The default limit has numbers that are not valid.
    #[error("default limit: {0}")]
    InvalidDefaultLimit(InvalidLimit),
    /// IPv6 addresses cannot be counted by so many bits.
    #[error("ipv6_prefix: must be between 1 and 128, got {bits}")]
    InvalidIpv6Prefix {
        /// What was given.
        bits: u8,
    },
    /// Two plans share a name.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: String,
    },
    /// Two limits of a plan would share a counter.
    #[error("plan `{plan}`: duplicate {algorithm} limit over {window:?}; keep only the lower one")]
    DuplicateInPlan {
        /// The plan.
        plan: String,
        /// The algorithm of both.
        algorithm: Algorithm,
        /// The window of both.
        window: Duration,
    },
    /// A rule names a store that there is not.
    #[error("rule `{rule}`: unknown store `{store}`")]
    UnknownStore {
        /// The rule.
        rule: String,
        /// The store.
        store: String,
    },
    /// A rule for descriptors cannot be what it is, or contradicts another one.
    #[error("descriptors[{place}].{field}: {reason}")]
    InvalidDescriptor {
        /// Its place in the list.
        place: usize,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A store is not in this process, and nobody connected to it.
    #[error("store `{store}` is not in this process; connect to it and use `Config::limiter_with`")]
    NotConnected {
        /// The store.
        store: String,
    },
    /// There are more rules than can be compiled.
    #[error("too many rules: got {rules}, the maximum is {max}")]
    TooMany {
        /// How many there are.
        rules: usize,
        /// How many there may be.
        max: usize,
    },
}
